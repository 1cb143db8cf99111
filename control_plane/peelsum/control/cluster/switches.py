"""One switch as a controller knows it: the connection, the correction of its tables, and events of that.

A controller owns its switches, or it shares them with others, each of which holds jobs of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from threading import RLock
from typing import Any, Literal, NamedTuple, get_args

from finsy.p4entity import P4TableEntry
from finsy.p4schema import P4Schema

from peelsum.control import admission
from peelsum.control.drivers import driver_of, open_session
from peelsum.control.entries import job_entry, participant_entries
from peelsum.control.errors import ControlError, DescriptionError, HeldError, NotPrimaryError, SwitchError
from peelsum.control.plan import SwitchPlan
from peelsum.control.sections import PlacedSwitch
from peelsum.control.session import Session, peelsum_lanes
from peelsum.control.status import AdmittedJob, read_jobs, read_verdicts
from peelsum.control.tables import (
    Placement,
    Tables,
    changes,
    close_job,
    host_entries,
    is_closed,
    known_generation,
    values,
)
from peelsum.tls import Identity
from peelsum.wire import Verdict

#: How long a switch may take to answer a new connection, and every request but one for a pipeline.
_CONNECT_S, _ANSWER_S = 1.0, 10.0
#: How long a change waits for the primary of a shared switch, and for a switch's first connection.
_PATIENCE_S, _FIRST_CONNECT_S = 10.0, 4.0

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
    """Something that happened."""

    kind: Kind
    """Kind of event."""
    text: str
    """The event, in one line."""
    job_id: int | None = None
    """The job that it happened to; None if to none."""
    generation: int | None = None
    """The job's generation from then on; None if it did not change."""

    def values(self) -> dict[str, Any]:
        """Return the fields that are not None, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return self.text


class Wanted(NamedTuple):
    """A job that a switch should have."""

    plan: SwitchPlan
    """What the switch gets."""
    generation: int
    """The generation that runs."""
    secret: str
    """What its hosts prove at UDP ports, in hexadecimal."""


class ManagedSwitch(ABC):
    """A switch whose tables a controller keeps as they should be. Every use needs `lock`."""

    def __init__(self, described: PlacedSwitch, pipeline: P4Schema, identity: Identity | None) -> None:
        """pipeline: what the switch must run."""
        self.described = described
        #: Held while anything is done with the switch.
        self.lock = RLock()
        #: Why it cannot be used; empty if it can.
        self.trouble = "not connected yet"
        #: Why jobs cannot be put back, by number.
        self.refused: dict[int, str] = {}
        self._pipeline, self._identity = pipeline, identity
        self._session: Session | None = None
        self._told = False

    @property
    def name(self) -> str:
        """The switch's name in messages."""
        return self.described.p4runtime

    def keep(self, epoch: int, wanted: Mapping[int, Wanted]) -> Iterator[Event]:
        """Connect if necessary, and correct the tables. Yield events."""
        known = self._session is not None
        try:
            try:
                yield from self._corrected(epoch, wanted)
            except NotPrimaryError:
                raise
            except SwitchError:
                if not known:
                    raise
                self.close()  # it may have been restarted, and answer already
                yield from self._corrected(epoch, wanted)
        except SwitchError as error:
            yield from self._failed(error)

    def close(self) -> None:
        """End the connection, and with it every role at the switch."""
        if self._session is not None:
            self._session.close()
        self._session = None

    @abstractmethod
    def doubt(self) -> None:
        """Have all tables compared at the next check, as a write may have failed half-way."""

    @abstractmethod
    def hold(self, job_id: int) -> None:
        """Hold a job, so that no other controller admits it, until `release`."""

    @abstractmethod
    def release(self, job_id: int) -> None:
        """Stop holding a job."""

    @abstractmethod
    def writing(self, epoch: int, job_id: int) -> AbstractContextManager[Session]:
        """Return a context with the primary's session. Raises SwitchError if the switch cannot be used."""

    @abstractmethod
    def load_pipeline(self, session: Session, plan: SwitchPlan) -> None:
        """Load a job's pipeline if it does not run. Raises DescriptionError if it may not replace another."""

    def evict(self, epoch: int, job_id: int, generation: int) -> bool:
        """Close a job on the switch; return whether that succeeded."""
        try:
            with self.writing(epoch, job_id) as session:
                if self._may_close(session, job_id, generation):
                    close_job(session, job_id, generation)
        except (SwitchError, HeldError):
            self.doubt()
            return False
        return True

    def verdicts(self) -> dict[Verdict, int]:
        """Return how many packets met each verdict. Raises SwitchError."""
        return read_verdicts(self._connected())

    def _may_close(self, session: Session, job_id: int, generation: int) -> bool:
        return True

    @abstractmethod
    def _corrected(self, epoch: int, wanted: Mapping[int, Wanted]) -> Iterator[Event]:
        """Do the work of `keep`, or raise SwitchError."""

    def _failed(self, error: SwitchError) -> Iterator[Event]:
        self.close()
        self.trouble = str(error).removeprefix("switch: ").partition(";")[0]
        if not self._told:
            self._told = True
            yield Event("lost", f"switch: {self.trouble}; connecting again")

    def _regained(self, restored: int) -> Iterator[Event]:
        if self.trouble:
            yield Event("regained", f"switch: {self.name}: is up; {restored} jobs put back")
        self.trouble, self._told = "", False

    def _connected(self, connect_s: float = _CONNECT_S) -> Session:
        if self._session is None:
            self._session = open_session(
                *self.described.place,
                self.described.tofino,
                timeout_s=_ANSWER_S,
                connect_s=connect_s,
                identity=self._identity,
            )
        return self._session

    def _put_back(self, session: Session, job_id: int, job: Wanted, *, free: bool = True) -> Event:
        admission.put_back(Placement(session, job.plan), job.generation, job.secret, free=free)
        self.refused.pop(job_id, None)
        return Event("restored", f"job: {job_id}: put back on {self.name}", job_id, job.generation)


class OwnedSwitch(ManagedSwitch):
    """A switch that one controller owns.

    Theory of operation. The primary holds its stream all the time, with the epoch as its election id, so the
    switch refuses everybody else's writes. Its tables then change in two cases only: this controller writes,
    or the switch starts again, which ends the stream. So a check reads one table, `jobs`; all tables are
    compared after connecting and after a write that failed. Another pipeline is replaced.
    """

    def __init__(self, described: PlacedSwitch, pipeline: P4Schema, identity: Identity | None) -> None:
        super().__init__(described, pipeline, identity)
        self._epoch, self._sure = 0, False

    @contextmanager
    def writing(self, epoch: int, job_id: int) -> Iterator[Session]:
        """Yield the primary's session. Raises SwitchError if the switch is not up in this epoch."""
        if self._session is None or self.trouble or self._epoch != epoch:
            raise SwitchError(
                f"switch: {self.name}: {self.trouble or 'is being taken over'}; try again when it is up"
            )
        yield self._session

    def doubt(self) -> None:
        """Have all tables compared at the next check, as a write may have failed half-way."""
        self._sure = False

    def hold(self, job_id: int) -> None:
        """Do nothing: the primary keeps all others out."""

    def release(self, job_id: int) -> None:
        """Do nothing, for the same reason."""

    def load_pipeline(self, session: Session, plan: SwitchPlan) -> None:
        """Do nothing: the switch got its pipeline when it was connected."""

    def has_primary(self) -> bool | None:
        """Return whether some controller is the switch's primary; None if the switch does not answer."""
        try:
            return self._connected().has_primary()
        except SwitchError:
            self.close()
            return None

    def close(self) -> None:
        """End the connection, and with it the role of primary."""
        super().close()
        self._epoch, self._sure = 0, False

    def _corrected(self, epoch: int, wanted: Mapping[int, Wanted]) -> Iterator[Event]:
        session, fresh = self._led(epoch)
        if self._sure and jobs_agree(session, wanted):
            return
        restored = 0
        for event in self._repaired(session, wanted, fresh):
            restored += event.kind == "restored"
            yield event
        self._sure = True
        yield from self._regained(restored)

    def _led(self, epoch: int) -> tuple[Session, bool]:
        """Return the session as the primary of an epoch, and whether the pipeline was loaded just now."""
        session = self._connected()
        if self._epoch == epoch:
            session.check_primary()
            return session, False
        self._sure = False
        self._check_unheld(session)
        session.become_primary(epoch, patience_s=_CONNECT_S)
        fresh = not session.runs(self._pipeline)
        if fresh:
            session.commit(self._pipeline)
        try:
            driver_of(session).bring_up(self.described.tofino, "switches")
        except DescriptionError as error:
            raise SwitchError(f"switch: {self.name}: {error}") from None
        self._epoch = epoch
        return session, fresh

    def _check_unheld(self, session: Session) -> None:
        """Raise SwitchError if another controller holds a job there, as becoming primary would end it."""
        jobs: list[AdmittedJob] = []
        with suppress(SwitchError):  # there is no pipeline, or one of another program
            jobs = read_jobs(session)
        for job in jobs:
            try:
                session.check_unheld(job.job_id)
            except HeldError as error:
                raise SwitchError(f"switch: {self.name}: {error}") from None

    def _repaired(self, session: Session, wanted: Mapping[int, Wanted], fresh: bool) -> Iterator[Event]:
        tables = Tables(session)
        present, hosts = tables.present(), values(session, tables.rows["hosts"])
        self.refused = {job_id: why for job_id, why in self.refused.items() if job_id in wanted}
        for job_id in present.keys() - wanted.keys():
            close_job(session, job_id, tables.generations.get(job_id, 0))
            yield Event("removed", f"job: {job_id}: removed from {self.name}, where it should not be", job_id)
        used = {port for job in wanted.values() for port in job.plan.ports}
        # Read again, as closing jobs may have removed some.
        idle = [row for row in session.entries("hosts") if row["egress_port"] not in used]
        session.write(changes(session, idle, []))
        free = True
        for job_id, job in wanted.items():
            rows = present.get(job_id, [])
            if tables.has_group(job.plan) and is_complete(session, job, rows, hosts):
                continue
            try:
                yield self._put_back(session, job_id, job, free=free)
                free = not fresh  # one job's freeing is enough for all slots of a new pipeline
            except DescriptionError as error:
                if self.refused.get(job_id) != str(error):
                    yield Event("error", f"job: {job_id}: {error}", job_id)
                self.refused[job_id] = str(error)


class SharedSwitch(ManagedSwitch):
    """A switch to which other controllers admit their jobs, too.

    Theory of operation. The controller holds each of its jobs, in a role of the job's own, and is the
    primary only while it writes. A check reads one row of each of its jobs. A switch without the row has lost
    its tables: it gets a pipeline if it runs none, and the job. If it has the job closed or in another
    generation, or runs another program, somebody else has ended the job. While another controller is the
    primary, e.g. to put back its own job, the check waits for the next poll.
    """

    def __init__(self, described: PlacedSwitch, pipeline: P4Schema, identity: Identity | None) -> None:
        super().__init__(described, pipeline, identity)
        self._halfway: set[int] = set()

    def hold(self, job_id: int) -> None:
        """Hold a job until `release` or `close`. Connect, or again if the switch was restarted.

        Raises SwitchError, HeldError if another controller holds the job.
        """
        if self._session is not None:
            try:
                self._session.refresh()
            except SwitchError:
                self.close()
        self._connected(_FIRST_CONNECT_S).hold(job_id)

    def release(self, job_id: int) -> None:
        """Stop holding a job."""
        self._halfway.discard(job_id)
        if self._session is not None:
            self._session.release(job_id)

    @contextmanager
    def writing(self, epoch: int, job_id: int) -> Iterator[Session]:
        """Hold the job, and be the primary for the time of the context. Raises as `hold`.

        Raises NotPrimaryError if another controller is the primary for too long.
        """
        session = self._connected()
        session.hold(job_id)
        session.become_primary(patience_s=_PATIENCE_S)
        try:
            yield session
        finally:
            session.become_backup()
        self.trouble, self._told = "", False

    def load_pipeline(self, session: Session, plan: SwitchPlan) -> None:
        """Load the pipeline if it does not run.

        Raises DescriptionError if another one of peelsum's has other jobs, which would be lost.
        """
        if session.runs(self._pipeline):
            return
        lanes = peelsum_lanes(session) if session.schema is not None else 0
        others = [job.job_id for job in read_jobs(session) if job.job_id != plan.job_id] if lanes else []
        if others:
            raise DescriptionError(
                f"{plan.section}.pipeline_lanes: {plan.switch.pipeline_lanes}: {self.name} runs another "
                f"program, of {lanes} lanes, with jobs {', '.join(map(str, others))}; evict them first, or "
                f"ask for {lanes} lanes if it is as new"
            )
        session.commit(self._pipeline)

    def doubt(self) -> None:
        """Do nothing: each check reads the rows of all its jobs."""

    def _may_close(self, session: Session, job_id: int, generation: int) -> bool:
        """Return False if somebody has admitted the job again."""
        return known_generation(session, job_id) in (generation, None)

    def _corrected(self, epoch: int, wanted: Mapping[int, Wanted]) -> Iterator[Event]:
        if not wanted:
            return
        session, restored = self._connected(), 0
        missing = {}
        for job_id, job in wanted.items():
            try:
                session.hold(job_id)
                session.check_holds()
                has_pipeline = job_id not in self._halfway and session.runs(self._pipeline)
                if not has_pipeline or not self._has(session, job_id, job):
                    missing[job_id] = job
            except SwitchError:
                raise
            except ControlError as error:
                yield Event("ended", str(error), job_id)
        if missing:
            session.become_primary(patience_s=_CONNECT_S)
            try:
                for event in self._restored(session, missing):
                    restored += event.kind == "restored"
                    yield event
            finally:
                session.become_backup()
        yield from self._regained(restored)

    def _restored(self, session: Session, missing: Mapping[int, Wanted]) -> Iterator[Event]:
        for job_id, job in missing.items():
            try:
                self._give_pipeline(session, job_id)
                if job_id in self._halfway or not self._has(session, job_id, job):
                    self._halfway.add(job_id)  # a job that was only half put back looks like an evicted one
                    yield self._put_back(session, job_id, job)
                self._halfway.discard(job_id)
            except SwitchError:
                raise
            except ControlError as error:
                yield Event("ended", str(error), job_id)

    def _has(self, session: Session, job_id: int, job: Wanted) -> bool:
        """Return whether the switch has a job; False if it lost its tables.

        Raises ControlError if it remembers the job closed or in another generation: only a new admission
        helps.
        """
        if known_generation(session, job_id, closed=False) == job.generation:
            return True
        if known_generation(session, job_id) is None:
            return False
        raise ControlError(
            f"job: {job_id}: generation {job.generation} no longer runs on {self.name}; admit the job again"
        )

    def _give_pipeline(self, session: Session, job_id: int) -> None:
        if session.schema is None:
            session.commit(self._pipeline)
        elif not session.runs(self._pipeline):
            raise ControlError(
                f"job: {job_id}: {self.name} runs another program now, which somebody else loaded; admit the "
                "job again to replace it"
            )

    def _failed(self, error: SwitchError) -> Iterator[Event]:
        if not isinstance(error, NotPrimaryError):
            yield from super()._failed(error)


def jobs_agree(session: Session, wanted: Mapping[int, Wanted]) -> bool:
    """Return whether the wanted jobs are open, and no others. Reads one table. Raises SwitchError."""
    expected = values(session, [job_entry(job.plan, job.generation) for job in wanted.values()])
    return values(session, [row for row in session.entries("jobs") if not is_closed(row)]) == expected


def is_complete(
    session: Session, job: Wanted, rows: Iterable[P4TableEntry], hosts: Collection[object]
) -> bool:
    """Return whether `rows` are all of a job's, and `hosts` have the addresses of its hosts."""
    expected = [job_entry(job.plan, job.generation), *participant_entries(job.plan)]
    if values(session, rows) != values(session, expected):
        return False
    return all(host in hosts for host in values(session, host_entries(job.plan)))
