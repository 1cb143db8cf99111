"""Admits a job to all switches that it needs, one or several, in an order that no packet can take amiss.

Owns the order between switches; what happens on each is its controller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from peelsum.control.answers import Admission, SwitchStatus
from peelsum.control.controller import Controller
from peelsum.control.description import JobDescription
from peelsum.control.errors import ControlError
from peelsum.control.plan import SwitchPlan
from peelsum.control.racks import RacksDescription
from peelsum.control.session import Session
from peelsum.wire import Verdict


class Fabric:
    """The primary controllers of a description's switches, the upper one first. A context manager."""

    def __init__(
        self,
        description: JobDescription | RacksDescription,
        controllers: list[Controller],
        *,
        election_id: int | None = 1,
    ) -> None:
        self._description = description
        self._election_id = election_id
        self._placed = list(zip(controllers, description.plans(), strict=True))

    @classmethod
    def connect(
        cls,
        description: JobDescription | RacksDescription,
        *,
        election_id: int | None = 1,
        timeout_s: float = 4.0,
    ) -> Self:
        """Take charge of all switches; with election id None, only look at them.

        Raises SwitchError if one cannot be reached or has another controller; then none is in our charge.
        """
        with ExitStack() as stack:
            controllers = [
                stack.enter_context(_connected(plan, election_id, timeout_s)) for plan in description.plans()
            ]
            stack.pop_all()
        return cls(description, controllers, election_id=election_id)

    def reconnect(self, switch: int, *, timeout_s: float = 4.0) -> None:
        """Take charge anew of one switch, by its place in the description. Raises SwitchError."""
        controller, plan = self._placed[switch]
        controller.close()
        self._placed[switch] = (_connected(plan, self._election_id, timeout_s), plan)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the switches to another controller; they keep running as they are."""
        for controller, _ in self._placed:
            controller.close()

    @property
    def switches(self) -> tuple[str, ...]:
        """The P4Runtime addresses, in the order of the description's plans."""
        return tuple(plan.switch.p4runtime for _, plan in self._placed)

    def attend(self, switch: int) -> None:
        """Raise SwitchError if a switch has gone since the last call, or another controller took over."""
        self._placed[switch][0].attend()

    def load_pipeline(
        self,
        json_path: Path,
        p4info_path: Path,
        *,
        force: bool = False,
        switches: Sequence[int] | None = None,
    ) -> int:
        """Commit a compiled pipeline where it does not run yet, on all switches or some; on how many.

        Raises ControlError.
        """
        placed = self._placed if switches is None else [self._placed[switch] for switch in switches]
        return sum(controller.load_pipeline(json_path, p4info_path, force=force) for controller, _ in placed)

    def admit(self) -> Admission:
        """Let the job in everywhere, in one new generation; whatever was left of an earlier one is gone.

        Closed everywhere, from the workers upwards, before any slot is freed, and opened from the server
        downwards after all are prepared: no packet meets half an admission. Should a switch fail on the way,
        the job is closed or partly so, and the next admission starts over in a generation of its own.
        Raises DescriptionError before anything is changed, SwitchError if a switch refuses.
        """
        job_id = self._description.job.id
        for controller, plan in self._placed:
            controller.check(plan)
        known = [controller.known_generation(job_id) for controller, _ in self._placed]
        upper, _ = self._placed[0]
        generation = upper.next_generation([one for one in known if one is not None])
        for controller, _ in reversed(self._placed):
            controller.close_job(job_id, generation)
        for controller, _ in self._placed:
            controller.free_slots(job_id)
        for controller, plan in self._placed:
            controller.prepare(plan)
        for controller, plan in self._placed:
            controller.open_job(plan, generation)
        return self._admission(generation)

    def holds(self, switch: int, generation: int) -> bool:
        """Whether a switch still has the running job; False where it lost its tables. Cheap: reads one row.

        Raises ControlError where it remembers the job closed or in another generation: then only a new
        admission helps. SwitchError where it does not answer.
        """
        controller, plan = self._placed[switch]
        if controller.known_generation(plan.job_id, closed=False) == generation:
            return True
        if controller.known_generation(plan.job_id) is None:
            return False
        raise ControlError(
            f"job: {plan.job_id}: generation {generation} no longer runs on {plan.switch.p4runtime}; "
            "admit the job again"
        )

    def put_back(self, switch: int, generation: int) -> None:
        """Give a switch that lost its tables the job again. Raises ControlError.

        Workers and server go on in `generation`, the one of the admission: what was lost with the slots they
        send again. Should the switch fail on the way, call it again.
        """
        controller, plan = self._placed[switch]
        controller.check(plan)
        controller.close_job(plan.job_id, generation)
        controller.free_slots(plan.job_id)
        controller.prepare(plan)
        controller.open_job(plan, generation)

    def restore(self, generation: int) -> int:
        """Put a running job back on all switches that lost their tables; on how many.

        Raises what `holds` raises, before anything is changed.
        """
        lost = [switch for switch in range(len(self._placed)) if not self.holds(switch, generation)]
        for switch in lost:
            self.put_back(switch, generation)
        return len(lost)

    def evict(self) -> None:
        """Let the job's packets in no more, on any switch. Raises ControlError if no switch has the job."""
        job_id, evicted = self._description.job.id, 0
        for controller, _ in reversed(self._placed):
            if any(job.job_id == job_id for job in controller.jobs()):
                controller.evict(job_id)
                evicted += 1
        if not evicted:
            raise ControlError(f"job: {job_id}: is not admitted on any of its switches; admit it first")

    def status(self) -> tuple[SwitchStatus, ...]:
        """Everything an operator wants to see at once, switch by switch."""
        return tuple(controller.status() for controller, _ in self._placed)

    def verdicts(self) -> tuple[dict[Verdict, int], ...]:
        """How many packets met each verdict, switch by switch."""
        return tuple(controller.verdicts() for controller, _ in self._placed)

    def _admission(self, generation: int) -> Admission:
        description, (upper, _) = self._description, self._placed[0]
        return Admission(
            description.job.id,
            generation,
            description.job.workers,
            description.job.window,
            upper.lanes(),
            min(controller.slots() for controller, _ in self._placed),
            description.server_port,
            description.worker_ports,
            description.rack_sizes,
        )


def _connected(plan: SwitchPlan, election_id: int | None, timeout_s: float) -> Controller:
    address, device_id = plan.switch.p4runtime, plan.switch.device_id
    return Controller(Session(address, device_id, election_id=election_id, timeout_s=timeout_s))
