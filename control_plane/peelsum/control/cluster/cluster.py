"""The controller of a cluster, which owns its switches: with a state file, leader election and a backup.

The TOML file of `peelsum controller run` describes the switches and names the state file.
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

from peelsum.control.cluster.jobs import JobController, plans_of, token_digest
from peelsum.control.cluster.requests import ConnectedClient
from peelsum.control.cluster.store import BackupError, Store, StoredJob
from peelsum.control.cluster.switches import Event, OwnedSwitch, SharedSwitch
from peelsum.control.description import SwitchPlan, file_text, parse_description, parsed_toml, validated
from peelsum.control.drivers import program_files
from peelsum.control.errors import ControlError, DescriptionError
from peelsum.control.sections import MAX_JOB_ID, PlacedSwitch, Section
from peelsum.control.session import pipeline_schema
from peelsum.pipelines import PipelineError
from peelsum.tls import TlsIdentity
from peelsum.wire import RESERVED_JOB_ID

#: If a primary did not resign, a backup takes over after so many polls in a row without a primary.
_POLLS_WITHOUT_PRIMARY = 2
#: Seconds that `close` waits for each thread. Work that is interrupted is finished by the next primary.
_JOIN_S = 2.0


class ControllerSection(Section):
    """`[controller]`: the settings that all controllers of a cluster share."""

    state: str = Field(min_length=1)
    """The SQLite file with the admitted jobs. A relative path starts at this description's folder."""
    poll_s: float = Field(default=1.0, ge=0.05, le=60.0)
    """Seconds between two checks of a switch, and of the election."""


class ClusterDescription(Section):
    """A cluster: switches that a primary controller and its backup own.

    >>> cluster = parse_cluster('''
    ... [controller]
    ... state = "cluster.sqlite"
    ... [[switches]]
    ... p4runtime = "10.0.0.1:9559"
    ... [[switches]]
    ... p4runtime = "10.0.0.2:9559"
    ... pipeline_lanes = 32
    ... ''')
    >>> [switch.pipeline_lanes for switch in cluster.switches]
    [256, 32]
    """

    controller: ControllerSection
    """The settings of the controllers."""
    switches: tuple[PlacedSwitch, ...] = Field(strict=False, min_length=1)
    """The switches. Their addresses are as in the jobs' descriptions, and no other program writes to them."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for number, switch in enumerate(self.switches):
            if switch.tofino is not None:
                switch.tofino.check(f"switches.{number}.tofino")
        for (address, device_id), count in Counter(switch.place for switch in self.switches).items():
            if count > 1:
                raise ValueError(
                    f"switches: {address!r}, device_id {device_id}: is listed {count} times; list it once"
                )
        return self


def parse_cluster(text: str, source: str = "cluster description") -> ClusterDescription:
    """Parse a cluster description. Raises DescriptionError, which names source, field, value and remedy."""
    return validated(ClusterDescription, parsed_toml(text, source), source, "a cluster description")


def read_cluster(path: Path) -> ClusterDescription:
    """Read a cluster description from a file. Raises DescriptionError."""
    return parse_cluster(file_text(path, "a cluster description"), str(path))


class Cluster(JobController):
    """A controller of the jobs of several switches, as a context manager.

    Theory of operation. The desired jobs are in a state file. One controller is the primary; a backup with
    the same file takes over when the primary ends.

    | state   | event                                              | action                                 |
    |---------|----------------------------------------------------|----------------------------------------|
    | backup  | no switch that answers has a primary, for two polls| write epoch + 1 to the file; primary   |
    | backup  | the same, and the last primary has resigned        | the same, after the first poll         |
    | primary | the file has a later epoch                         | become a backup                        |
    | primary | every poll, for each switch                        | bid the epoch, and reconcile           |

    The epoch is the election id at every switch, where the highest id wins immediately. So an old primary
    that was suspended and continues can no longer write, neither to switches nor to the file.
    """

    def __init__(
        self,
        described: ClusterDescription,
        store: Store,
        *,
        address: str = "",
        identity: TlsIdentity | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """described: the cluster. address: where this controller answers requests.

        on_event: called with every event.

        Raises PipelineError or ControlError if the program of a switch is missing.
        """
        super().__init__(store=store, identity=identity, on_event=on_event, clock=clock)
        self.address = address
        self._failure: Exception | None = None
        self._poll_s = described.controller.poll_s
        files = [program_files(switch.pipeline_lanes, switch.tofino) for switch in described.switches]
        pipelines = {paths: pipeline_schema(*paths) for paths in set(files)}
        self._owned = {
            switch.place: OwnedSwitch(switch, pipelines[paths], identity)
            for switch, paths in zip(described.switches, files, strict=True)
        }
        self._switches |= self._owned
        self._file = store
        self._epoch = self._polls_without_primary = 0
        self._role_reported = self._has_followed = False
        self._polls, self._ended = Condition(), False
        self._threads: list[Thread] = []

    def __enter__(self) -> Cluster:
        """Start to poll, in one thread for the election and one for each switch."""
        works = [self.elect, *(partial(self.reconcile, switch) for switch in self._switches.values())]
        self._threads = [Thread(target=self._repeat, args=(work,), daemon=True) for work in works]
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Stop. A primary resigns, so that the backup takes over immediately. Jobs stay on the switches."""
        self.end()
        for thread in self._threads:
            thread.join(_JOIN_S)
        if self._epoch:
            with suppress(ControlError):  # there is another primary already
                self._file.resign(self._epoch)
        super().close()

    def end(self) -> None:
        """Stop polling, and make `wait` return."""
        with self._polls:
            self._ended = True
            self._polls.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for `end`; return whether it was called. Raise a thread's first error."""
        with self._polls:
            ended = self._polls.wait_for(lambda: self._ended, timeout_s)
        if self._failure is not None:
            raise self._failure
        return ended

    # The election

    @property
    def is_primary(self) -> bool:
        """Whether this controller is the primary, as of the last poll."""
        return self._epoch > 0

    def elect(self) -> None:
        """Poll the election: become the primary if there is none, or a backup if there is another."""
        leader = self._file.leader()
        if self._epoch and leader.epoch != self._epoch:
            self._step_down()
            self._role_reported, self._has_followed = False, True
        if self._epoch:
            return
        if self._may_take_over(resigned=not leader.address):
            self._epoch = self._file.take_over(self.address, list(self._switches))
            self.report(Event("primary", f"controller: is the primary, in epoch {self._epoch}"))
            with self._polls:
                self._polls.notify_all()
        elif not self._role_reported:
            self.report(Event("backup", f"controller: is a backup; {self._describe_primary(leader.address)}"))
        self._role_reported = True

    def _describe_primary(self, address: str) -> str:
        """Return a text about the primary, for the event that this controller is a backup."""
        if not address:
            return "there is no primary before a switch answers"
        if self._file.switches() == set(self._switches):
            return f"the primary is at {address}"
        return f"the primary at {address} has other switches in its file, so it will not take over"

    def _may_take_over(self, *, resigned: bool) -> bool:
        """Return whether no switch that answers has had a primary for long enough."""
        observations = []
        for switch in self._owned.values():
            with switch.lock:
                observations.append(switch.has_primary())
        no_primary = False in observations and True not in observations
        self._has_followed |= True in observations
        if self._has_followed and self._file.switches() != set(self._switches):
            return False  # the primary does not control these switches, so they would look free
        self._polls_without_primary = self._polls_without_primary + 1 if no_primary else 0
        return self._polls_without_primary >= (1 if resigned else _POLLS_WITHOUT_PRIMARY)

    def _step_down(self) -> None:
        """Become a backup: close all connections."""
        self._epoch = self._polls_without_primary = 0
        for switch in self._switches.values():
            with switch.lock:
                switch.close()
                switch.problem = "not connected yet"

    # The switches

    def poll(self) -> None:
        """Do the work of each thread once, for tests."""
        self.elect()
        super().poll()

    def _repeat(self, work: Callable[[], None]) -> None:
        """Do `work` every poll interval, until `end`; the loop of a thread."""
        while not self._ended:
            try:
                work()
            except Exception as error:
                self._failure = self._failure or error
                self.end()
            with self._polls:
                if not self._ended:
                    self._polls.wait(self._poll_s)

    # Jobs

    def respond(self, client: ConnectedClient) -> dict[str, Any]:
        """Carry out a client's request; return the response, which has `error` if the request failed."""
        values = client.request
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
        """Admit a job, or admit it again in a new generation; return its admission.

        text: the description, TOML. token: what later changes of this job need; empty for no token.
        Raises ControlError, or ValueError for a token that is no valid text. If a switch fails, the last
        admission stays in force.
        """
        self._require_primary()
        return self._admit(parse_description(text, source), text, token_digest(token))

    def evict(self, job_id: int, token: str = "") -> dict[str, Any]:
        """Evict a job; return the switches that do not answer now, as `waiting`; they follow when they do.

        Raises ControlError if the job is not admitted or has another token, ValueError for an invalid number.
        """
        if not RESERVED_JOB_ID < job_id <= MAX_JOB_ID:
            raise ValueError(f"job_id: {job_id}: is not a job's number; use 1 to {MAX_JOB_ID}")
        return super().evict(job_id, token)

    def listed(self) -> dict[str, Any]:
        """Return the epoch, and the switches and the admitted jobs with their states."""
        epoch = self._require_primary()
        return {
            "address": self.address,
            "epoch": epoch,
            "switches": [
                {**switch.described.model_dump(), "state": switch.problem or "up"}
                for switch in self._switches.values()
            ],
            "jobs": [self._job_state(job) for job in self._store.jobs()],
        }

    def totals(self) -> dict[str, int]:
        """Return the epoch, the numbers of jobs and switches, and the number of events of each kind."""
        switches = self._switches.values() if self._epoch else ()
        up = sum(not switch.problem for switch in switches)
        now = {"epoch": self._epoch, "jobs": len(self._store.jobs()), "up": up, "away": len(switches) - up}
        return {**now, **self.counts()}

    def _job_state(self, job: StoredJob) -> dict[str, Any]:
        """Return a job with its switches and its state, as `listed` does."""
        places = [plan.switch.place for plan in plans_of(job)]
        return {
            "job_id": job.job_id,
            "generation": job.generation,
            "workers": parse_description(str(job.description)).job.workers,
            "switches": [address for address, _ in places],
            "device_ids": [device_id for _, device_id in places],
            "state": next(
                filter(None, (self._problem_of(job.job_id, place) for place in places)), "admitted"
            ),
        }

    def _problem_of(self, job_id: int, place: tuple[str, int]) -> str:
        """Return why a job is not on a switch; empty if it is."""
        switch = self._switches.get(place)
        if switch is None:
            return f"waits: {place[0]} is not in the cluster's file"
        problem = switch.problem or switch.refused.get(job_id)
        return f"waits: {problem}" if problem else ""

    def _prepare_switch(self, switch: SharedSwitch, plan: SwitchPlan) -> None:
        if switch.problem:  # it may be up since the last poll
            self.reconcile(switch)

    def _require_primary(self) -> int:
        """Return the epoch. Raises BackupError if this controller is a backup."""
        if not self._epoch:
            raise BackupError(self._file.leader().address)
        return self._epoch

    def _check_token(self, job_id: int, digest: str) -> StoredJob | None:
        """Return the job's last admission. Raises ControlError if it has another token."""
        known = self._store.job(job_id)
        if known and known.token and not hmac.compare_digest(known.token, digest):
            raise ControlError(f"job: {job_id}: was admitted with a token; give --token FILE with the same")
        return known

    def _switch_of(self, plan: SwitchPlan) -> SharedSwitch:
        try:
            return self._switches[plan.switch.place]
        except KeyError:
            have = ", ".join(switch.name for switch in self._switches.values())
            raise DescriptionError(
                f"{plan.section}.p4runtime: {plan.switch.p4runtime!r}, device_id {plan.switch.device_id}: is "
                f"not a switch of this cluster; use one of {have}"
            ) from None
