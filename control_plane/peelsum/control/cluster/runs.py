"""Run a job and its aggregation server for each training that starts, as `peelsum job serve` does.

A run is an admission of the job with a server. If it survives the loss of ranks, those that are left continue
in further admissions of the same run. Further groups of workers get additional jobs, at spare ports of the
switch, until their leases end.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from signal import SIGKILL
from typing import Any

from peelsum.control.cluster.jobs import JobController
from peelsum.control.cluster.members import MemberReport, Members, latest_chunk
from peelsum.control.cluster.requests import ConnectedClient
from peelsum.control.cluster.switches import Event
from peelsum.control.description import AnyDescription, JobDescription, PortsSection
from peelsum.control.errors import ControlError, LeaseHeldError, NotPrimaryError, SwitchError
from peelsum.control.sections import MAX_JOB_ID
from peelsum.logs import RateLimit
from peelsum.processes import Child, ProcessError
from peelsum.processes.children import ADMISSION, RestartableProcess
from peelsum.wire.datagrams import Address

#: More chunks than the first sum of a generation has, which is of one word for each worker.
_JOINING_CHUNKS = 64
#: Seconds that a job's server may take to begin a new generation.
_SERVER_PATIENCE_S = 10.0
#: Seconds from the start of a run to that of the standby server, which would slow down the ranks' own start.
_STANDBY_DELAY_S = 5.0
#: Seconds that a server which was started again may be silent before it is ready.
_START_PATIENCE_S = 30.0


class ServerStarter:
    """Starts aggregation servers as child processes, after `keep_standby` without the time for imports."""

    def __init__(self) -> None:
        #: The lanes that standby processes are warmed up for; 0 without standby processes.
        self._lanes = 0
        self._standby: Child | None = None

    def keep_standby(self, lanes: int) -> None:
        """Start a standby process: it imports and warms up a server of `lanes` lanes, and then waits.

        When `start` has used it, another one is started.
        """
        self.close()
        self._lanes = lanes
        with suppress(OSError):  # no more processes, or files; the next server then takes longer to start
            self._standby = Child("server", [sys.executable, "-m", "peelsum.cli.standby_server", str(lanes)])

    def start(self, *arguments: str, environment: Mapping[str, str], wait: bool = True) -> Child:
        """Start `peelsum` with these arguments, in the standby process if there is one.

        wait: whether to wait until it is ready. Raises ProcessError.
        """
        child, self._standby = self._standby, None
        if child is not None and not child.running:
            child.stop()
            child = None
        arguments = (*arguments, "--json", "--child")
        if child is None:
            child = Child.peelsum("server", *arguments, environment=environment)
        else:
            child.send(arguments=arguments, environment=dict(environment))
        try:
            if wait:
                child.ready()
        except BaseException:
            child.stop()
            raise
        finally:
            if self._lanes:
                self.keep_standby(self._lanes)
        return child

    def close(self) -> None:
        """End the standby process, if there is one, and start no more of them."""
        self._lanes = 0
        if self._standby is not None:
            self._standby.stop()
            self._standby = None


class JobRun:
    """A job, and its current run if there is one."""

    def __init__(
        self,
        controller: JobController,
        job: AnyDescription,
        bases: Sequence[Address],
        *,
        ethernet: bool,
        servers: ServerStarter | None = None,
    ) -> None:
        """bases: for each switch, the host and the port number that precedes the UDP ports of switch port 1.

        ethernet: whether ports are interfaces; `bases` are then the addresses to which packets are sent.
        servers: starts the run's server; by default, the run has one of its own.
        """
        self.job = job
        #: When the standby server is started, by `time.monotonic`; a lost server is then replaced at once.
        self._standby_at, self._owns_servers = math.inf, servers is None
        self._servers = servers or ServerStarter()
        self._controller, self._bases, self._ethernet = controller, bases, ethernet
        #: The UDP port of the run's servers on this host, one after the other.
        self._local_port = 0
        #: The current admission, and its job: the described one, or with the workers that are left.
        self._admission: dict[str, Any] = {}
        self._admitted_job = job
        self._server: RestartableProcess | None = None
        #: When the server was started again, by `time.monotonic`; None once it is ready.
        self._restarted_at: float | None = None
        #: The members of the current run; None before the first one.
        self.members: Members | None = None

    def start(self, client: ConnectedClient, *, is_new: bool = False) -> dict[str, Any]:
        """End the current run, and start another; return the response to its workers.

        client: the run's rank 0. is_new: as for `JobController.admit_job`.
        Raises ControlError or ProcessError; there is no run then.
        """
        self.end()
        survives = client.request.get("on_lost") == "continue"
        with ExitStack() as run:
            self._admitted_job, self._local_port = self.job, _free_port()
            self._admission = self._controller.admit_job(self.job, is_new=is_new)
            run.callback(self._evict)
            self._server = RestartableProcess(self._start_server(), lambda: self._start_server(wait=False))
            self._restarted_at = None
            run.pop_all()
        described = self.job.job
        self.members = Members(client, described.workers, survives=survives, patience_s=described.timeout_s)
        if survives:
            client.successor = self.members.first
            if self._owns_servers:
                self._standby_at = time.monotonic() + _STANDBY_DELAY_S
        return {**self._response(), "run": self.members.token}

    def update(self, now: float) -> None:
        """Notify the members of a rank that was lost; admit those that are left once they have agreed."""
        if self.members is None or self._server is None:
            return
        for text in self.members.update(now):
            self._controller.report(Event("run", text, self.job.job.id))
        reports = self.members.agreed()
        if reports is None:
            return
        entered = self.members.admit_entering()
        ranks, before = sorted({*reports, *entered}), (self._admitted_job, self._admission["generation"])
        try:
            self._continue_with(ranks, reports.values())
        except (ControlError, ProcessError) as error:
            self._controller.report(Event("error", str(error), self.job.job.id))
            self.end(f"those that are left could not be admitted ({error}); start all ranks again")
            return
        most = max(report.sums for report in reports.values())
        completed = [reports[rank].sums if rank in reports else most for rank in ranks]
        generation = {**self._response(), "members": ranks, "completed": completed, "entered": entered}
        self.members.notify(generation)
        # Now, because the members need not wait for it, nor for a switch that was lost with its rack.
        self._controller.evict_from(*before, self._admitted_job)
        numbers = ", ".join(map(str, ranks))
        text = f"generation {self._admission['generation']}: continues with ranks {numbers}"
        self._controller.report(Event("run", text, self.job.job.id))

    def _response(self) -> dict[str, Any]:
        """Return what workers need to connect; `switch` has the address of each worker's switch port."""
        sizes = self.job.rack_sizes or (self.job.job.workers,)
        racks = zip(self._bases[-len(sizes) :], sizes, strict=True)
        bases = [base for base, size in racks for _ in range(size)]
        addresses = [*map(self._port_address, bases, self.job.worker_ports)]
        wire = {"wire": "ethernet"} if self._ethernet else {}
        return {"admission": self._admission, "switch": addresses, **wire}

    def _continue_with(self, ranks: Sequence[int], reports: Collection[MemberReport]) -> None:
        """Admit the job in a new generation of these ranks, and have its server serve that.

        The secret remains, so that the switch's ports keep the addresses of the hosts behind them. No slots
        are freed, which would take most of the time. Instead, the generation begins after all chunk ids that
        slots may have. They are at most a window beyond those that a survivor has submitted. Before the first
        sum, a rank that was lost may have begun at a random id alone, so slots are freed then.
        Raises ControlError or ProcessError.
        """
        assert self._server is not None
        self._admitted_job = self.job.with_workers(ranks)
        options = {
            "secret": self._admission["secret"],
            "free": any(report.sums == 0 for report in reports),
        }
        try:
            admission = self._controller.admit_job(self._admitted_job, **options)
        except NotPrimaryError:  # after a long wait, in which nobody was answered
            raise
        except SwitchError as error:  # the switch may have been restarted, and be ready now or soon
            self._controller.report(Event("error", f"{error}; trying once more", self.job.job.id))
            admission = self._controller.admit_job(self._admitted_job, **options)
        chunks = [self._admission.get("first_chunk", 0), *(report.chunk for report in reports)]
        first_chunk = (latest_chunk(chunks) + 2 * admission["window"] + _JOINING_CHUNKS) % (1 << 32)
        self._admission = {**admission, "first_chunk": first_chunk}
        child, has_begun = self._server.child, False
        child.send(admission=self._admission)
        with suppress(ProcessError):  # it has ended, or is stopped
            # A server that ends, as it has heard nothing since a rank left in order, prints its statistics.
            while not has_begun and (message := child.next_message(_SERVER_PATIENCE_S)) is not None:
                has_begun = message.get("generation") == admission["generation"]
        if has_begun:
            self._restarted_at = None
        else:
            if child.running:
                os.kill(child.pid, SIGKILL)
            self._restart_server(self._server)

    def _restart_server(self, server: RestartableProcess) -> None:
        """Start a server that has ended again, without waiting until it is ready.

        The ranks of all groups need this thread meanwhile. `check` kills the server if it does not get ready.
        Raises ProcessError.
        """
        self._controller.report(Event("server", server.restart(), self.job.job.id))
        self._restarted_at = time.monotonic()

    def end(self, reason: str = "the controller has ended the run; start all ranks again") -> None:
        """End the current run, if there is one: tell its members, stop the server, then evict the job."""
        server, self._server = self._server, None
        self._standby_at = math.inf
        if self._owns_servers:
            self._servers.close()
        if server is not None:
            if self.members is not None:
                self.members.end(reason)
            server.stop()
            self._evict()

    def check(self) -> None:
        """Restart the server if it has ended. End a run that cannot continue."""
        if self._server is None:
            return
        if self._owns_servers and self.members is not None and not self.members.clients:
            self._standby_at = math.inf
            self._servers.close()
        elif time.monotonic() >= self._standby_at:
            self._standby_at = math.inf
            self._servers.keep_standby(self.job.plans()[0].switch.pipeline_lanes)
        try:
            # Without its switch, a restarted server would end immediately, and the run with it.
            if self._server.child.status and self._controller.is_up(self._admitted_job):
                self._restart_server(self._server)
            elif self._restarted_at is not None and self._server.child.running:
                self._await_ready(self._server.child, self._restarted_at)
        except ProcessError as error:
            self._controller.report(Event("error", str(error), self.job.job.id))
            self.end()
        if self._controller.generation(self.job.job.id) is None:
            self.end()

    def _await_ready(self, child: Child, restarted_at: float) -> None:
        """Note that a server is ready, or kill it if it is silent for too long: then another is started."""
        if child.has_message(0.0):
            self._restarted_at = None
        elif time.monotonic() >= max(restarted_at, child.last_output_at) + _START_PATIENCE_S:
            os.kill(child.pid, SIGKILL)

    def _evict(self) -> None:
        """Evict the job, if nobody else has ended it. Do not wait for switches that do not answer."""
        job_id = self.job.job.id
        if self._controller.generation(job_id) is not None:
            for switch in self._controller.evict(job_id)["waiting"]:
                text = f"job: {job_id}: is still on {switch}, which is away, or which another controller uses"
                self._controller.report(Event("error", text, job_id))

    def _start_server(self, *, wait: bool = True) -> Child:
        address = self._port_address(self._bases[0], self.job.server_port)
        wire = ["--ethernet"] if self._ethernet else []
        command = ("server", "run", "--switch", address, *wire, "--local-port", str(self._local_port))
        environment = {ADMISSION: json.dumps(self._admission)}
        return self._servers.start(*command, environment=environment, wait=wait)

    def _port_address(self, base: Address, port: int) -> str:
        return f"{base[0]}:{base[1] if self._ethernet else base[1] + port}"


class JobRuns:
    """Starts and ends the runs of a job, and of further groups of its workers. A context manager."""

    def __init__(
        self,
        controller: JobController,
        job: AnyDescription,
        bases: Sequence[Address],
        *,
        ethernet: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """bases, ethernet: as for `JobRun`. clock: returns the time in seconds."""
        self._clock = clock
        self._controller, self._bases, self._ethernet = controller, bases, ethernet
        self._main = JobRun(controller, job, bases, ethernet=ethernet)
        self._job = job if isinstance(job, JobDescription) else None
        # The port that has been free for longest is used first, as late packets of its last user may arrive.
        self._spare_ports = deque(self._job.ports.spare if self._job else ())
        self._groups: dict[ConnectedClient, JobRun] = {}
        #: Clients that request in a loop what is refused do not fill the log.
        self._refusals = RateLimit(clock)
        self._servers = ServerStarter()

    def __enter__(self) -> JobRuns:
        if self._job is not None and self._job.ports.spare:
            self._servers.keep_standby(self._job.switch.pipeline_lanes)
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()
        for client in list(self._groups):
            self._end_group(client)
        self._main.end()

    def respond(self, client: ConnectedClient) -> dict[str, Any]:
        """Start a run, or let a rank join one; return the response.

        The response has `error` if that failed, `refused` if there is no room for a further group.
        """
        if client.request["call"] == "join":
            return self._join(client)
        if client.request["call"] == "enter":
            return self._enter(client)
        try:
            if client.ranks is None:
                response = self._main.start(client)
            else:
                response = self._start_group(client, client.ranks)
        except (ControlError, ProcessError, OSError) as error:
            self._controller.report(Event("error", str(error)), self._refusals)
            return {"error": str(error)}
        is_refused = bool({"error", "refused"} & response.keys())
        event = Event("run", _event_text(response, client))
        self._controller.report(event, self._refusals if is_refused else None)
        return response

    def _join(self, client: ConnectedClient) -> dict[str, Any]:
        """Make a rank a member of the run whose token it has; return the response."""
        rank, token = client.request["rank"], client.request["run"]
        for run in (self._main, *self._groups.values()):
            if run.members is not None and run.members.is_token(token):
                error = run.members.join(rank, client)
                return {"error": error} if error else {"joined": rank}
        return {"error": f"rank {rank}: its run has ended; start all ranks again"}

    def _enter(self, client: ConnectedClient) -> dict[str, Any]:
        """Let a client enter the main run; return the response with its rank."""
        members = self._main.members
        if members is None or not members.survives or members.first() is None:
            return {"error": "enter: there is no run that survives losses; start one with on_lost='continue'"}
        rank = members.enter(client, self._clock())
        if rank is None:
            return {"error": "enter: the run has all its ranks; enter after one was lost", "full": True}
        return {"entering": rank, "lanes": self._main.job.plans()[0].switch.pipeline_lanes}

    def update(self) -> None:
        """Handle what has happened to the connections of all runs' ranks."""
        now = self._clock()
        for run in (self._main, *self._groups.values()):
            run.update(now)

    def check(self) -> None:
        """Check all runs: restore what switches have lost, and end runs of groups whose leases have ended."""
        self._controller.poll()
        self._main.check()
        for client, run in list(self._groups.items()):
            if client.closed:
                self._end_group(client)
            else:
                run.check()

    def _start_group(self, client: ConnectedClient, ranks: int) -> dict[str, Any]:
        """Start a run for a further group of `ranks` workers, at spare ports; return the response."""
        self.check()
        if self._job is None:
            return {"refused": "a job over racks has no jobs for further groups; use one switch"}
        if self._ethernet:
            return {
                "refused": "an interface has one worker, so further groups need ports that are UDP sockets"
            }
        if not 2 <= ranks <= self._job.job.workers:
            return {"error": f"a group of {ranks} ranks; request one of 2 to {self._job.job.workers}"}
        if len(self._spare_ports) <= ranks:
            return {
                "refused": f"a group of {ranks} ranks needs {ranks + 1} spare ports of the switch, and "
                f"{len(self._spare_ports)} are free; add some to ports.spare of the job's description"
            }
        ports = [self._spare_ports.popleft() for _ in range(ranks + 1)]
        taken_ids = {self._job.job.id, *(run.job.job.id for run in self._groups.values())}
        try:
            for number in (candidate for candidate in range(MAX_JOB_ID, 0, -1) if candidate not in taken_ids):
                # The first port is the group's server's.
                job = _with_ports(self._job, number, ports[0], tuple(ports[1:]))
                run = JobRun(self._controller, job, self._bases, ethernet=False, servers=self._servers)
                try:
                    response = run.start(client, is_new=True)
                except BaseException as error:
                    self._controller.release_lease(run.job)
                    if isinstance(error, LeaseHeldError):
                        continue
                    raise
                self._groups[client] = run
                return response
            return {"refused": f"all {MAX_JOB_ID} numbers of jobs are taken at the switch; evict one"}
        finally:
            if client not in self._groups:
                self._spare_ports.extend(ports)

    def _end_group(self, client: ConnectedClient) -> None:
        """End the run of a group, and free its ports."""
        run = self._groups.pop(client)
        run.end()
        self._controller.release_lease(run.job)
        number, ports = run.job.job.id, (run.job.server_port, *run.job.worker_ports)
        self._controller.report(Event("run", f"group's job {number}: ended with {client.name}"))
        self._spare_ports.extend(ports)


def _free_port() -> int:
    """Return a UDP port that is free now."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind(("0.0.0.0", 0))
        return int(probe.getsockname()[1])


def _with_ports(job: JobDescription, number: int, server: int, workers: tuple[int, ...]) -> JobDescription:
    """Return a job of this number at other ports of the same switch."""
    return JobDescription(
        job=job.job.model_copy(update={"id": number, "workers": len(workers)}),
        switch=job.switch,
        ports=PortsSection(server=server, workers=workers),
        hosts={name: host for name, host in job.hosts.items() if int(name) in (server, *workers)},
    )


def _event_text(response: dict[str, Any], client: ConnectedClient) -> str:
    """Return the text of the event about a response."""
    if reason := response.get("refused") or response.get("error"):
        return f"refused {client.name}: {reason}"
    admission = response["admission"]
    what = "" if client.ranks is None else f"group's job {admission['job_id']}: "
    return f"{what}generation {admission['generation']}: started for {client.name}"
