"""A controller's view of one switch: the connection, the reconciliation of its tables, and events.

A controller either owns its switches, or shares them with other controllers, each with jobs of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from threading import RLock
from typing import Any, Literal, NamedTuple, get_args

from finsy.p4entity import P4TableEntry
from finsy.p4schema import P4Schema

from peelsum.control import admission
from peelsum.control.admission import Placement
from peelsum.control.description import SwitchPlan
from peelsum.control.drivers import driver_of, open_session
from peelsum.control.errors import (
    ControlError,
    DescriptionError,
    LeaseHeldError,
    NotPrimaryError,
    SwitchError,
)
from peelsum.control.sections import PlacedSwitch
from peelsum.control.session import Session, lanes_and_slots_of
from peelsum.control.tables import (
    AdmittedJob,
    TableSnapshot,
    close_job,
    encoded_rows,
    host_entries,
    is_closed,
    job_entry,
    known_generation,
    participant_entries,
    read_jobs,
    read_verdicts,
    row_updates,
)
from peelsum.tls import TlsIdentity
from peelsum.wire import Verdict

#: Time limits of a connection, and of every request except loading a pipeline, in seconds.
_CONNECT_S, _ANSWER_S = 1.0, 10.0
#: Seconds that a change waits until a shared switch has no other primary; the limit of a first connection.
_PATIENCE_S, _FIRST_CONNECT_S = 10.0, 4.0
#: Seconds between two searches for slots that look as if they were in use: they do so after 19 hours, and are
#: found from half of that on. And seconds until another attempt after a failure.
_SLOTS_S, _SLOTS_AGAIN_S = 4 * 3600.0, 60.0

Kind = Literal[
    "primary",
    "backup",
    "admitted",
    "evicted",
    "lost",
    "regained",
    "restored",
    "removed",
    "ended",
    "run",
    "server",
    "error",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Event:
    """A change that a controller has made or observed."""

    kind: Kind
    """The kind of event."""
    text: str
    """A description of the event, in one line."""
    job_id: int | None = None
    """The number of the job, if the event is about a job."""
    generation: int | None = None
    """The job's new generation; None if it did not change."""

    def values(self) -> dict[str, Any]:
        """Return the fields that are not None, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return self.text


class DesiredJob(NamedTuple):
    """A job that should be on a switch."""

    plan: SwitchPlan
    """The job's configuration of the switch."""
    generation: int
    """The job's generation."""
    secret: str
    """The job's secret for UDP ports, in hexadecimal."""


class SharedSwitch:
    """A switch to which other controllers admit their jobs, too.

    Theory of operation. The controller has a lease on each of its jobs, and is the primary only while it
    writes. A check reads one row of each of its jobs. If the row is missing, the switch has lost its tables:
    the pipeline is loaded if none is running, and the job is restored. If the job is closed or has another
    generation, or another program is running, somebody else has ended the job. If another controller is the
    primary, e.g. to restore its own job, the check is repeated at the next poll.

    Callers of its methods must hold `lock`.
    """

    def __init__(self, described: PlacedSwitch, pipeline: P4Schema, identity: TlsIdentity | None) -> None:
        """described: the switch's section. pipeline: what the switch must run. identity: as for `Session`."""
        self.described = described
        #: Held during every operation on the switch.
        self.lock = RLock()
        #: Why the switch cannot be used; empty if it can.
        self.problem = "not connected yet"
        #: Why jobs cannot be restored, by job number.
        self.refused: dict[int, str] = {}
        self._pipeline, self._identity = pipeline, identity
        self._session: Session | None = None
        self._loss_reported = False
        self._partly_restored: set[int] = set()
        #: When to search for old slots; infinity before a first call of `free_old_slots`.
        self._slots_at = math.inf

    @property
    def name(self) -> str:
        """The switch's name in messages."""
        return self.described.p4runtime

    def reconcile(self, epoch: int, desired: Mapping[int, DesiredJob]) -> Iterator[Event]:
        """Connect if necessary, and make the tables agree with the desired jobs. Yield events.

        If a request fails on an existing connection, try once more on a new one.
        """
        known = self._session is not None
        try:
            try:
                yield from self._reconcile(epoch, desired)
            except NotPrimaryError:
                raise
            except SwitchError:
                if not known:
                    raise
                self.close()  # the switch may have been restarted, and may be ready again
                yield from self._reconcile(epoch, desired)
        except SwitchError as error:
            yield from self._report_failure(error)

    def close(self) -> None:
        """Close the connection, which ends the role of primary and all leases."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def mark_unverified(self) -> None:
        """Make the next reconciliation compare all tables, because writes may have failed in between.

        Here do nothing: every reconciliation reads the rows of all jobs.
        """

    def acquire_lease(self, job_id: int) -> None:
        """Connect, again if the switch was restarted, and acquire the lease on a job.

        Raises SwitchError, or LeaseHeldError if another controller has the lease.
        """
        if self._session is not None:
            try:
                self._session.refresh()
            except SwitchError:
                self.close()
        self._connected(_FIRST_CONNECT_S).acquire_lease(job_id)

    def release_lease(self, job_id: int) -> None:
        """Release the lease on a job."""
        self._partly_restored.discard(job_id)
        if self._session is not None:
            self._session.release_lease(job_id)

    @contextmanager
    def as_primary(self, epoch: int, job_id: int, patience_s: float | None = None) -> Iterator[Session]:
        """Acquire the lease on a job, and be the primary during the body. Raises as `acquire_lease`.

        Raises NotPrimaryError if another controller remains the primary for `patience_s`, by default
        _PATIENCE_S.
        """
        session = self._connected()
        session.acquire_lease(job_id)
        session.become_primary(patience_s=_PATIENCE_S if patience_s is None else patience_s)
        try:
            yield session
        finally:
            session.become_backup()
        self.problem, self._loss_reported = "", False

    def load_pipeline(self, session: Session, plan: SwitchPlan) -> None:
        """Load the pipeline if it is not running.

        Raises DescriptionError if another pipeline of peelsum has jobs, which would be lost.
        """
        if session.runs(self._pipeline):
            return
        lanes = 0 if session.schema is None else lanes_and_slots_of(session.schema)[0]
        others = [job.job_id for job in read_jobs(session) if job.job_id != plan.job_id] if lanes else []
        if others:
            raise DescriptionError(
                f"{plan.section}.pipeline_lanes: {plan.switch.pipeline_lanes}: {self.name} runs another "
                f"program, of {lanes} lanes, with jobs {', '.join(map(str, others))}; evict them first, or "
                f"ask for {lanes} lanes if it is as new"
            )
        session.commit(self._pipeline)

    def evict(self, epoch: int, job_id: int, generation: int) -> bool:
        """Close a job on the switch; return whether that succeeded."""
        try:
            with self.as_primary(epoch, job_id) as session:
                if self._owns_generation(session, job_id, generation):
                    close_job(session, job_id, generation)
        except (SwitchError, LeaseHeldError):
            self.mark_unverified()
            return False
        return True

    def free_old_slots(self, epoch: int, job_id: int, now: float) -> None:
        """Free slots that were not used for hours, as an admission does; search for them every _SLOTS_S.

        After 19 hours, no chunk could claim them: the sums of a job that has paused would bypass the switch.
        job_id: a job of this controller on the switch. now: the time in seconds.
        """
        if self._slots_at == math.inf:
            self._slots_at = now + _SLOTS_S
        if now < self._slots_at or self.problem:
            return
        try:
            # Polls wait no longer: ranks need the thread of `peelsum job serve` meanwhile.
            with self.as_primary(epoch, job_id, _CONNECT_S) as session:
                driver_of(session).free_stale_slots()
            self._slots_at = now + _SLOTS_S
        except (SwitchError, LeaseHeldError):  # `reconcile` reports it, if it lasts
            self._slots_at = now + _SLOTS_AGAIN_S

    def verdicts(self) -> dict[Verdict, int]:
        """Return the number of packets with each verdict. Raises SwitchError."""
        return read_verdicts(self._connected())

    def _owns_generation(self, session: Session, job_id: int, generation: int) -> bool:
        """Return False if another controller has admitted the job again."""
        return known_generation(session, job_id) in (generation, None)

    def _reconcile(self, epoch: int, desired: Mapping[int, DesiredJob]) -> Iterator[Event]:
        if not desired:
            return
        session, restored = self._connected(), 0
        missing = {}
        for job_id, job in desired.items():
            try:
                session.acquire_lease(job_id)
                session.check_leases()
                has_pipeline = job_id not in self._partly_restored and session.runs(self._pipeline)
                if not has_pipeline or not self._has_job(session, job_id, job):
                    missing[job_id] = job
            except SwitchError:
                raise
            except ControlError as error:
                yield Event("ended", str(error), job_id)
        if missing:
            try:
                session.become_primary(patience_s=_CONNECT_S)
            except NotPrimaryError:
                return
            try:
                for event in self._restore_jobs(session, missing):
                    restored += event.kind == "restored"
                    yield event
            finally:
                session.become_backup()
        yield from self._report_regained(restored)

    def _restore_jobs(self, session: Session, missing: Mapping[int, DesiredJob]) -> Iterator[Event]:
        """Load the pipeline if none is running, and restore missing jobs, as the primary. Yield events."""
        for job_id, job in missing.items():
            try:
                if session.schema is None:
                    session.commit(self._pipeline)
                elif not session.runs(self._pipeline):
                    raise ControlError(
                        f"job: {job_id}: {self.name} runs another program now, which somebody else loaded; "
                        "admit the job again to replace it"
                    )
                if job_id in self._partly_restored or not self._has_job(session, job_id, job):
                    # A job that was only half restored looks like an evicted one.
                    self._partly_restored.add(job_id)
                    yield self._restore_job(session, job_id, job)
                self._partly_restored.discard(job_id)
            except SwitchError:
                raise
            except ControlError as error:
                yield Event("ended", str(error), job_id)

    def _has_job(self, session: Session, job_id: int, job: DesiredJob) -> bool:
        """Return whether the switch has a job; False if it lost its tables.

        Raises ControlError if the job is closed there, or has another generation: somebody else has ended it.
        """
        if known_generation(session, job_id, closed=False) == job.generation:
            return True
        if known_generation(session, job_id) is None:
            return False
        raise ControlError(
            f"job: {job_id}: generation {job.generation} no longer runs on {self.name}; admit the job again"
        )

    def _report_failure(self, error: SwitchError) -> Iterator[Event]:
        """Close the connection, and yield an event if the failure was not reported yet."""
        self.close()
        self.problem = str(error).removeprefix("switch: ").partition(";")[0]
        if not self._loss_reported:
            self._loss_reported = True
            yield Event("lost", f"switch: {self.problem}; connecting again")

    def _report_regained(self, restored: int) -> Iterator[Event]:
        if self.problem:
            yield Event("regained", f"switch: {self.name}: is up; jobs restored: {restored}")
        self.problem, self._loss_reported = "", False

    def _connected(self, connect_s: float = _CONNECT_S) -> Session:
        """Return the session with the switch; connect if there is none. Raises SwitchError."""
        if self._session is None:
            self._session = open_session(
                *self.described.place,
                self.described.tofino,
                timeout_s=_ANSWER_S,
                connect_s=connect_s,
                identity=self._identity,
            )
        return self._session

    def _restore_job(self, session: Session, job_id: int, job: DesiredJob, *, free: bool = True) -> Event:
        admission.restore(Placement(session, job.plan), job.generation, job.secret, free=free)
        self.refused.pop(job_id, None)
        return Event("restored", f"job: {job_id}: restored on {self.name}", job_id, job.generation)


class OwnedSwitch(SharedSwitch):
    """A switch that one controller owns, without leases.

    Theory of operation. The controller is the primary all the time, with the epoch as its election id, so the
    switch refuses all others' writes. Its tables can change for two reasons only: this controller writes, or
    the switch is restarted, which ends the stream. So a check reads only the table `jobs`. All tables are
    compared after connecting and after a failed write. A different pipeline is replaced.
    """

    def __init__(self, described: PlacedSwitch, pipeline: P4Schema, identity: TlsIdentity | None) -> None:
        super().__init__(described, pipeline, identity)
        self._epoch, self._verified = 0, False

    @contextmanager
    def as_primary(self, epoch: int, job_id: int, patience_s: float | None = None) -> Iterator[Session]:
        """Yield the session. Raises SwitchError if this controller is not the primary in this epoch yet."""
        if self._session is None or self.problem or self._epoch != epoch:
            raise SwitchError(
                f"switch: {self.name}: {self.problem or 'is being taken over'}; try again when it is up"
            )
        yield self._session

    def load_pipeline(self, session: Session, plan: SwitchPlan) -> None:
        """Do nothing: `reconcile` has loaded it."""

    def mark_unverified(self) -> None:
        """Make the next reconciliation compare all tables, because writes may have failed in between."""
        self._verified = False

    def has_primary(self) -> bool | None:
        """Return whether any controller is the switch's primary; None if the switch does not answer."""
        try:
            return self._connected().has_primary()
        except SwitchError:
            self.close()
            return None

    def close(self) -> None:
        """Close the connection, which ends the role of primary."""
        super().close()
        self._epoch, self._verified = 0, False

    def _owns_generation(self, session: Session, job_id: int, generation: int) -> bool:
        return True

    def _reconcile(self, epoch: int, desired: Mapping[int, DesiredJob]) -> Iterator[Event]:
        session, pipeline_is_new = self._ensure_primary(epoch)
        if self._verified:
            open_jobs = [row for row in session.entries("jobs") if not is_closed(row)]
            expected = [job_entry(job.plan, job.generation) for job in desired.values()]
            if encoded_rows(session, open_jobs) == encoded_rows(session, expected):
                return
        restored = 0
        for event in self._repair(session, desired, pipeline_is_new):
            restored += event.kind == "restored"
            yield event
        self._verified = True
        yield from self._report_regained(restored)

    def _ensure_primary(self, epoch: int) -> tuple[Session, bool]:
        """Become the primary in an epoch, and load the pipeline if it is not running.

        Return the session, and whether the pipeline was loaded by this call.
        """
        session = self._connected()
        if self._epoch == epoch:
            session.check_primary()
            return session, False
        self._verified = False
        self._check_leases_are_free(session)
        session.become_primary(epoch, patience_s=_CONNECT_S)
        pipeline_is_new = not session.runs(self._pipeline)
        if pipeline_is_new:
            session.commit(self._pipeline)
        try:
            driver_of(session).bring_up(self.described.tofino, "switches")
        except DescriptionError as error:
            raise SwitchError(f"switch: {self.name}: {error}") from None
        self._epoch = epoch
        return session, pipeline_is_new

    def _check_leases_are_free(self, session: Session) -> None:
        """Raise SwitchError if another controller has a lease on a job, which a new primary would end."""
        jobs: list[AdmittedJob] = []
        with suppress(SwitchError):  # there is no pipeline, or one of another program
            jobs = read_jobs(session)
        for job in jobs:
            try:
                session.check_lease_is_free(job.job_id)
            except LeaseHeldError as error:
                raise SwitchError(f"switch: {self.name}: {error}") from None

    def _repair(
        self, session: Session, desired: Mapping[int, DesiredJob], pipeline_is_new: bool
    ) -> Iterator[Event]:
        """Compare all tables with the desired jobs, and remove and restore jobs. Yield events."""
        tables = TableSnapshot(session)
        present, hosts = tables.job_rows(), encoded_rows(session, tables.rows["hosts"])
        self.refused = {job_id: why for job_id, why in self.refused.items() if job_id in desired}
        for job_id in present.keys() - desired.keys():
            close_job(session, job_id, tables.generations.get(job_id, 0))
            yield Event("removed", f"job: {job_id}: removed from {self.name}, where it should not be", job_id)
        used = {port for job in desired.values() for port in job.plan.ports}
        # Read the rows again: `close_job` may have removed some.
        idle = [row for row in session.entries("hosts") if row["egress_port"] not in used]
        session.write(row_updates(session, idle, []))
        free = True
        for job_id, job in desired.items():
            rows = present.get(job_id, [])
            if tables.has_group(job.plan) and is_complete(session, job, rows, hosts):
                continue
            try:
                yield self._restore_job(session, job_id, job, free=free)
                free = not pipeline_is_new  # in a new pipeline, the first job's restoration frees all slots
            except DescriptionError as error:
                if self.refused.get(job_id) != str(error):
                    yield Event("error", f"job: {job_id}: {error}", job_id)
                self.refused[job_id] = str(error)


def is_complete(
    session: Session, job: DesiredJob, rows: Iterable[P4TableEntry], hosts: Collection[object]
) -> bool:
    """Return whether `rows` are exactly a job's rows, and the encoded rows `hosts` include its hosts."""
    expected = [job_entry(job.plan, job.generation), *participant_entries(job.plan)]
    if encoded_rows(session, rows) != encoded_rows(session, expected):
        return False
    return all(host in hosts for host in encoded_rows(session, host_entries(job.plan)))
