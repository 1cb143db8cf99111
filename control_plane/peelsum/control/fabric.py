"""Admits a job to all switches that it needs, one or several, in an order that no packet can take amiss.

Owns the order between switches; what happens on each is its controller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from peelsum.control.responses import Admission, SwitchStatus
from peelsum.control.controller import Controller
from peelsum.control.description import JobDescription
from peelsum.control.errors import ControlError, DescriptionError
from peelsum.control.plan import SwitchPlan
from peelsum.control.racks import RacksDescription
from peelsum.wire import Verdict

#: How long another controller may be in charge: one that admits a job, or puts one back.
_PATIENCE_S = 10.0


class Fabric:
    """Controllers of a description's switches, the upper one first. A context manager.

    A switch has one controller in charge at a time. Who holds a job is so only while there is something to
    write (`as_primary`), which keeps several writers apart; in between, others may admit jobs of theirs.
    """

    def __init__(
        self, description: JobDescription | RacksDescription, controllers: list[Controller], election_id: int
    ) -> None:
        self._description = description
        self._election_id = election_id
        self._placed = list(zip(controllers, description.plans(), strict=True))

    @classmethod
    def observe(
        cls,
        description: JobDescription | RacksDescription,
        *,
        election_id: int = 1,
        timeout_s: float = 4.0,
    ) -> Self:
        """Look on at all switches, beside whoever is in charge. Raises SwitchError if one cannot be reached.

        election_id: what to bid when taking charge.
        """
        with ExitStack() as stack:
            controllers = [stack.enter_context(_observed(plan, timeout_s)) for plan in description.plans()]
            stack.pop_all()
        return cls(description, controllers, election_id)

    @classmethod
    def connect(
        cls,
        description: JobDescription | RacksDescription,
        *,
        election_id: int = 1,
        timeout_s: float = 4.0,
        patience_s: float = 0.0,
    ) -> Self:
        """Take charge of all switches, until `become_backup`.

        Raises SwitchError if one cannot be reached, NotPrimaryError if one has another controller for longer
        than `patience_s`; then none is in our charge.
        """
        fabric = cls.observe(description, election_id=election_id, timeout_s=timeout_s)
        try:
            fabric._become_primaries(range(len(fabric._placed)), patience_s)
        except BaseException:
            fabric.close()
            raise
        return fabric

    def _become_primaries(self, switches: Iterable[int], patience_s: float) -> None:
        # In an order that all controllers keep to: no two wait for each other.
        for switch in sorted(switches, key=lambda one: _identity(self._placed[one][1])):
            self._placed[switch][0].become_primary(self._election_id, patience_s=patience_s)

    def become_backup(self) -> None:
        """Leave all switches to other controllers, and look on from now on."""
        for controller, _ in self._placed:
            controller.become_backup()

    @contextmanager
    def as_primary(self, *switches: int, patience_s: float = 0.0) -> Iterator[None]:
        """Be in charge of some switches, by their places in the description, or of all.

        Then stands back from those that it was not in charge of before. Raises what `connect` raises.
        """
        wanted = switches or range(len(self._placed))
        taken = [switch for switch in wanted if not self._placed[switch][0].is_primary]
        try:
            self._become_primaries(taken, patience_s)
            yield
        finally:
            for switch in taken:
                self._placed[switch][0].become_backup()

    def reconnect(self, switch: int, *, timeout_s: float = 4.0) -> None:
        """Look on anew at one switch, by its place in the description. Raises SwitchError; then as before."""
        controller, plan = self._placed[switch]
        self._placed[switch] = (_observed(plan, timeout_s), plan)
        controller.close()

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

    def load_pipeline(self, json_path: Path, p4info_path: Path, *, force: bool = False) -> int:
        """Commit a compiled pipeline on all switches that do not run it yet; on how many.

        Raises ControlError, also for a switch that runs another one of ours with jobs besides this: they
        would be gone.
        """
        if not force:
            for controller, plan in self._placed:
                if controller.runs(json_path, p4info_path) is False:
                    _check_idle(controller, plan)
        return sum(
            controller.load_pipeline(json_path, p4info_path, force=force) for controller, _ in self._placed
        )

    def give_pipeline(self, switch: int, json_path: Path, p4info_path: Path) -> None:
        """Commit a compiled pipeline on a switch that runs none. Raises ControlError if it runs another."""
        controller, plan = self._placed[switch]
        if controller.runs(json_path, p4info_path) is False:
            raise ControlError(
                f"job: {plan.job_id}: {plan.switch.p4runtime} runs another program now, which somebody else "
                "loaded; admit the job again to have it replaced"
            )
        controller.load_pipeline(json_path, p4info_path)

    def admit(self) -> Admission:
        """Let the job in everywhere, in one new generation; whatever was left of an earlier one is gone.

        Closed everywhere, from the workers upwards, before any slot is freed, and opened from the server
        downwards after all are prepared: no packet meets half an admission. Should a switch fail on the way,
        the job is closed or partly so, and the next admission starts over in a generation of its own.
        Takes charge for it where need be. Raises DescriptionError before anything is changed, SwitchError
        if a switch refuses.
        """
        with self.as_primary(patience_s=_PATIENCE_S):
            return self._admit()

    def _admit(self) -> Admission:
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
        """Let the job's packets in no more, on any switch; takes charge for it where need be.

        Raises ControlError if no switch has the job.
        """
        with self.as_primary(patience_s=_PATIENCE_S):
            self._evict()

    def _evict(self) -> None:
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


def _identity(plan: SwitchPlan) -> tuple[str, int]:
    return plan.switch.p4runtime, plan.switch.device_id


def _observed(plan: SwitchPlan, timeout_s: float) -> Controller:
    return Controller.observe(*_identity(plan), timeout_s=timeout_s)


def _check_idle(controller: Controller, plan: SwitchPlan) -> None:
    """Raise DescriptionError if another pipeline of ours has other jobs let in."""
    lanes = controller.lanes_if_ours()
    others = [job.job_id for job in controller.jobs() if job.job_id != plan.job_id] if lanes else []
    if others:
        raise DescriptionError(
            f"{plan.section}.pipeline_lanes: {plan.switch.pipeline_lanes}: {plan.switch.p4runtime} runs "
            f"another program, of {lanes} lanes, with jobs {', '.join(map(str, others))}; evict them first, "
            f"or ask for {lanes} lanes if it is as new"
        )
