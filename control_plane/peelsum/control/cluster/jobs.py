"""The controller of jobs: it admits and evicts jobs, and reconciles the switches with the desired jobs.

This controller shares its switches with others and stores its jobs in memory. The one in `cluster.py` adds a
state file, leader election and a backup.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import lru_cache
from threading import RLock
from typing import Any

from peelsum.control import admission
from peelsum.control.admission import Placement
from peelsum.control.cluster.store import MemoryStore, Store, StoredJob
from peelsum.control.cluster.switches import (
    KINDS,
    DesiredJob,
    Event,
    SharedSwitch,
)
from peelsum.control.description import AnyDescription, JobDescription, SwitchPlan, parse_description
from peelsum.control.drivers import program_files
from peelsum.control.errors import ControlError, LeaseHeldError
from peelsum.control.session import Session, pipeline_schema
from peelsum.control.tables import close_job, known_generation, read_jobs
from peelsum.logs import RateLimit
from peelsum.tls import TlsIdentity
from peelsum.wire import Verdict


class JobController:
    """A controller of jobs, as a context manager.

    Theory of operation. The store has the desired jobs with their generations. An admission writes the
    switches first and the store last; an eviction writes the store first. So if a controller ends in between,
    the next reconciliation makes the switches agree with the store.

    The switches are those of the jobs' descriptions. Other controllers can admit jobs there, too. If somebody
    else ends a job of this controller, it is no longer desired, and an event of kind `ended` reports that.
    """

    def __init__(
        self,
        *,
        store: Store | MemoryStore | None = None,
        identity: TlsIdentity | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """store: the desired jobs, by default in memory. identity: as for `Session`.

        on_event: called with every event. clock: returns seconds since the epoch.
        """
        self._store = store or MemoryStore()
        self._identity, self._clock = identity, clock
        self._on_event = on_event
        self._switches: dict[tuple[str, int], SharedSwitch] = {}
        self._epoch = 1
        self._change_lock = RLock()
        self._counts: Counter[tuple[str, int | None]] = Counter()

    def __enter__(self) -> JobController:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, which releases the leases. The jobs stay on the switches."""
        for switch in self._switches.values():
            switch.close()

    # The loop

    def poll(self) -> None:
        """Reconcile every switch once: restore jobs that a switch has lost."""
        for switch in list(self._switches.values()):
            self.reconcile(switch)

    def reconcile(self, switch: SharedSwitch) -> None:
        """Make a switch's tables agree with the desired jobs, if this controller is the primary."""
        with switch.lock:
            epoch = self._epoch
            if not epoch or self._store.leader().epoch != epoch:
                return
            # Read the store under the lock: an admission writes it before it releases the lock.
            desired = {
                job.job_id: DesiredJob(plan, job.generation, job.secret)
                for job in self._store.jobs()
                for plan in plans_of(job)
                if plan.switch.place == switch.described.place
            }
            for event in switch.reconcile(epoch, desired):
                if event.kind == "ended" and event.job_id is not None:
                    self._store.evict(epoch, event.job_id)
                self.report(event)
            admitted = [job_id for job_id in desired if self.generation(job_id) is not None]
            if admitted:
                switch.free_old_slots(epoch, admitted[0], time.monotonic())

    def report(self, event: Event, limit: RateLimit | None = None) -> None:
        """Count an event, and pass it to the function that takes events, unless `limit` is reached."""
        self._counts[event.kind, event.job_id] += 1
        suffix = "" if limit is None else limit.admit()
        if suffix is not None:
            self._on_event(replace(event, text=event.text + suffix))

    def counts(self, job_id: int | None = None) -> dict[str, int]:
        """Return the number of events of each kind; for a job, only of its own and of those without a job."""
        counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        for (kind, number), count in self._counts.items():
            if job_id is None or number in (job_id, None):
                counts[kind] += count
        return counts

    def is_up(self, job: AnyDescription) -> bool:
        """Return whether all switches of a job answered at their last check."""
        return not any(switch.problem for switch in self._switches_of(job.plans()))

    def generation(self, job_id: int) -> int | None:
        """Return the generation of an admitted job; None if the job is not admitted."""
        known = self._store.job(job_id)
        return known.generation if known and known.admitted else None

    # Jobs

    def acquire_lease(self, job: AnyDescription) -> None:
        """Connect to a job's switches, acquire the job's leases and load pipelines. Raises as `admit_job`."""
        with self._primary_sessions(job.plans()):
            pass

    def release_lease(self, job: AnyDescription) -> None:
        """Release a job's leases."""
        for switch in self._switches_of(job.plans()):
            with switch.lock:
                switch.release_lease(job.job.id)

    def admit_job(self, job: AnyDescription, *, is_new: bool = False, **options: Any) -> dict[str, Any]:
        """Admit a job, or admit it again in a new generation; return its admission as a dictionary.

        is_new: whether to fail if a switch has a job of this number. options: `free` and `secret`, as for
        `admission.admit`. Raises DescriptionError before anything is changed, LeaseHeldError if another
        controller has the lease or, with is_new, the job, SwitchError if a switch fails.
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
        """Admit a job to its switches, and store it with its description and its token's digest."""
        job_id, plans = job.job.id, job.plans()
        with self._change_lock:
            epoch, known = self._require_primary(), self._check_token(job_id, digest)
            with self._primary_sessions(plans) as sessions, ExitStack() as unverified:
                for switch in self._switches_of(plans):
                    unverified.callback(switch.mark_unverified)
                placements = [Placement(*pair) for pair in zip(sessions, plans, strict=True)]
                if is_new and any(
                    known_generation(session, job_id, closed=False) is not None for session in sessions
                ):
                    raise LeaseHeldError(f"job.id: {job_id}: is another controller's; choose another")
                generations = [known.generation] if known else []
                admitted = admission.admit(job, placements, self._clock(), known=generations, **options)
                self._store.admit(
                    epoch,
                    StoredJob(job_id, True, admitted.generation, description, digest, admitted.secret),
                )
                unverified.pop_all()  # all writes succeeded
        text = f"job: {job_id}: admitted in generation {admitted.generation}"
        self.report(Event("admitted", text, job_id, admitted.generation))
        return {**asdict(admitted), "timeout_s": job.job.timeout_s}

    def evict(self, job_id: int, token: str = "") -> dict[str, Any]:
        """Evict a job; return the switches that did not answer, as `waiting`. Raises ControlError."""
        with self._change_lock:
            epoch, known = self._require_primary(), self._check_token(job_id, token_digest(token))
            if known is None or not known.admitted:
                others = ", ".join(str(job.job_id) for job in self._store.jobs()) or "none"
                raise ControlError(f"job: {job_id}: is not admitted; admitted: {others}")
            plans = [plan for plan in plans_of(known) if plan.switch.place in self._switches]
            with _locked(self._switches_of(plans)):
                self._store.evict(epoch, job_id)
                switches = self._switches_of(plans[::-1])
                waiting = [
                    switch.name for switch in switches if not switch.evict(epoch, job_id, known.generation)
                ]
        self.report(Event("evicted", f"job: {job_id}: evicted", job_id))
        return {"waiting": waiting}

    def evict_from(self, before: AnyDescription, generation: int, job: AnyDescription) -> None:
        """Evict an earlier generation of a job from the switches that its description no longer has.

        A switch that does not answer keeps it.
        """
        places = {plan.switch.place for plan in job.plans()}
        for switch in self._switches_of([plan for plan in before.plans() if plan.switch.place not in places]):
            with switch.lock:
                switch.evict(self._epoch, job.job.id, generation)

    def evict_at(self, job: JobDescription, ports: Collection[int]) -> list[int]:
        """Evict all jobs of a switch that use no other ports than these; return their numbers.

        Raises SwitchError, or LeaseHeldError if another controller has the lease on such a job.
        """
        with self._primary_sessions(job.plans()) as (session,):
            idle = {
                row.job_id: row.generation
                for row in read_jobs(session)
                if {row.server_port, *row.worker_ports.values()} <= set(ports)
            }
            for job_id, generation in idle.items():
                session.check_lease_is_free(job_id)
                close_job(session, job_id, generation)
        return list(idle)

    def verdicts(self, job: AnyDescription) -> list[dict[Verdict, int]]:
        """Return the number of packets with each verdict, for each switch of a job. Raises SwitchError."""
        return [switch.verdicts() for switch in self._switches_of(job.plans())]

    @contextmanager
    def _primary_sessions(self, plans: Sequence[SwitchPlan]) -> Iterator[list[Session]]:
        """Lock a job's switches, become their primary and load their pipelines; yield the sessions."""
        switches = self._switches_of(plans)
        pairs = list(zip(switches, plans, strict=True))
        with _locked(switches), ExitStack() as stack:
            for switch, plan in pairs:
                self._prepare_switch(switch, plan)
            # All controllers take switches in the same order, so that no two wait for each other.
            sessions = {
                switch: stack.enter_context(switch.as_primary(self._epoch, plan.job_id))
                for switch, plan in sorted(pairs, key=lambda pair: pair[1].switch.place)
            }
            for switch, plan in pairs:
                switch.load_pipeline(sessions[switch], plan)
            yield [sessions[switch] for switch in switches]

    def _prepare_switch(self, switch: SharedSwitch, plan: SwitchPlan) -> None:
        switch.acquire_lease(plan.job_id)

    def _switches_of(self, plans: Sequence[SwitchPlan]) -> list[SharedSwitch]:
        return [self._switch_of(plan) for plan in plans]

    def _switch_of(self, plan: SwitchPlan) -> SharedSwitch:
        """Return the switch of a plan; add it if it is new."""
        place = plan.switch.place
        if place not in self._switches:
            pipeline = pipeline_schema(*program_files(plan.switch.pipeline_lanes, plan.switch.tofino))
            self._switches[place] = SharedSwitch(plan.switch, pipeline, self._identity)
        return self._switches[place]

    def _require_primary(self) -> int:
        """Return the epoch. Raises BackupError if this controller is a backup."""
        return self._epoch

    def _check_token(self, job_id: int, digest: str) -> StoredJob | None:
        """Return the job's last admission. Raises ControlError if changes of the job need another token."""
        return self._store.job(job_id)


def plans_of(job: StoredJob) -> tuple[SwitchPlan, ...]:
    """Return the plan of a stored job for each of its switches."""
    return _plans(job.description) if isinstance(job.description, str) else job.description.plans()


@lru_cache(maxsize=512)
def _plans(description: str) -> tuple[SwitchPlan, ...]:
    return parse_description(description).plans()


def token_digest(token: str) -> str:
    """Return the digest of a token, which is stored in its place. Raises ValueError for invalid Unicode."""
    try:
        return hashlib.sha256(token.encode()).hexdigest() if token else ""
    except UnicodeEncodeError:
        raise ValueError("token: is not Unicode text; make one: peelsum certificates token FILE") from None


@contextmanager
def _locked(switches: Iterable[SharedSwitch]) -> Iterator[None]:
    """Hold the locks of several switches."""
    with ExitStack() as stack:
        for switch in sorted(switches, key=lambda switch: switch.described.place):
            stack.enter_context(switch.lock)
        yield
