"""Admits jobs to a switch and evicts them, over P4Runtime only, so that any target with our program will do.

Owns the order in which a job's state changes. Tables and actions go by their P4Info names; what a pipeline
can hold is learned from its P4Info.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from finsy.p4entity import (
    P4CounterEntry,
    P4MulticastGroupEntry,
    P4TableAction,
    P4TableEntry,
    P4TableMatch,
)

from peelsum.control.responses import Admission, AdmittedJob, SwitchStatus
from peelsum.control.description import JobDescription
from peelsum.control.entries import (
    PROBE_GROUP,
    age_limit_entry,
    age_limit_ticks,
    closed_job_entry,
    group_entry,
    group_of,
    host_entry,
    job_entry,
    participant_entries,
    queue_limit_entry,
)
from peelsum.control.errors import ControlError, DescriptionError, RefusedError, SwitchError
from peelsum.control.forwarding import forward_others
from peelsum.control.plan import SwitchPlan
from peelsum.control.resets import reset, slot_owners, slots_to_reset, stale_slots
from peelsum.control.session import Session, pipeline_schema
from peelsum.wire import MAX_WORKERS, Level, Verdict, lanes_in

_GENERATIONS = 1 << 16
#: Generations of a job that the switch has forgotten come from the clock; it comes round after 4.5 hours.
_GENERATION_S = 0.25


class Controller:
    """The primary controller of one switch, as a context manager."""

    def __init__(self, session: Session, clock: Callable[[], float] = time.time) -> None:
        self._session = session
        self._clock = clock

    @classmethod
    def connect(
        cls,
        address: str,
        device_id: int = 1,
        *,
        election_id: int = 1,
        timeout_s: float = 4.0,
        patience_s: float = 0.0,
    ) -> Controller:
        """Take charge of a switch.

        Raises SwitchError if it cannot be reached, NotPrimaryError as `become_primary`.
        """
        controller = cls.observe(address, device_id, timeout_s=timeout_s)
        try:
            controller.become_primary(election_id, patience_s=patience_s)
        except BaseException:
            controller.close()
            raise
        return controller

    @classmethod
    def observe(cls, address: str, device_id: int = 1, *, timeout_s: float = 4.0) -> Controller:
        """Look at a switch beside whoever is in charge of it; all that changes something is refused."""
        return cls(Session(address, device_id, timeout_s=timeout_s))

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the switch to another controller; it keeps running as it is."""
        self._session.close()

    @property
    def is_primary(self) -> bool:
        """Whether this is the primary, as far as is known."""
        return self._session.is_primary

    def become_primary(self, election_id: int = 1, *, patience_s: float = 0.0) -> None:
        """Become the primary. Raises NotPrimaryError if another controller still is after `patience_s`."""
        self._session.become_primary(election_id, patience_s=patience_s)

    def become_backup(self) -> None:
        """Leave the switch to other controllers, and look on."""
        self._session.become_backup()

    # Pipeline

    def runs(self, json_path: Path, p4info_path: Path) -> bool | None:
        """Whether the switch runs exactly this pipeline; None if it runs none. Raises ControlError."""
        if self._session.schema is None:
            return None
        return self._session.runs(pipeline_schema(json_path, p4info_path))

    def load_pipeline(self, json_path: Path, p4info_path: Path, *, force: bool = False) -> bool:
        """Commit a compiled pipeline, unless the switch runs it already or `force` is set.

        Returns whether it was committed; then all jobs and slots are gone. Raises ControlError.
        """
        wanted = pipeline_schema(json_path, p4info_path)
        if self._session.runs(wanted) and not force:
            return False
        self._session.commit(wanted)
        return True

    def lanes(self) -> int:
        """32-bit values per packet in the running pipeline. Raises SwitchError if it is not ours."""
        lanes = self.lanes_if_ours()
        if not lanes:
            raise SwitchError(
                f"switch: the pipeline of {self._session.address} is not peelsum's; load that first"
            )
        return lanes

    def lanes_if_ours(self) -> int:
        """As `lanes`, but 0 if the pipeline is not ours. Raises SwitchError if there is none."""
        return lanes_in(register.name for register in self._session.loaded().registers)

    def slots(self) -> int:
        """Chunks that the running pipeline can sum at once. Raises SwitchError if it is not ours."""
        self.lanes()
        return self._session.loaded().registers["worker_bitmap"].size

    def set_limits(self, *, age_limit_ms: float | None = None, queue_depth: int | None = None) -> None:
        """Change limits; None leaves one as it is.

        age_limit_ms: how long slots keep chunks; 0 is not at all, infinity for ever.
        queue_depth: from how many queued packets on later ones are marked.
        """
        entries = []
        if age_limit_ms is not None:
            if not age_limit_ms >= 0:
                raise ControlError(f"age_limit_ms: {age_limit_ms}: must be 0 or more, or infinite")
            entries.append(~age_limit_entry(age_limit_ticks(age_limit_ms)))
        if queue_depth is not None:
            entries.append(~queue_limit_entry(queue_depth))
        self._session.write(entries)

    # Jobs

    def admit(self, description: JobDescription, *, free_slots: bool = True) -> Admission:
        """Let a job in, in a new generation; whatever was left of an earlier one is gone.

        The job's row is closed first and opened last, so that no packet meets half an admission.
        free_slots: False where the switch has just started, and so holds nothing: it need not forward yet.
        Raises DescriptionError if the pipeline cannot hold the job, SwitchError if the switch refuses.
        """
        (plan,) = description.plans()
        self.check(plan)
        known = self.known_generation(plan.job_id)
        generation = self.next_generation([] if known is None else [known])
        self.close_job(plan.job_id, generation)
        if free_slots:
            self.free_slots(plan.job_id)
        self.prepare(plan)
        self.open_job(plan, generation)
        return Admission(
            plan.job_id,
            generation,
            description.job.workers,
            plan.window,
            self.lanes(),
            self.slots(),
            description.server_port,
            description.worker_ports,
        )

    def evict(self, job_id: int) -> None:
        """Let a job's packets in no more. Raises ControlError if there is no such job."""
        admitted = {job.job_id: job.generation for job in self.jobs()}
        if job_id not in admitted:
            known = ", ".join(map(str, admitted)) or "none"
            raise ControlError(f"job: {job_id}: is not admitted; admitted: {known}")
        self.close_job(job_id, admitted[job_id])

    # The steps of an admission, for who admits a job on several switches

    def check(self, plan: SwitchPlan) -> None:
        """Raise DescriptionError if pipeline or ports cannot hold the job, or a port's host is another.

        Two jobs may share a port, as the switch tells them apart by their id; two hosts may not.
        """
        _check_fits(plan, self.lanes(), self.slots())
        self._check_ports(plan)
        others = self._ports_in_use(besides=plan.job_id)
        for entry in self._session.entries("hosts") if plan.hosts else ():
            port, action = entry["egress_port"], entry.action
            host = plan.hosts.get(port)
            if host is None or port not in others or not isinstance(action, P4TableAction):
                continue
            if (action.args["dst_mac"], action.args["dst_ip"]) != (host.mac, host.ip):
                where = "" if plan.level is Level.ONLY else f"{plan.section}."
                raise DescriptionError(
                    f"{where}hosts.{port}: has another address for job {others[port]}; evict that job first"
                )

    def _check_ports(self, plan: SwitchPlan) -> None:
        """Raise DescriptionError for ports that the switch says it does not have. BMv2 has them all.

        P4Runtime has no list of ports, but a switch may refuse to copy packets to one that is not there.
        """
        missing: dict[int, str] = {}
        for port in plan.ports:
            probe = P4MulticastGroupEntry(PROBE_GROUP, replicas=[port])
            try:
                self._session.write([+probe, -P4MulticastGroupEntry(PROBE_GROUP)])
            except RefusedError as error:
                missing[port] = error.reason
        if missing:
            section = "" if plan.level is Level.ONLY else f"{plan.section}."
            ports, reason = ", ".join(map(str, missing)), next(iter(missing.values()))
            raise DescriptionError(
                f"{section}ports: {ports}: {plan.switch.p4runtime} refuses them ({reason}); use its own"
            )

    def known_generation(self, job_id: int, *, closed: bool = True) -> int | None:
        """The last generation of a job that the switch remembers; without `closed`, only if it is let in."""
        for entry in self._session.entries("jobs", P4TableMatch(job_id=job_id)):
            action = entry.action
            if isinstance(action, P4TableAction) and (closed or action.args["expected_mask"]):
                generation: int = action.args["generation"]
                return generation
        return None

    def next_generation(self, known: Sequence[int]) -> int:
        """A generation that is none of those that switches remember."""
        if not known:
            return int(self._clock() / _GENERATION_S) % _GENERATIONS
        ahead = (max(known) + 1 + step for step in range(len(known) + 1))
        return next(one % _GENERATIONS for one in ahead if one % _GENERATIONS not in known)

    def _ports_in_use(self, besides: int) -> dict[int, int]:
        """The ports of all jobs but one, and a job that uses each."""
        return {
            entry["ingress_port"]: entry["job_id"]
            for entry in self._session.entries("members")
            if entry["job_id"] != besides
        }

    def free_slots(self, job_id: int) -> None:
        """Free what an earlier generation left, and what looks live though nobody used it for long.

        A pipeline that was just committed needs it, too: its slots are empty, but their stamps say time 0, of
        a clock that may have gone on for days.
        """
        reset(self._session, slots_to_reset(self._session, job_id, self.slots()), self.lanes())
        reset(self._session, stale_slots(self._session, self.slots(), self.lanes()), self.lanes())

    def prepare(self, plan: SwitchPlan) -> None:
        """Put in all of a closed job but the row that lets it in."""
        self._set_hosts(plan)
        self._session.write([+entry for entry in participant_entries(plan)])
        self._session.write([+group_entry(plan)])
        self.set_limits(age_limit_ms=plan.switch.age_limit_ms, queue_depth=plan.switch.queue_depth)
        forward_others(self._session, plan.switch)

    def open_job(self, plan: SwitchPlan, generation: int) -> None:
        """Let a prepared job's packets in."""
        self._session.write([~job_entry(plan, generation)])

    def close_job(self, job_id: int, generation: int) -> None:
        """Let a job's packets in no more. Its row in `jobs` stays, to remember the generation.

        A generation that came again would let in what those send who were in it before.
        """
        closed = closed_job_entry(job_id, generation)
        present = self._session.entries("jobs", P4TableMatch(job_id=job_id))
        self._session.write([~closed if present else +closed])
        stale: list[P4TableEntry] = []
        for table in ("members", "return_paths"):
            stale += [entry for entry in self._session.entries(table) if entry["job_id"] == job_id]
        others = self._ports_in_use(besides=job_id)
        stale += [entry for entry in self._session.entries("hosts") if entry["egress_port"] not in others]
        for entry in stale:
            entry.action = None
        self._session.write([-entry for entry in stale])
        group = group_of(job_id)
        if list(self._session.read(P4MulticastGroupEntry(group))):
            self._session.write([-P4MulticastGroupEntry(group)])

    def _set_hosts(self, plan: SwitchPlan) -> None:
        present = {entry["egress_port"] for entry in self._session.entries("hosts")} if plan.hosts else set()
        updates = []
        for port, host in plan.hosts.items():
            assert plan.switch.address is not None  # the description's own check
            entry = host_entry(port, host, plan.switch.address)
            updates.append(~entry if port in present else +entry)
        self._session.write(updates)

    # Reading

    def verdicts(self) -> dict[Verdict, int]:
        """How many packets met each verdict since the pipeline was loaded."""
        counted = dict.fromkeys(Verdict, 0)
        for entity in self._session.read(P4CounterEntry("verdicts")):
            index = entity.counter_entry.index.index
            if index < len(counted):
                counted[Verdict(index)] = entity.counter_entry.data.packet_count
        return counted

    def status(self) -> SwitchStatus:
        """Everything an operator wants to see at once."""
        return SwitchStatus(
            address=self._session.address,
            lanes=self.lanes(),
            slots=self.slots(),
            jobs=tuple(self.jobs()),
            verdicts=self.verdicts(),
            slots_in_use=self._slots_in_use(),
        )

    def jobs(self, *, closed: bool = False) -> list[AdmittedJob]:
        """The jobs that are let in, by number; with `closed`, those too that no longer are."""
        workers: defaultdict[int, dict[int, int]] = defaultdict(dict)
        racks: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for entry in self._session.entries("members"):
            action, job_id, port = entry.action, entry["job_id"], entry["ingress_port"]
            if isinstance(action, P4TableAction) and action.name == "admit_worker":
                workers[job_id][action.args["worker_id"]] = port
            elif isinstance(action, P4TableAction) and action.name == "admit_rack":
                racks[job_id][action.args["first_worker"] // MAX_WORKERS] = port
        jobs = []
        for entry in self._session.entries("jobs"):
            action, job_id = entry.action, entry["job_id"]
            if isinstance(action, P4TableAction) and (closed or action.args["expected_mask"]):
                jobs.append(_admitted(job_id, action, workers[job_id], racks[job_id]))
        return sorted(jobs, key=lambda job: job.job_id)

    def _slots_in_use(self) -> dict[int, int] | None:
        owners = slot_owners(self._session)
        return None if owners is None else dict(Counter(owners.values()))


def _admitted(job_id: int, row: P4TableAction, workers: dict[int, int], racks: dict[int, int]) -> AdmittedJob:
    return AdmittedJob(
        job_id=job_id,
        generation=row.args["generation"],
        expected_mask=row.args["expected_mask"],
        server_port=row.args["up_port"],
        worker_ports=dict(sorted(workers.items())),
        rack_ports=dict(sorted(racks.items())),
        level=Level(row.name).name.lower(),
    )


def _check_fits(plan: SwitchPlan, lanes: int, slots: int) -> None:
    wanted = plan.switch.pipeline_lanes
    if wanted != lanes:
        raise DescriptionError(
            f"{plan.section}.pipeline_lanes: {wanted}: the switch runs {lanes} lanes; "
            f"load that pipeline or ask for {lanes}"
        )
    if 2 * plan.window > slots:
        raise DescriptionError(
            f"job.window: {plan.window}: at most half of the switch's {slots} slots; use {slots // 2} or less"
        )
