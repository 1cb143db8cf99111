"""One switch of a cluster: the primary's connection, the correction of its tables, and events of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from threading import RLock
from typing import Any, Literal, NamedTuple, get_args

from finsy.p4entity import P4TableEntry
from finsy.p4schema import P4Schema

from peelsum.control import admission
from peelsum.control.drivers import driver_of, open_session
from peelsum.control.entries import job_entry, participant_entries
from peelsum.control.errors import DescriptionError, HeldError, SwitchError
from peelsum.control.plan import SwitchPlan
from peelsum.control.sections import PlacedSwitch
from peelsum.control.session import Session
from peelsum.control.status import AdmittedJob, read_jobs
from peelsum.control.tables import (
    Placement,
    Tables,
    changes,
    close_job,
    host_entries,
    is_closed,
    values,
)
from peelsum.tls import Identity

#: How long a switch may take to answer a new connection, and every request but one for a pipeline.
_CONNECT_S, _ANSWER_S = 1.0, 10.0


Kind = Literal["primary", "backup", "admitted", "evicted", "lost", "regained", "restored", "removed", "error"]
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


@dataclass(frozen=True)
class Differences:
    """What has to change on a switch."""

    stale: Mapping[int, int]
    """Jobs whose rows have to go, with the generation that the switch remembers."""
    missing: tuple[int, ...]
    """Jobs that have to be put back."""
    idle_hosts: tuple[P4TableEntry, ...]
    """Addresses of hosts behind ports that no wanted job uses."""


class ManagedSwitch:
    """A switch as one controller of the cluster knows it.

    Theory of operation. The primary holds its stream all the time, with the epoch as its election id, so the
    switch refuses everybody else's writes. Its tables then change in two cases only: this controller writes,
    or the switch starts again, which ends the stream. So a check reads one table, `jobs`; all tables are
    compared after connecting and after a write that failed. Every use needs `lock`.
    """

    def __init__(self, described: PlacedSwitch, pipeline: P4Schema, identity: Identity | None) -> None:
        """pipeline: what the switch must run; any other is replaced."""
        self.described = described
        #: Held while anything is done with the switch.
        self.lock = RLock()
        #: Why it cannot be used; empty if it can.
        self.trouble = "not connected yet"
        #: Why jobs cannot be put back, by number.
        self.refused: dict[int, str] = {}
        self._pipeline, self._identity = pipeline, identity
        self._session: Session | None = None
        self._epoch = 0
        self._sure = False
        self._told = False

    @property
    def name(self) -> str:
        """The switch's name in messages."""
        return self.described.p4runtime

    def ready(self, epoch: int) -> Session:
        """Return the primary's session. Raises SwitchError if the switch is not up in this epoch."""
        if self._session is None or self.trouble or self._epoch != epoch:
            raise SwitchError(
                f"switch: {self.name}: {self.trouble or 'is being taken over'}; try again when it is up"
            )
        return self._session

    def doubt(self) -> None:
        """Have all tables compared at the next check, as a write may have failed half-way."""
        self._sure = False

    def has_primary(self) -> bool | None:
        """Return whether some controller is the switch's primary; None if the switch does not answer."""
        try:
            return self._connected().has_primary()
        except SwitchError:
            self.close()
            return None

    def close(self) -> None:
        """End the connection, and with it the role of primary."""
        if self._session is not None:
            self._session.close()
        self._session, self._epoch, self._sure = None, 0, False

    def keep(self, epoch: int, wanted: Mapping[int, Wanted]) -> Iterator[Event]:
        """Connect if necessary, and correct the tables. Yield events."""
        known = self._epoch == epoch
        try:
            try:
                yield from self._keep(epoch, wanted)
            except SwitchError:
                if not known:
                    raise
                self.close()  # it may have been restarted, and answer already
                yield from self._keep(epoch, wanted)
        except SwitchError as error:
            self.close()
            self.trouble = str(error).removeprefix("switch: ").partition(";")[0]
            if not self._told:
                self._told = True
                yield Event("lost", f"switch: {self.trouble}; connecting again")

    def _keep(self, epoch: int, wanted: Mapping[int, Wanted]) -> Iterator[Event]:
        session, fresh = self._led(epoch)
        if self._sure and jobs_agree(session, wanted):
            return
        restored = 0
        for event in self._repaired(session, wanted, fresh):
            restored += event.kind == "restored"
            yield event
        self._sure = True
        if self.trouble:
            self.trouble, self._told = "", False
            yield Event("regained", f"switch: {self.name}: is up; {restored} jobs put back")

    def _connected(self) -> Session:
        if self._session is None:
            self._session = open_session(
                *self.described.place,
                self.described.tofino,
                timeout_s=_ANSWER_S,
                connect_s=_CONNECT_S,
                identity=self._identity,
            )
        return self._session

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
        found = differences(session, wanted)
        self.refused = {job_id: why for job_id, why in self.refused.items() if job_id in wanted}
        for job_id, generation in found.stale.items():
            close_job(session, job_id, generation)
            yield Event("removed", f"job: {job_id}: removed from {self.name}, where it should not be", job_id)
        if found.idle_hosts:
            idle = differences(session, wanted).idle_hosts  # closing jobs may have removed some
            session.write(changes(session, idle, []))
        free = True
        for job_id in found.missing:
            try:
                job = wanted[job_id]
                admission.put_back(Placement(session, job.plan), job.generation, job.secret, free=free)
            except DescriptionError as error:
                if self.refused.get(job_id) != str(error):
                    yield Event("error", f"job: {job_id}: {error}", job_id)
                self.refused[job_id] = str(error)
            else:
                free = not fresh  # one job's freeing is enough for all slots of a new pipeline
                self.refused.pop(job_id, None)
                text = f"job: {job_id}: put back on {self.name}"
                yield Event("restored", text, job_id, wanted[job_id].generation)


def jobs_agree(session: Session, wanted: Mapping[int, Wanted]) -> bool:
    """Return whether the wanted jobs are open, and no others. Reads one table. Raises SwitchError."""
    expected = values(session, [job_entry(job.plan, job.generation) for job in wanted.values()])
    return values(session, [row for row in session.entries("jobs") if not is_closed(row)]) == expected


def differences(session: Session, wanted: Mapping[int, Wanted]) -> Differences:
    """Compare all rows and groups of jobs, except other traffic's and limits. Raises SwitchError."""
    tables = Tables(session)
    hosts, present = values(session, tables.rows["hosts"]), tables.present()
    missing = tuple(
        job_id
        for job_id, job in wanted.items()
        if values(session, present.get(job_id, ()))
        != values(session, [job_entry(job.plan, job.generation), *participant_entries(job.plan)])
        or not tables.has_group(job.plan)
        or not values(session, host_entries(job.plan)) <= hosts
    )
    stale = {job_id: tables.generations.get(job_id, 0) for job_id in present if job_id not in wanted}
    used = {port for job in wanted.values() for port in job.plan.ports}
    idle = tuple(row for row in tables.rows["hosts"] if row["egress_port"] not in used)
    return Differences(stale, missing, idle)
