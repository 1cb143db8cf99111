"""Admits a job to all switches that it needs, one or several, in an order that no packet can take amiss.

Owns the order between switches; what happens on each is its controller's.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from peelsum.control.controller import Admission, Controller, SwitchStatus
from peelsum.control.description import JobDescription
from peelsum.control.errors import ControlError
from peelsum.control.racks import RacksDescription
from peelsum.control.session import Session
from peelsum.wire import Verdict


class Fabric:
    """The primary controllers of a description's switches, the upper one first. A context manager."""

    def __init__(self, description: JobDescription | RacksDescription, controllers: list[Controller]) -> None:
        self._description = description
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
            controllers = []
            for plan in description.plans():
                address, device_id = plan.switch.p4runtime, plan.switch.device_id
                session = Session(address, device_id, election_id=election_id, timeout_s=timeout_s)
                controllers.append(stack.enter_context(Controller(session)))
            stack.pop_all()
        return cls(description, controllers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the switches to another controller; they keep running as they are."""
        for controller, _ in self._placed:
            controller.close()

    def load_pipeline(self, json_path: Path, p4info_path: Path, *, force: bool = False) -> int:
        """Commit a compiled pipeline where it does not run yet; on how many switches. Raises ControlError."""
        return sum(
            controller.load_pipeline(json_path, p4info_path, force=force) for controller, _ in self._placed
        )

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

    def restore(self, generation: int) -> int:
        """Put a running job back on the switches that lost their tables; on how many.

        Its workers and its server go on in `generation`, the one of its admission: what was lost with the
        slots they send again. Raises ControlError, before anything is changed, where a switch remembers the
        job closed or in another generation: then only a new admission helps.
        """
        job_id = self._description.job.id
        lost = []
        for controller, plan in self._placed:
            controller.check(plan)
            known = controller.known_generation(job_id)
            if known is None:
                lost.append((controller, plan))
            elif known != generation or not any(job.job_id == job_id for job in controller.jobs()):
                raise ControlError(
                    f"job: {job_id}: generation {generation} no longer runs on {plan.switch.p4runtime}; "
                    "admit the job again"
                )
        for controller, plan in lost:
            controller.close_job(job_id, generation)
            controller.free_slots(job_id)
            controller.prepare(plan)
            controller.open_job(plan, generation)
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
