"""Admits jobs to a switch and evicts them, over P4Runtime only, so that any target with our program will do.

Owns the order in which a job's state changes. Tables and actions go by their P4Info names; what a pipeline
can hold is learned from its P4Info.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from finsy.p4entity import (
    P4CounterEntry,
    P4MulticastGroupEntry,
    P4TableAction,
    P4TableEntry,
    P4TableMatch,
)
from finsy.p4schema import P4Schema
from google.protobuf import text_format

from peelsum.control.description import JobDescription
from peelsum.control.entries import (
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
from peelsum.control.errors import ControlError, DescriptionError, SwitchError
from peelsum.control.resets import reset, slot_owners, slots_to_reset
from peelsum.control.session import Session
from peelsum.wire import Verdict

_LANE_REGISTER = re.compile(r"(?:^|\.)lane_\d+$")
_GENERATIONS = 1 << 16
#: Generations of a job that the switch has forgotten come from the clock; it comes round after 4.5 hours.
_GENERATION_S = 0.25


@dataclass(frozen=True)
class Admission:
    """What participants of an admitted job have to know."""

    job_id: int
    generation: int
    workers: int
    window: int
    lanes: int
    slots: int
    server_port: int
    worker_ports: tuple[int, ...]


@dataclass(frozen=True)
class AdmittedJob:
    """A job as the switch's tables have it; `worker_ports` is by worker id."""

    job_id: int
    generation: int
    expected_mask: int
    server_port: int
    worker_ports: dict[int, int]


@dataclass(frozen=True)
class SwitchStatus:
    """What a switch does at the moment. `slots_in_use` is by job; None where registers cannot be read."""

    address: str
    lanes: int
    slots: int
    jobs: tuple[AdmittedJob, ...]
    verdicts: dict[Verdict, int]
    slots_in_use: dict[int, int] | None


class Controller:
    """The primary controller of one switch, as a context manager."""

    def __init__(self, session: Session, clock: Callable[[], float] = time.time) -> None:
        self._session = session
        self._clock = clock
        # Jobs that cannot have left anything in the slots: all but these, after a fresh commit.
        self._fresh = False
        self._seen: set[int] = set()

    @classmethod
    def connect(
        cls, address: str, device_id: int = 1, *, election_id: int = 1, timeout_s: float = 4.0
    ) -> Controller:
        """Take charge of a switch. Raises SwitchError if it cannot be reached or has another controller."""
        return cls(Session(address, device_id, election_id=election_id, timeout_s=timeout_s))

    @classmethod
    def observe(cls, address: str, device_id: int = 1, *, timeout_s: float = 4.0) -> Controller:
        """Look at a switch beside whoever is in charge of it; all that changes something is refused."""
        return cls(Session(address, device_id, election_id=None, timeout_s=timeout_s))

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the switch to another controller; it keeps running as it is."""
        self._session.close()

    # Pipeline

    def load_pipeline(self, json_path: Path, p4info_path: Path, *, force: bool = False) -> bool:
        """Commit a compiled pipeline, unless the switch runs it already or `force` is set.

        Returns whether it was committed; then all jobs and slots are gone. Raises ControlError.
        """
        try:
            wanted = P4Schema(p4info_path, json_path.read_bytes())
        except OSError as error:
            raise ControlError(
                f"pipeline: {error.filename}: {error.strerror}; run `peelsum switch compile`"
            ) from None
        except (text_format.ParseError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ControlError(f"pipeline: {p4info_path}: is no P4Info ({reason}); rebuild it") from None
        if self._session.runs(wanted) and not force:
            return False
        self._session.commit(wanted)
        self._fresh, self._seen = True, set()
        return True

    def lanes(self) -> int:
        """32-bit values per packet in the running pipeline. Raises SwitchError if it is not ours."""
        registers = self._session.loaded().registers
        lanes = sum(1 for register in registers if _LANE_REGISTER.search(register.name))
        if not lanes:
            raise SwitchError(
                f"switch: the pipeline of {self._session.address} is not peelsum's; load that first"
            )
        return lanes

    def slots(self) -> int:
        """Chunks that the running pipeline can sum at once. Raises SwitchError if it is not ours."""
        register = self._session.loaded().registers.get("worker_bitmap")
        if register is None:
            raise SwitchError(
                f"switch: the pipeline of {self._session.address} is not peelsum's; load that first"
            )
        return register.size

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

    def admit(self, description: JobDescription) -> Admission:
        """Let a job in, in a new generation; whatever was left of an earlier one is gone.

        The job's row is closed first and opened last, so that no packet meets half an admission.
        Raises DescriptionError if the pipeline cannot hold the job, SwitchError if the switch refuses.
        """
        lanes, slots = self.lanes(), self.slots()
        _check_fits(description, lanes, slots)
        self._refuse_moved_hosts(description)
        job, switch, ports = description.job, description.switch, description.ports
        generation = self._next_generation(job.id)
        self._close(job.id, generation)
        self._free_slots(job.id)
        self._set_hosts(description)
        self._session.write([+entry for entry in participant_entries(description)])
        self._session.write([+group_entry(description)])
        self.set_limits(age_limit_ms=switch.age_limit_ms, queue_depth=switch.queue_depth)
        self._session.write([~job_entry(description, generation)])
        return Admission(
            job.id, generation, job.workers, job.window, lanes, slots, ports.server, ports.workers
        )

    def evict(self, job_id: int) -> None:
        """Let a job's packets in no more. Raises ControlError if there is no such job."""
        admitted = {job.job_id: job.generation for job in self._jobs()}
        if job_id not in admitted:
            known = ", ".join(map(str, admitted)) or "none"
            raise ControlError(f"job: {job_id}: is not admitted; admitted: {known}")
        self._close(job_id, admitted[job_id])

    def _refuse_moved_hosts(self, description: JobDescription) -> None:
        """Two jobs may share a port, as the switch tells them apart by their id; two hosts may not."""
        others = self._ports_in_use(besides=description.job.id)
        wanted = {int(name): host for name, host in description.hosts.items()}
        for entry in self._entries("hosts") if wanted else ():
            port, action = entry["egress_port"], entry.action
            host = wanted.get(port)
            if host is None or port not in others or not isinstance(action, P4TableAction):
                continue
            if (action.args["dst_mac"], action.args["dst_ip"]) != (host.mac, host.ip):
                raise DescriptionError(
                    f"hosts.{port}: has another address for job {others[port]}; evict that job first"
                )

    def _ports_in_use(self, besides: int) -> dict[int, int]:
        """The ports of all jobs but one, and a job that uses each."""
        return {
            entry["ingress_port"]: entry["job_id"]
            for entry in self._entries("members")
            if entry["job_id"] != besides
        }

    def _free_slots(self, job_id: int) -> None:
        """Whatever an earlier generation left; after a fresh commit there is none."""
        left_nothing = self._fresh and job_id not in self._seen
        self._seen.add(job_id)
        if not left_nothing:
            reset(self._session, slots_to_reset(self._session, job_id, self.slots()), self.lanes())

    def _next_generation(self, job_id: int) -> int:
        for job in self._jobs(closed=True):
            if job.job_id == job_id:
                return (job.generation + 1) % _GENERATIONS
        return int(self._clock() / _GENERATION_S) % _GENERATIONS

    def _close(self, job_id: int, generation: int) -> None:
        """Let a job's packets in no more. Its row in `jobs` stays, to remember the generation.

        A generation that came again would let in what those send who were in it before.
        """
        closed = closed_job_entry(job_id, generation)
        present = self._entries("jobs", P4TableMatch(job_id=job_id))
        self._session.write([~closed if present else +closed])
        stale: list[P4TableEntry] = []
        for table in ("members", "return_paths"):
            stale += [entry for entry in self._entries(table) if entry["job_id"] == job_id]
        others = self._ports_in_use(besides=job_id)
        stale += [entry for entry in self._entries("hosts") if entry["egress_port"] not in others]
        for entry in stale:
            entry.action = None
        self._session.write([-entry for entry in stale])
        group = group_of(job_id)
        if list(self._session.read(P4MulticastGroupEntry(group))):
            self._session.write([-P4MulticastGroupEntry(group)])

    def _set_hosts(self, description: JobDescription) -> None:
        present = {entry["egress_port"] for entry in self._entries("hosts")} if description.hosts else set()
        updates = []
        for name, host in description.hosts.items():
            assert description.switch.address is not None  # the description's own check
            entry = host_entry(int(name), host, description.switch.address)
            updates.append(~entry if int(name) in present else +entry)
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
            jobs=tuple(self._jobs()),
            verdicts=self.verdicts(),
            slots_in_use=self._slots_in_use(),
        )

    def _jobs(self, *, closed: bool = False) -> list[AdmittedJob]:
        """The jobs that are let in; with `closed`, those too that no longer are."""
        workers: dict[int, dict[int, int]] = {}
        for entry in self._entries("members"):
            action = entry.action
            if isinstance(action, P4TableAction) and action.name == "admit_worker":
                workers.setdefault(entry["job_id"], {})[action.args["worker_id"]] = entry["ingress_port"]
        jobs = []
        for entry in self._entries("jobs"):
            args = entry.action.args if isinstance(entry.action, P4TableAction) else {}
            if args and (closed or args["expected_mask"]):
                ports = dict(sorted(workers.get(entry["job_id"], {}).items()))
                jobs.append(
                    AdmittedJob(
                        entry["job_id"], args["generation"], args["expected_mask"], args["up_port"], ports
                    )
                )
        return sorted(jobs, key=lambda job: job.job_id)

    def _slots_in_use(self) -> dict[int, int] | None:
        owners = slot_owners(self._session)
        return None if owners is None else dict(Counter(owners.values()))

    def _entries(self, table: str, match: P4TableMatch | None = None) -> list[P4TableEntry]:
        schema = self._session.loaded()
        found: Iterable[P4TableEntry] = (
            P4TableEntry.decode(entity, schema)
            for entity in self._session.read(P4TableEntry(table, match=match))
        )
        return list(found)


def _check_fits(description: JobDescription, lanes: int, slots: int) -> None:
    wanted = description.switch.pipeline_lanes
    if wanted != lanes:
        raise DescriptionError(
            f"switch.pipeline_lanes: {wanted}: the switch runs {lanes} lanes; "
            f"load that pipeline or ask for {lanes}"
        )
    if 2 * description.job.window > slots:
        raise DescriptionError(
            f"job.window: {description.job.window}: at most half of the switch's {slots} slots; "
            f"use {slots // 2} or less"
        )
