"""The controller of jobs: which are desired, in which generation, and a loop that keeps them on switches.

Here it shares its switches and remembers its jobs in memory; `cluster.py` adds a file, election and a backup.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import lru_cache
from threading import RLock
from typing import Any

from peelsum.control import admission
from peelsum.control.cluster.store import MemoryStore, Store, StoredJob
from peelsum.control.cluster.switches import (
    KINDS,
    Event,
    ManagedSwitch,
    SharedSwitch,
    Wanted,
)
from peelsum.control.description import AnyDescription, JobDescription, parse_description
from peelsum.control.drivers import program_files
from peelsum.control.errors import ControlError, HeldError
from peelsum.control.plan import SwitchPlan
from peelsum.control.session import Session, pipeline_schema
from peelsum.control.status import read_jobs
from peelsum.control.tables import Placement, close_job, known_generation
from peelsum.tls import Identity
from peelsum.wire import Verdict


class JobController:
    """A controller of jobs, as a context manager. Without a file, its jobs are forgotten at `close`.

    Theory of operation. The store says which jobs are admitted, in which generation; the switches follow. An
    admission writes the switches first and the store last, an eviction the other way round. So if a
    controller ends in between, the next check makes the switches agree with the store.

    Switches are those of the jobs' descriptions. Other controllers admit their jobs there, too, so a job that
    somebody else ended is desired no more, which an event of kind `ended` says.
    """

    def __init__(
        self,
        *,
        store: Store | MemoryStore | None = None,
        identity: Identity | None = None,
        tell: Callable[[Event], None] = lambda event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """identity: as for `Session`. tell: called with every event."""
        self._store = store or MemoryStore()
        self._identity, self._clock = identity, clock
        self._tell_caller = tell
        self._switches: dict[tuple[str, int], ManagedSwitch] = {}
        self._epoch = 1
        self._changing = RLock()
        self._counts: Counter[tuple[str, int | None]] = Counter()

    def __enter__(self) -> JobController:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections. The switches keep running as they are, and others may hold the jobs."""
        for switch in self._switches.values():
            switch.close()

    # The loop

    def poll(self) -> None:
        """Check every switch once, and restore what it lost."""
        for switch in list(self._switches.values()):
            self.keep(switch)

    def keep(self, switch: ManagedSwitch) -> None:
        """Correct a switch's tables, if this controller is the primary."""
        with switch.lock:
            epoch = self._epoch
            if not epoch or self._store.leader().epoch != epoch:
                return
            # Read the store with the lock held: an admission that holds it has not written the store yet.
            for event in switch.keep(epoch, self._wanted(switch)):
                if event.kind == "ended" and event.job_id is not None:
                    self._store.evict(epoch, event.job_id)
                self.tell(event)

    def tell(self, event: Event) -> None:
        """Count an event, and pass it to the caller."""
        self._counts[event.kind, event.job_id] += 1
        self._tell_caller(event)

    def counts(self, job_id: int | None = None) -> dict[str, int]:
        """Return how often each kind of event has happened: to any job, or to one job or to none."""
        found: dict[str, int] = dict.fromkeys(KINDS, 0)
        for (kind, number), count in self._counts.items():
            if job_id is None or number in (job_id, None):
                found[kind] += count
        return found

    def is_up(self, job: AnyDescription) -> bool:
        """Return whether all switches of a job responded at their last check."""
        return not any(switch.trouble for switch in self._switches_of(job.plans()))

    def generation(self, job_id: int) -> int | None:
        """Return the generation in which a job is desired; None for none."""
        known = self._store.job(job_id)
        return known.generation if known and known.admitted else None

    # Jobs

    def hold(self, job: AnyDescription) -> None:
        """Connect to a job's switches, hold the job, and load pipelines. Raises as `admit_job`."""
        with self._writing(job.plans()):
            pass

    def release(self, job: AnyDescription) -> None:
        """Stop holding a job."""
        for switch in self._switches_of(job.plans()):
            with switch.lock:
                switch.release(job.job.id)

    def admit_job(self, job: AnyDescription, *, is_new: bool = False, **options: Any) -> dict[str, Any]:
        """Admit a job, or admit it again, in a new generation; return its admission, for its participants.

        No packet meets a half-configured job. is_new: no switch may have a job of this number. options:
        `free` and `secret`, as for `admission.admit`. Raises DescriptionError before anything is changed,
        HeldError if another controller holds the job or has admitted a job that must be new, SwitchError if a
        switch refuses or cannot be reached.
        """
        return self._admit(job, job, "", is_new=is_new, **options)

    def _admit(
        self,
        job: AnyDescription,
        description: str | AnyDescription,
        digest: str,
        *,
        is_new: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        job_id, plans = job.job.id, job.plans()
        with self._changing:
            epoch, known = self._leading(), self._permitted(job_id, digest)
            with self._writing(plans) as sessions, ExitStack() as doubts:
                for switch in self._switches_of(plans):
                    doubts.callback(switch.doubt)
                placements = [Placement(*pair) for pair in zip(sessions, plans, strict=True)]
                if is_new and any(
                    known_generation(session, job_id, closed=False) is not None for session in sessions
                ):
                    raise HeldError(f"job.id: {job_id}: is another controller's; choose another")
                generations = [known.generation] if known else []
                admitted = admission.admit(job, placements, self._clock(), known=generations, **options)
                self._store.admit(
                    epoch,
                    StoredJob(job_id, True, admitted.generation, description, digest, admitted.secret),
                )
                doubts.pop_all()  # nothing failed half-way
        text = f"job: {job_id}: admitted in generation {admitted.generation}"
        self.tell(Event("admitted", text, job_id, admitted.generation))
        return {**asdict(admitted), "timeout_s": job.job.timeout_s}

    def evict(self, job_id: int, token: str = "") -> dict[str, Any]:
        """Evict a job; return the switches that are away, as `waiting`. Raises ControlError."""
        with self._changing:
            epoch, known = self._leading(), self._permitted(job_id, digest_of(token))
            if known is None or not known.admitted:
                others = ", ".join(str(job.job_id) for job in self._store.jobs()) or "none"
                raise ControlError(f"job: {job_id}: is not admitted; admitted: {others}")
            plans = [plan for plan in plans_of(known) if plan.switch.place in self._switches]
            with _locked(self._switches_of(plans)):
                self._store.evict(epoch, job_id)
                switches = self._switches_of(plans[::-1])
                waiting = [one.name for one in switches if not one.evict(epoch, job_id, known.generation)]
        self.tell(Event("evicted", f"job: {job_id}: evicted", job_id))
        return {"waiting": waiting}

    def evict_at(self, job: JobDescription, ports: Collection[int]) -> list[int]:
        """Evict a switch's jobs that have only these ports; return their numbers.

        Raises SwitchError, HeldError if another controller holds one of them.
        """
        with self._writing(job.plans()) as (session,):
            idle = {
                one.job_id: one.generation
                for one in read_jobs(session)
                if {one.server_port, *one.worker_ports.values()} <= set(ports)
            }
            for job_id, generation in idle.items():
                session.check_unheld(job_id)
                close_job(session, job_id, generation)
        return list(idle)

    def verdicts(self, job: AnyDescription) -> list[dict[Verdict, int]]:
        """Return how many packets met each verdict, by switch of a job. Raises SwitchError."""
        return [switch.verdicts() for switch in self._switches_of(job.plans())]

    @contextmanager
    def _writing(self, plans: Sequence[SwitchPlan]) -> Iterator[list[Session]]:
        """Yield the primary's sessions with a job's switches, which are locked, and run their pipelines."""
        switches = self._switches_of(plans)
        pairs = list(zip(switches, plans, strict=True))
        with _locked(switches), ExitStack() as stack:
            for switch, plan in pairs:
                self._before_writing(switch, plan)
            # All controllers take switches in the same order: no two wait for each other.
            sessions = {
                switch: stack.enter_context(switch.writing(self._epoch, plan.job_id))
                for switch, plan in sorted(pairs, key=lambda pair: pair[1].switch.place)
            }
            for switch, plan in pairs:
                switch.load_pipeline(sessions[switch], plan)
            yield [sessions[switch] for switch in switches]

    def _before_writing(self, switch: ManagedSwitch, plan: SwitchPlan) -> None:
        switch.hold(plan.job_id)

    def _switches_of(self, plans: Sequence[SwitchPlan]) -> list[ManagedSwitch]:
        return [self._switch_of(plan) for plan in plans]

    def _switch_of(self, plan: SwitchPlan) -> ManagedSwitch:
        place = plan.switch.place
        if place not in self._switches:
            pipeline = pipeline_schema(*program_files(plan.switch.pipeline_lanes, plan.switch.tofino))
            self._switches[place] = SharedSwitch(plan.switch, pipeline, self._identity)
        return self._switches[place]

    def _wanted(self, switch: ManagedSwitch) -> dict[int, Wanted]:
        return {
            job.job_id: Wanted(plan, job.generation, job.secret)
            for job in self._store.jobs()
            for plan in plans_of(job)
            if plan.switch.place == switch.described.place
        }

    def _leading(self) -> int:
        """Return the epoch. Raises BackupError if this controller is not the primary."""
        return self._epoch

    def _permitted(self, job_id: int, digest: str) -> StoredJob | None:
        """Return the job as it was last admitted. Raises ControlError if a change needs another token."""
        return self._store.job(job_id)


def plans_of(job: StoredJob) -> tuple[SwitchPlan, ...]:
    """Return what each switch of a stored job gets."""
    return _plans(job.description) if isinstance(job.description, str) else job.description.plans()


@lru_cache(maxsize=512)
def _plans(description: str) -> tuple[SwitchPlan, ...]:
    return parse_description(description).plans()


def digest_of(token: str) -> str:
    """Return what is stored of a token. Raises ValueError if it is not Unicode text."""
    try:
        return hashlib.sha256(token.encode()).hexdigest() if token else ""
    except UnicodeEncodeError:
        raise ValueError("token: is not Unicode text; make one: peelsum certificates token FILE") from None


@contextmanager
def _locked(switches: Iterable[ManagedSwitch]) -> Iterator[None]:
    """Hold the locks of several switches."""
    with ExitStack() as stack:
        for switch in sorted(switches, key=lambda one: one.described.place):
            stack.enter_context(switch.lock)
        yield
