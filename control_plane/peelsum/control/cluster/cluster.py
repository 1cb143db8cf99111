"""A cluster's controller: one that owns its switches, with its jobs in a file, an election, and a backup.

The file of `peelsum controller run`, in TOML, describes the switches and where the state is kept.
"""

from __future__ import annotations

import hmac
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Self

from pydantic import Field, model_validator

from peelsum.control.cluster.jobs import JobController, digest_of, plans_of
from peelsum.control.cluster.requests import Guest
from peelsum.control.cluster.store import BackupError, Store, StoredJob
from peelsum.control.cluster.switches import Event, ManagedSwitch, OwnedSwitch
from peelsum.control.description import file_text, parse_description, parsed_toml, validated
from peelsum.control.drivers import program_files
from peelsum.control.errors import ControlError, DescriptionError
from peelsum.control.plan import SwitchPlan
from peelsum.control.sections import MAX_JOB_ID, PlacedSwitch, Section
from peelsum.control.session import pipeline_schema
from peelsum.pipelines import PipelineError
from peelsum.tls import Identity
from peelsum.wire import RESERVED_JOB_ID

#: Polls in a row that must see no primary before a backup takes over from one that did not resign.
_FREE_POLLS = 2
#: How long `close` waits for work on a switch; what it interrupts is finished by the next primary.
_LAST_WORK_S = 2.0


class ControllerSection(Section):
    """`[controller]`: what the controllers of a cluster share."""

    state: str = Field(min_length=1)
    """The SQLite file with the admitted jobs; a relative path starts at this file's folder."""
    poll_s: float = Field(default=1.0, ge=0.05, le=60.0)
    """Seconds between two checks of a switch, and of the primary."""


class ClusterDescription(Section):
    """A cluster: switches with one primary controller, and its backup.

    >>> found = parse_cluster('''
    ... [controller]
    ... state = "cluster.sqlite"
    ... [[switches]]
    ... p4runtime = "10.0.0.1:9559"
    ... [[switches]]
    ... p4runtime = "10.0.0.2:9559"
    ... pipeline_lanes = 32
    ... ''')
    >>> [switch.pipeline_lanes for switch in found.switches]
    [256, 32]
    """

    controller: ControllerSection
    """What the controllers share."""
    switches: tuple[PlacedSwitch, ...] = Field(strict=False, min_length=1)
    """The switches, which nobody else writes to, by the addresses that the jobs' descriptions give."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for number, switch in enumerate(self.switches):
            switch.check_program(f"switches.{number}")
        for (address, device_id), count in Counter(switch.place for switch in self.switches).items():
            if count > 1:
                raise ValueError(
                    f"switches: {address!r}, device_id {device_id}: is listed {count} times; list it once"
                )
        return self


def parse_cluster(text: str, source: str = "cluster description") -> ClusterDescription:
    """Return the cluster in a TOML text. Raises DescriptionError naming `source`, field, value and remedy."""
    return validated(ClusterDescription, parsed_toml(text, source), source, "a cluster description")


def read_cluster(path: Path) -> ClusterDescription:
    """Return the cluster in a file. Raises DescriptionError as `parse_cluster`, or for an unreadable file."""
    return parse_cluster(file_text(path, "a cluster description"), str(path))


class Cluster(JobController):
    """A controller of several switches and jobs, as a context manager.

    Theory of operation. The jobs are in a file, and the switches in a description. One controller is the
    primary; a backup, with the same file, takes its place.

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
        *,
        address: str = "",
        identity: Identity | None = None,
        tell: Callable[[Event], None] = lambda event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """address: where this controller answers. tell: called with every event.

        Raises PipelineError or ControlError for a switch's program that is missing.
        """
        super().__init__(store=store, identity=identity, tell=tell, clock=clock)
        self.address = address
        self._failure: Exception | None = None
        self._poll_s = described.controller.poll_s
        files = [program_files(one.pipeline_lanes, one.tofino) for one in described.switches]
        pipelines = {paths: pipeline_schema(*paths) for paths in set(files)}
        self._owned = {
            switch.place: OwnedSwitch(switch, pipelines[paths], identity)
            for switch, paths in zip(described.switches, files, strict=True)
        }
        self._switches |= self._owned
        self._file = store
        self._epoch = self._free_polls = 0
        self._told_role = self._followed = False
        self._polls, self._ended = Condition(), False
        self._threads: list[Thread] = []

    def __enter__(self) -> Cluster:
        """Start to poll, in a thread for the election and one for each switch."""
        works = [self.elect, *(partial(self.keep, switch) for switch in self._switches.values())]
        self._threads = [Thread(target=self._repeat, args=(work,), daemon=True) for work in works]
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Stop. A primary resigns, and its backup takes over at once; the jobs stay as they are."""
        self.end()
        for thread in self._threads:
            thread.join(_LAST_WORK_S)
        if self._epoch:
            with suppress(ControlError):  # there is another primary already
                self._file.resign(self._epoch)
        super().close()

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
        leader = self._file.leader()
        if self._epoch and leader.epoch != self._epoch:
            self._leave()
            self._told_role, self._followed = False, True
        if self._epoch:
            return
        if self._may_lead(resigned=not leader.address):
            self._epoch = self._file.take_over(self.address, list(self._switches))
            self.tell(Event("primary", f"controller: is the primary, in epoch {self._epoch}"))
            self._poll_now()
        elif not self._told_role:
            self.tell(Event("backup", f"controller: is a backup; {self._primary(leader.address)}"))
        self._told_role = True

    def _primary(self, address: str) -> str:
        if not address:
            return "there is no primary yet"
        if self._file.switches() == set(self._switches):
            return f"the primary is at {address}"
        return f"the primary at {address} has other switches in its file, so it will not take over"

    def _may_lead(self, *, resigned: bool) -> bool:
        """Return whether every switch that answers has been without a primary for long enough."""
        seen = []
        for switch in self._owned.values():
            with switch.lock:
                seen.append(switch.has_primary())
        free = False in seen and True not in seen
        self._followed |= True in seen
        if self._followed and self._file.switches() != set(self._switches):
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

    def poll(self) -> None:
        """Run each thread's work once; for tests."""
        self.elect()
        super().poll()

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

    def respond(self, guest: Guest) -> dict[str, Any]:
        """Return the response to a request: `error` says why it was not granted."""
        values = guest.request
        token = values.get("token", "")
        try:
            match values["call"]:
                case "admit":
                    return self.admit(values["description"], values.get("source") or "job description", token)
                case "evict":
                    return self.evict(values["job_id"], token)
                case _:
                    return self.listed()
        except BackupError as error:
            return {"error": str(error), "backup": True}
        except (ControlError, PipelineError, ValueError) as error:
            return {"error": " ".join(str(error).split())}

    def admit(self, text: str, source: str = "job description", token: str = "") -> dict[str, Any]:
        """Admit a job, or admit it again, in a new generation; return its admission.

        token: what later changes of this job need; empty for none. Raises ControlError, or ValueError for a
        token that is not text. After a switch's error, an already admitted job continues.
        """
        self._leading()
        return self._admit(parse_description(text, source), text, digest_of(token))

    def evict(self, job_id: int, token: str = "") -> dict[str, Any]:
        """Evict a job; return the switches that are away, and will follow when they are up, as `waiting`.

        Raises ControlError if it is not admitted, or has another token, ValueError for no number of a job.
        """
        if not RESERVED_JOB_ID < job_id <= MAX_JOB_ID:
            raise ValueError(f"job_id: {job_id}: is not a job's number; use 1 to {MAX_JOB_ID}")
        return super().evict(job_id, token)

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
        return {**now, **self.counts()}

    def _described(self, job: StoredJob) -> dict[str, Any]:
        places = [plan.switch.place for plan in plans_of(job)]
        return {
            "job_id": job.job_id,
            "generation": job.generation,
            "workers": parse_description(str(job.description)).job.workers,
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

    def _before_writing(self, switch: ManagedSwitch, plan: SwitchPlan) -> None:
        if switch.trouble:  # it may be up since the last poll
            self.keep(switch)

    def _leading(self) -> int:
        """Return the epoch. Raises BackupError if this controller is not the primary."""
        if not self._epoch:
            raise BackupError(self._file.leader().address)
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
