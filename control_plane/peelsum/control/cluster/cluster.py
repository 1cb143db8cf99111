"""A cluster's controller: it elects the primary, keeps the switches, and admits and evicts jobs."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import lru_cache, partial
from threading import Condition, Lock, RLock, Thread
from typing import Any

from finsy.p4schema import P4Schema

from peelsum.control import admission
from peelsum.control.cluster.description import ClusterDescription
from peelsum.control.cluster.store import BackupError, Store, StoredJob
from peelsum.control.cluster.switches import KINDS, Event, ManagedSwitch, Wanted
from peelsum.control.description import parse_description
from peelsum.control.drivers import program_files
from peelsum.control.errors import ControlError, DescriptionError, SwitchError
from peelsum.control.plan import SwitchPlan
from peelsum.control.sections import MAX_JOB_ID, PlacedSwitch
from peelsum.control.session import pipeline_schema
from peelsum.control.tables import Placement, close_job
from peelsum.tls import Identity
from peelsum.wire import RESERVED_JOB_ID

#: Polls in a row that must see no primary before a backup takes over from one that did not resign.
_FREE_POLLS = 2
#: How long `close` waits for work on a switch; what it interrupts is finished by the next primary.
_LAST_WORK_S = 2.0


class Cluster:
    """A controller of several switches and jobs, as a context manager.

    Theory of operation. The state file says which jobs are admitted, in which generation; the switches
    follow. An admission writes the switches first and the file last, an eviction the other way round. So if a
    controller ends in between, the next check makes the switches agree with the file.

    | state   | event                                              | then                                   |
    |---------|----------------------------------------------------|----------------------------------------|
    | backup  | no switch that answers has a primary, for two polls| epoch + 1 in the file; it is primary   |
    | backup  | likewise, and the last primary resigned            | likewise, at the first poll            |
    | primary | the file has a later epoch                         | it is backup                           |
    | primary | every poll, for each switch                        | bid the epoch, compare, put back       |

    The epoch is the election id at every switch. The greater one wins there at once, so a primary that was
    stopped and goes on can no longer write, neither to switches nor to the file.
    """

    def __init__(
        self,
        described: ClusterDescription,
        store: Store,
        pipelines: Mapping[int, P4Schema],
        *,
        address: str = "",
        identity: Identity | None = None,
        tell: Callable[[Event], None] = lambda event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """pipelines: of v1model, by lanes. address: where this controller answers.

        tell: called with every event.
        """
        self.address = address
        self._tell_caller = tell
        self._counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._failure: Exception | None = None
        self._store, self._clock = store, clock
        self._poll_s = described.controller.poll_s
        self._switches = {
            switch.place: ManagedSwitch(switch, _program(switch, pipelines), identity)
            for switch in described.switches
        }
        self._epoch = 0
        self._free_polls = 0
        self._told_role = self._followed = False
        self._changing, self._parsing = RLock(), Lock()
        self._polls, self._ended = Condition(), False
        self._threads: list[Thread] = []

    def __enter__(self) -> Cluster:
        """Start to poll, in a thread for the election and one for each switch."""
        works = [self.elect, *(partial(self.keep, switch) for switch in self._switches.values())]
        self._threads = [Thread(target=self._repeat, args=(work,), daemon=True) for work in works]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop. A primary resigns, and its backup takes over at once; the jobs stay as they are."""
        self.end()
        for thread in self._threads:
            thread.join(_LAST_WORK_S)
        if self._epoch:
            with suppress(ControlError):  # there is another primary already
                self._store.resign(self._epoch)
        for switch in self._switches.values():
            switch.close()

    def end(self) -> None:
        """Stop to poll, and make `wait` return."""
        with self._polls:
            self._ended = True
            self._polls.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s`; return whether `end` was called. Raises the controller's last error."""
        with self._polls:
            ended = self._polls.wait_for(lambda: self._ended, timeout_s)
        if self._failure is not None:
            raise self._failure
        return ended

    # The election

    @property
    def is_primary(self) -> bool:
        """Whether this controller is the primary, as far as it knows."""
        return self._epoch > 0

    def elect(self) -> None:
        """Become the primary if there is none, or a backup if there is another."""
        leader = self._store.leader()
        if self._epoch and leader.epoch != self._epoch:
            self._leave()
            self._told_role, self._followed = False, True
        if self._epoch:
            return
        if self._may_lead(resigned=not leader.address):
            self._epoch = self._store.take_over(self.address, list(self._switches))
            self._tell(Event("primary", f"controller: is the primary, in epoch {self._epoch}"))
            self._poll_now()
        elif not self._told_role:
            self._tell(Event("backup", f"controller: is a backup; {self._primary(leader.address)}"))
        self._told_role = True

    def _primary(self, address: str) -> str:
        if not address:
            return "there is no primary yet"
        if self._store.switches() == set(self._switches):
            return f"the primary is at {address}"
        return f"the primary at {address} has other switches in its file, so it will not take over"

    def _may_lead(self, *, resigned: bool) -> bool:
        """Return whether every switch that answers has been without a primary for long enough."""
        seen = []
        for switch in self._switches.values():
            with switch.lock:
                seen.append(switch.has_primary())
        free = False in seen and True not in seen
        self._followed |= True in seen
        if self._followed and self._store.switches() != set(self._switches):
            return False  # switches that the primary's file does not list would look free
        self._free_polls = self._free_polls + 1 if free else 0
        return self._free_polls >= (1 if resigned else _FREE_POLLS)

    def _leave(self) -> None:
        self._epoch = self._free_polls = 0
        for switch in self._switches.values():
            with switch.lock:
                switch.close()
                switch.trouble = "not connected yet"

    # The switches

    def keep(self, switch: ManagedSwitch) -> None:
        """Correct a switch's tables, if this controller is the primary."""
        with switch.lock:
            epoch = self._epoch
            if not epoch or self._store.leader().epoch != epoch:
                return
            # Read the file with the lock held: an admission that holds it has not written the file yet.
            for event in switch.keep(epoch, self._wanted(switch)):
                self._tell(event)

    def poll(self) -> None:
        """Run each thread's work once; for tests."""
        self.elect()
        for switch in self._switches.values():
            self.keep(switch)

    def _wanted(self, switch: ManagedSwitch) -> dict[int, Wanted]:
        return {
            job.job_id: Wanted(plan, job.generation, job.secret)
            for job in self._store.jobs()
            for plan in _plans(job.description)
            if plan.switch.place == switch.described.place
        }

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._ended:
            try:
                work()
            except Exception as error:
                self._failure = self._failure or error
                self.end()
            with self._polls:
                if not self._ended:
                    self._polls.wait(self._poll_s)

    def _poll_now(self) -> None:
        with self._polls:
            self._polls.notify_all()

    # Jobs

    def admit(self, text: str, source: str = "job description", token: str = "") -> dict[str, Any]:
        """Admit a job, or admit it again, in a new generation; return its admission.

        token: what later changes of this job need; empty for none. Raises ControlError, or ValueError for a
        token that is not text. After a switch's error, an already admitted job continues.
        """
        self._leading()
        with self._parsing:  # not with `_changing`: a large text takes a second
            described, digest = parse_description(text, source), _digest(token)
            job_id, plans = described.job.id, described.plans()
        with self._changing:
            epoch = self._leading()
            known = self._permitted(job_id, digest)
            switches = [self._switch_of(plan) for plan in plans]
            with _locked(switches), ExitStack() as doubts:
                for switch in switches:
                    doubts.callback(switch.doubt)
                    if switch.trouble:  # it may be up since the last poll
                        self.keep(switch)
                sessions = [switch.ready(epoch) for switch in switches]
                admitted = admission.admit(
                    described,
                    [Placement(*pair) for pair in zip(sessions, plans, strict=True)],
                    self._clock(),
                    known=[known.generation] if known else [],
                )
                job = StoredJob(job_id, True, admitted.generation, text, digest, admitted.secret)
                self._store.admit(epoch, job)
                doubts.pop_all()  # nothing failed half-way
        text = f"job: {job_id}: admitted in generation {admitted.generation}"
        self._tell(Event("admitted", text, job_id, admitted.generation))
        return {**asdict(admitted), "timeout_s": described.job.timeout_s}

    def evict(self, job_id: int, token: str = "") -> dict[str, Any]:
        """Evict a job; return the switches that are away, and will follow when they are up, as `waiting`.

        Raises ControlError if it is not admitted, or has another token, ValueError for no number of a job.
        """
        if not RESERVED_JOB_ID < job_id <= MAX_JOB_ID:
            raise ValueError(f"job_id: {job_id}: is not a job's number; use 1 to {MAX_JOB_ID}")
        with self._changing:
            epoch = self._leading()
            known = self._permitted(job_id, _digest(token))
            if known is None or not known.admitted:
                others = ", ".join(str(job.job_id) for job in self._store.jobs()) or "none"
                raise ControlError(f"job: {job_id}: is not admitted; admitted: {others}")
            switches = [
                self._switches[place]
                for place in (plan.switch.place for plan in reversed(_plans(known.description)))
                if place in self._switches
            ]
            with _locked(switches):
                self._store.evict(epoch, job_id)
                waiting = [one.name for one in switches if not _closed(one, epoch, known)]
        self._tell(Event("evicted", f"job: {job_id}: evicted", job_id))
        return {"waiting": waiting}

    def listed(self) -> dict[str, Any]:
        """Return the epoch, the switches and the admitted jobs, each with its state."""
        epoch = self._leading()
        return {
            "address": self.address,
            "epoch": epoch,
            "switches": [
                {**switch.described.model_dump(), "state": switch.trouble or "up"}
                for switch in self._switches.values()
            ],
            "jobs": [self._described(job) for job in self._store.jobs()],
        }

    def totals(self) -> dict[str, int]:
        """Return what a primary has now, and how often each kind of event has happened here."""
        switches = self._switches.values() if self._epoch else ()
        up = sum(not switch.trouble for switch in switches)
        now = {"epoch": self._epoch, "jobs": len(self._store.jobs()), "up": up, "away": len(switches) - up}
        return {**now, **self._counts}

    def _described(self, job: StoredJob) -> dict[str, Any]:
        places = [plan.switch.place for plan in _plans(job.description)]
        return {
            "job_id": job.job_id,
            "generation": job.generation,
            "workers": parse_description(job.description).job.workers,
            "switches": [address for address, _ in places],
            "device_ids": [device_id for _, device_id in places],
            "state": next(filter(None, (self._trouble(job.job_id, place) for place in places)), "admitted"),
        }

    def _trouble(self, job_id: int, place: tuple[str, int]) -> str:
        switch = self._switches.get(place)
        if switch is None:
            return f"waits: {place[0]} is not in the cluster's file"
        trouble = switch.trouble or switch.refused.get(job_id)
        return f"waits: {trouble}" if trouble else ""

    def _leading(self) -> int:
        """Return the epoch. Raises BackupError if this controller is not the primary."""
        if not self._epoch:
            raise BackupError(self._store.leader().address)
        return self._epoch

    def _permitted(self, job_id: int, digest: str) -> StoredJob | None:
        """Return the job as it was last admitted. Raises ControlError if its token is another."""
        known = self._store.job(job_id)
        if known and known.token and not hmac.compare_digest(known.token, digest):
            raise ControlError(f"job: {job_id}: was admitted with a token; give --token FILE with the same")
        return known

    def _switch_of(self, plan: SwitchPlan) -> ManagedSwitch:
        try:
            return self._switches[plan.switch.place]
        except KeyError:
            have = ", ".join(switch.name for switch in self._switches.values())
            raise DescriptionError(
                f"{plan.section}.p4runtime: {plan.switch.p4runtime!r}, device_id {plan.switch.device_id}: is "
                f"not a switch of this cluster; use one of {have}"
            ) from None

    def _tell(self, event: Event) -> None:
        self._counts[event.kind] += 1
        self._tell_caller(event)


def _program(switch: PlacedSwitch, pipelines: Mapping[int, P4Schema]) -> P4Schema:
    if switch.tofino is None:
        return pipelines[switch.pipeline_lanes]
    return pipeline_schema(*program_files(switch.pipeline_lanes, switch.tofino))


@lru_cache(maxsize=512)
def _plans(description: str) -> tuple[SwitchPlan, ...]:
    return parse_description(description).plans()


def _digest(token: str) -> str:
    try:
        return hashlib.sha256(token.encode()).hexdigest() if token else ""
    except UnicodeEncodeError:
        raise ValueError("token: is not Unicode text; make one: peelsum certificates token FILE") from None


def _closed(switch: ManagedSwitch, epoch: int, job: StoredJob) -> bool:
    """Close a job on a switch; return whether that succeeded."""
    try:
        close_job(switch.ready(epoch), job.job_id, job.generation)
    except SwitchError:
        switch.doubt()
        return False
    return True


@contextmanager
def _locked(switches: Sequence[ManagedSwitch]) -> Iterator[None]:
    """Hold the locks of several switches."""
    with ExitStack() as stack:
        for switch in sorted(switches, key=lambda one: one.described.place):
            stack.enter_context(switch.lock)
        yield
