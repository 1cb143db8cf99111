"""The controllers of all switches of one job, and operations on all of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from peelsum.control import admission
from peelsum.control.admission import Admission
from peelsum.control.controller import Controller
from peelsum.control.description import AnyDescription
from peelsum.control.errors import ControlError, DescriptionError
from peelsum.control.plan import SwitchPlan
from peelsum.control.session import peelsum_lanes
from peelsum.control.status import SwitchStatus
from peelsum.control.tables import Placement, known_generation
from peelsum.tls import Identity
from peelsum.wire import Verdict

#: How long to wait for another controller, which admits a job or puts one back.
_PATIENCE_S = 10.0


class Fabric:
    """Controllers of a description's switches, the upper one first, as a context manager.

    A switch has one primary at a time, and only the primary writes. The holder of a job is the primary only
    while it writes (`as_primary`). In between, other controllers may admit their jobs.
    """

    def __init__(
        self,
        description: AnyDescription,
        controllers: list[Controller],
        identity: Identity | None = None,
    ) -> None:
        self._description = description
        self._certificate = identity
        self._placed = list(zip(controllers, description.plans(), strict=True))
        self._secret = ""
        self._holds = False

    @classmethod
    def observe(
        cls,
        description: AnyDescription,
        *,
        timeout_s: float = 4.0,
        identity: Identity | None = None,
    ) -> Self:
        """Connect to all switches as a backup. Raises SwitchError if one cannot be reached.

        identity: as for `Session`.
        """
        with ExitStack() as stack:
            controllers = [
                stack.enter_context(_observed(plan, timeout_s, identity)) for plan in description.plans()
            ]
            stack.pop_all()
        return cls(description, controllers, identity)

    @classmethod
    def connect(
        cls,
        description: AnyDescription,
        *,
        timeout_s: float = 4.0,
        patience_s: float = 0.0,
        identity: Identity | None = None,
    ) -> Self:
        """Connect to all switches as their primary, until `become_backup`, and hold the job until `close`.

        Raises SwitchError if one cannot be reached, HeldError if another controller holds the job there,
        NotPrimaryError if one has another primary for longer than `patience_s`. After an error, this
        controller is the primary of none.
        """
        fabric = cls.observe(description, timeout_s=timeout_s, identity=identity)
        try:
            fabric._holds = True
            for controller, plan in fabric._placed:
                controller.session.hold(plan.job_id)
            fabric._become_primaries(range(len(fabric._placed)), patience_s)
        except BaseException:
            fabric.close()
            raise
        return fabric

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections. The switches keep running as they are."""
        for controller, _ in self._placed:
            controller.close()

    @property
    def switches(self) -> tuple[str, ...]:
        """The P4Runtime addresses, in the order of the description's plans."""
        return tuple(plan.switch.p4runtime for _, plan in self._placed)

    # Primary and backup

    def become_backup(self) -> None:
        """Leave the role of primary to other controllers, on all switches."""
        for controller, _ in self._placed:
            controller.become_backup()

    @contextmanager
    def as_primary(self, *switches: int, patience_s: float = 0.0) -> Iterator[None]:
        """Be the primary of some switches, by index, or of all, while the context lasts.

        Afterwards, become the backup of those that this controller was not the primary of before. Raises
        what `connect` raises.
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
        """Replace the connection to one switch, as a backup, which holds the job if it was held.

        Raises SwitchError, HeldError if another controller holds the job now.
        """
        controller, plan = self._placed[switch]
        self._placed[switch] = (_observed(plan, timeout_s, self._certificate), plan)
        controller.close()
        if self._holds:
            self._placed[switch][0].session.hold(plan.job_id)

    def _become_primaries(self, switches: Iterable[int], patience_s: float) -> None:
        # All controllers take switches in the same order: no two wait for each other.
        for switch in sorted(switches, key=lambda one: self._placed[one][1].switch.place):
            self._placed[switch][0].become_primary(patience_s=patience_s)

    # Pipelines

    def load_pipeline(self, json_path: Path, p4info_path: Path) -> int:
        """Commit a compiled pipeline on all switches that do not run it; return on how many.

        Raises ControlError, also for a switch that runs another pipeline of peelsum's with jobs other than
        this one, as these would be lost.
        """
        for controller, plan in self._placed:
            if controller.runs(json_path, p4info_path) is False:
                _check_idle(controller, plan)
        return sum(controller.load_pipeline(json_path, p4info_path) for controller, _ in self._placed)

    def give_pipeline(self, switch: int, json_path: Path, p4info_path: Path) -> None:
        """Commit a compiled pipeline on a switch that runs none. Raises ControlError if it runs another."""
        controller, plan = self._placed[switch]
        if controller.runs(json_path, p4info_path) is False:
            raise ControlError(
                f"job: {plan.job_id}: {plan.switch.p4runtime} runs another program now, which somebody else "
                "loaded; admit the job again to replace it"
            )
        controller.load_pipeline(json_path, p4info_path)

    # The job

    def admit(self) -> Admission:
        """Admit the job to all switches, in one new generation, as their primary.

        No packet meets a half-configured job. If a switch fails on the way, admit again. Raises
        DescriptionError before anything is changed, SwitchError if a switch refuses.
        """
        placements = [Placement(controller.session, plan) for controller, plan in self._placed]
        with self.as_primary(patience_s=_PATIENCE_S):
            admitted = admission.admit(self._description, placements, time.time())
        self._secret = admitted.secret
        return admitted

    def holds(self, switch: int, generation: int) -> bool:
        """Return whether a switch has the running job; False if it lost its tables. Reads one row.

        Raises ControlError if it remembers the job closed or in another generation: only a new admission
        helps. Raises SwitchError if it does not respond, or does not know any more who holds the job.
        """
        controller, plan = self._placed[switch]
        controller.session.check_holds()
        if known_generation(controller.session, plan.job_id, closed=False) == generation:
            return True
        if known_generation(controller.session, plan.job_id) is None:
            return False
        raise ControlError(
            f"job: {plan.job_id}: generation {generation} no longer runs on {plan.switch.p4runtime}; "
            "admit the job again"
        )

    def is_admitted(self) -> bool:
        """Return whether a switch has a job of this number, in any generation. Raises SwitchError."""
        return any(
            known_generation(controller.session, plan.job_id, closed=False) is not None
            for controller, plan in self._placed
        )

    def put_back(self, switch: int, generation: int) -> None:
        """Admit the running job, which `admit` admitted, again to a switch that lost its tables.

        Raises ControlError. Workers and server go on in `generation`; they retransmit the slots' chunks. If
        the switch fails on the way, call this again.
        """
        controller, plan = self._placed[switch]
        admission.put_back(Placement(controller.session, plan), generation, self._secret)

    def evict(self) -> None:
        """Stop letting the job's packets in, on all switches, as their primary.

        Raises ControlError if no switch has the job.
        """
        job_id = self._description.job.id
        with self.as_primary(patience_s=_PATIENCE_S):
            controllers = [one for one, _ in self._placed if any(job.job_id == job_id for job in one.jobs())]
            if not controllers:
                raise ControlError(f"job: {job_id}: is not admitted on any of its switches; admit it first")
            for controller in reversed(controllers):
                controller.evict(job_id)

    def evict_at(self, ports: Collection[int]) -> list[int]:
        """Evict the first switch's jobs that have only these ports, as its primary; return their numbers.

        Raises SwitchError, HeldError if another controller holds one of them.
        """
        controller, _ = self._placed[0]
        found = [
            job.job_id
            for job in controller.jobs()
            if {job.server_port, *job.worker_ports.values()} <= set(ports)
        ]
        for job_id in found:
            controller.session.check_unheld(job_id)
            controller.evict(job_id)
        return found

    def status(self) -> tuple[SwitchStatus, ...]:
        """Return everything that an operator wants to see at once, switch by switch."""
        return tuple(controller.status() for controller, _ in self._placed)

    def verdicts(self) -> tuple[dict[Verdict, int], ...]:
        """Return how many packets met each verdict, switch by switch."""
        return tuple(controller.verdicts() for controller, _ in self._placed)


def _observed(plan: SwitchPlan, timeout_s: float, identity: Identity | None) -> Controller:
    return Controller.observe(
        *plan.switch.place, timeout_s=timeout_s, identity=identity, tofino=plan.switch.tofino
    )


def _check_idle(controller: Controller, plan: SwitchPlan) -> None:
    """Raise DescriptionError if another pipeline of peelsum's has other jobs admitted."""
    lanes = peelsum_lanes(controller.session)
    others = [job.job_id for job in controller.jobs() if job.job_id != plan.job_id] if lanes else []
    if others:
        raise DescriptionError(
            f"{plan.section}.pipeline_lanes: {plan.switch.pipeline_lanes}: {plan.switch.p4runtime} runs "
            f"another program, of {lanes} lanes, with jobs {', '.join(map(str, others))}; evict them first, "
            f"or ask for {lanes} lanes if it is as new"
        )
