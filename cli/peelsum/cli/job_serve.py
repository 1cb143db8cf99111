"""`peelsum job serve`: admits a job again whenever its workers start, over one switch or racks.

Rank 0 of a start sends a request; `job_requests` decides which request gets the job's lease. The response
follows once the job is admitted in a new generation and its server runs. It is one JSON object, with
`admission` and with `switch`, the addresses of the workers' ports in order; or with `error`.

Rank 0 of a further group requests a job for that group. The job runs beside the first, at spare ports, with
a number and a server of its own, until the connection of its request ends. Without room for the job, the
response has `refused`, the reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import json as json_
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from signal import SIG_IGN, SIGHUP, SIGINT, SIGTERM, getsignal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.cli.holding import LOADING, LOOK_EVERY_S, PATIENCE_S, ControllerCounts, event_teller
from peelsum.cli.options import (
    ChildOf,
    Json,
    LogFormat,
    Metrics,
    Tls,
    address,
    identity,
    reporting,
    serve_metrics,
)
from peelsum.processes import Child, ProcessError, Signalled, end_with_parent, say
from peelsum.processes.children import ADMISSION
from peelsum.processes.progress import taking_time
from peelsum.processes.reports import told_of_compiling
from peelsum.processes.restarts import RestartableProcess
from peelsum.topology import TopologyError, records
from peelsum.wire import UDP_PORT

if TYPE_CHECKING:
    from peelsum.cli.job_requests import Guest, Requests
    from peelsum.control import Fabric, JobDescription, RacksDescription, Watch
    from peelsum.pipelines import Pipeline
    from peelsum.tls import Identity


class ServeError(Exception):
    """The job cannot be served with these options."""


class NumberTakenError(Exception):
    """Another controller has admitted a job of this number."""


def serve(
    description: Annotated[Path, typer.Argument(help="The job's description, TOML.")],
    udp: Annotated[
        list[str] | None,
        typer.Option(
            help="The switch's host:port, with the port of its --udp-base. With racks, repeat it for each "
            "switch: the spine, then the racks in order."
        ),
    ] = None,
    ethernet: Annotated[
        bool,
        typer.Option(
            help="The switch's ports are interfaces, on one of whose links this host is, as the server; "
            "packets go to switch.address of the description."
        ),
    ] = False,
    listen: Annotated[
        str, typer.Option(help="Where rank 0 requests the job, host:port (TCP).")
    ] = "127.0.0.1:9560",
    tls: Tls = None,
    token: Annotated[
        Path | None, typer.Option(help="The job's token, which requests must contain; needed with --tls.")
    ] = None,
    metrics: Metrics = None,
    log_format: LogFormat = None,
    json: Json = False,
    child: ChildOf = False,
) -> None:
    """Admit a job again, with a new aggregation server, whenever its workers start; until Ctrl-C."""
    from peelsum.cli.job_requests import Requests
    from peelsum.control import JobDescription, read_description
    from peelsum.pipelines import pipeline
    from peelsum.tls import read_token, require_tls
    from peelsum.transport.warming import warm_up

    if child:
        end_with_parent()
    tell = told_of_compiling(child=child)
    bases = [address(one, "the switch") for one in udp or ()]
    place = address(listen, "the address to listen at")
    with reporting(ServeError, TopologyError), ExitStack() as stack:
        certificate, secret = identity(tls), "" if token is None else read_token(token)
        require_tls("--listen", place[0], certificate)
        if certificate is not None and not secret:
            raise ServeError(
                "token: is missing; give --token FILE (peelsum certificates token FILE makes it)"
            )
        job = read_description(description)
        if ethernet and bases:
            raise ServeError("udp: is for ports that are UDP sockets; leave it or --ethernet out")
        if ethernet:
            bases = _addresses_of(job)
        elif len(bases) != len(job.plans()):
            raise ServeError(
                f"udp: {len(bases)} for {len(job.plans())} switches; give --udp once for each, or --ethernet"
            )
        compiled = pipeline(job.plans()[0].switch.pipeline_lanes)
        tell_event, counts = event_teller(log_format, json, job=job.job.id), ControllerCounts(job.job.id)
        runs_of = partial(
            _Runs, compiled=compiled, bases=bases, tell=tell_event, certificate=certificate, ethernet=ethernet
        )
        runs = stack.enter_context(runs_of(job, counts))
        with taking_time(LOADING, tell):
            fabric = runs.connect()  # report errors before the first request
        # Before jobs are evicted: a controller that is refused must not evict those of one that runs.
        listening, left = stack.enter_context(_listening(place)), []
        if isinstance(job, JobDescription):
            stack.enter_context(_only_server_of(job))
            left = fabric.evict_at(job.ports.spare)
        fabric.become_backup()
        warm_up(job.plans()[0].switch.pipeline_lanes)  # so that no start waits for its server to compile
        requests = stack.enter_context(
            Requests(listening, f"job {job.job.id}", identity=certificate, token=secret)
        )
        groups = stack.enter_context(
            _Groups(
                job, lambda one: runs_of(one, ControllerCounts(one.job.id), is_new=True), ethernet=ethernet
            )
        )
        url = serve_metrics(stack, metrics, "controller", counts.values, tls, json)
        outlives_terminal = getsignal(SIGHUP) is SIG_IGN  # as with nohup
        ended = Signalled(SIGINT, SIGTERM, *(() if outlives_terminal else (SIGHUP,)))
        host, port = listening.getsockname()[:2]
        if json:
            say(host=host, port=port, **url)
        else:
            print(f"job {job.job.id}: asked for at {host}:{port}", flush=True)
        for number in left:
            runs.tell(
                f"job {number}: evicted, as it has spare ports, and no `peelsum job serve` has a group there"
            )
        _answer(requests, runs, groups, ended)


class _Runs:
    """A job that is held on its switches from `connect` to `close`, and its current run, if there is one.

    A run is an admission and a server.
    """

    def __init__(
        self,
        job: JobDescription | RacksDescription,
        counts: ControllerCounts,
        *,
        compiled: Pipeline,
        bases: list[tuple[str, int]],
        tell: Callable[[object], None],
        certificate: Identity | None,
        ethernet: bool,
        is_new: bool = False,
    ) -> None:
        """bases: of the switches' UDP ports, or with `ethernet` the addresses that packets are sent to.

        tell: called with every event and error. is_new: no switch may have a job of this number.
        """
        self._job, self._bases, self._certificate = job, bases, certificate
        self._tell, self._counts = tell, counts
        self._files = (compiled.json_path, compiled.p4info_path)
        self._is_new, self._ethernet = is_new, ethernet
        self._run, self._connection = ExitStack(), ExitStack()
        self._watch: Watch | None = None
        self._server: RestartableProcess | None = None

    def __enter__(self) -> _Runs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the run, if there is one, and hold the job no longer."""
        self.end()
        self._connection.close()

    def connect(self) -> Fabric:
        """Connect to the switches as their primary, hold the job and load the pipeline.

        An earlier connection ends. Raises ControlError.
        """
        from peelsum.control import Fabric

        self._connection.close()
        with ExitStack() as opened:
            fabric = opened.enter_context(
                Fabric.connect(self._job, patience_s=PATIENCE_S, identity=self._certificate)
            )
            fabric.load_pipeline(*self._files)
            self._connection = opened.pop_all()
        return fabric

    def tell(self, news: object) -> None:
        """Print and count an event or error."""
        self._counts.note(news)
        self._tell(news)

    def start(self) -> dict[str, Any]:
        """End the previous run and start another; return what its workers must know.

        Raises ControlError or ProcessError, and NumberTakenError if `is_new`; then no run is left.
        """
        from peelsum.control import Watch

        self.end()
        with ExitStack() as run:
            fabric = self.connect()  # again for each run: switches may have been restarted since the last
            run.callback(fabric.become_backup)
            if self._is_new and fabric.is_admitted():
                raise NumberTakenError
            admitted = fabric.admit()
            run.callback(self._evict, fabric, admitted.generation)
            fabric.become_backup()  # let other controllers admit jobs
            admission = {**asdict(admitted), "timeout_s": self._job.job.timeout_s}
            server = RestartableProcess(self._serving(admission), lambda: self._serving(admission))
            run.callback(server.stop)
            self._watch, self._server = Watch(fabric, admitted.generation, *self._files), server
            self._run = run.pop_all()
            self._counts.admitted(admitted.generation)
        wire = {"wire": "ethernet"} if self._ethernet else {}
        return {"admission": admission, "switch": self._seats(), **wire}

    def end(self) -> None:
        """End the run, if there is one: its server, then its admission."""
        self._watch = self._server = None
        self._counts.ended()
        self._run.close()

    def look(self) -> None:
        """Restore the run's tables and server if they are lost; end a run that cannot continue."""
        from peelsum.control import ControlError

        if self._watch is None or self._server is None:
            return
        try:
            for event in self._watch.look():
                self.tell(event)
            # Without its switch, a new server would end at once, and the run with it.
            if self._server.child.status and not self._watch.misses_switch:
                self.tell(self._server.restart())
        except (ControlError, ProcessError) as error:
            self.tell(error)
            self.end()

    def _evict(self, fabric: Fabric, generation: int) -> None:
        """Evict a generation from its switches, unless another has been admitted since."""
        from peelsum.control import ControlError, SwitchError

        try:
            if any(fabric.holds(switch, generation) for switch in range(len(fabric.switches))):
                fabric.evict()
        except SwitchError as error:
            self.tell(error)
        except ControlError:  # another generation is admitted
            pass

    def _serving(self, admission: dict[str, Any]) -> Child:
        address = self._port(self._bases[0], self._job.server_port)
        wire = ["--ethernet"] if self._ethernet else []
        server = Child.peelsum(
            "server",
            *("server", "run", "--switch", address, "--json", "--child", *wire),
            environment={ADMISSION: json_.dumps(admission)},
        )
        try:
            server.ready()
        except BaseException:
            server.stop()
            raise
        return server

    def _seats(self) -> list[str]:
        """Return the addresses of workers' ports, in order: at the one switch, or at each rack's."""
        sizes = self._job.rack_sizes or (self._job.job.workers,)
        racks = zip(self._bases[-len(sizes) :], sizes, strict=True)
        bases = [base for base, size in racks for _ in range(size)]
        return [self._port(base, port) for base, port in zip(bases, self._job.worker_ports, strict=True)]

    def _port(self, base: tuple[str, int], port: int) -> str:
        return f"{base[0]}:{base[1] if self._ethernet else base[1] + port}"


class _Groups:
    """Runs of further groups' jobs, at spare ports of the switch, each until its lease ends."""

    def __init__(
        self,
        job: JobDescription | RacksDescription,
        runs_of: Callable[[JobDescription], _Runs],
        *,
        ethernet: bool,
    ) -> None:
        from peelsum.control import JobDescription

        self._job = job if isinstance(job, JobDescription) else None
        self._runs_of, self._ethernet = runs_of, ethernet
        # Ports that were free for longest are taken first: a former worker's late packets may reach others.
        self._spare = deque(self._job.ports.spare if self._job else ())
        self._runs: dict[Guest, tuple[_Runs, JobDescription]] = {}

    def __enter__(self) -> _Groups:
        return self

    def __exit__(self, *_: object) -> None:
        for guest in list(self._runs):
            self._end(guest)

    def start(self, guest: Guest) -> dict[str, Any]:
        """Start a run for a group; return what its workers must know, or `refused`: why there is no room.

        Raises ControlError or ProcessError.
        """
        from peelsum.control import MAX_JOB_ID, HeldError, JobDescription, PortsSection

        self.look()
        ranks = guest.ranks or 0
        if self._job is None:
            return {"refused": "a job over racks has no jobs for further groups; use one switch"}
        if self._ethernet:
            return {
                "refused": "an interface has one worker, so further groups need ports that are UDP sockets"
            }
        if not 2 <= ranks <= self._job.job.workers:
            return {"error": f"a group of {ranks} ranks; request one of 2 to {self._job.job.workers}"}
        if len(self._spare) <= ranks:
            return {
                "refused": f"a group of {ranks} ranks needs {ranks + 1} spare ports of the switch, and "
                f"{len(self._spare)} are free; add some to ports.spare of the job's description"
            }
        taken = {self._job.job.id, *(described.job.id for _, described in self._runs.values())}
        server, *workers = (self._spare.popleft() for _ in range(ranks + 1))
        for number in (one for one in range(MAX_JOB_ID, 0, -1) if one not in taken):
            described = JobDescription(
                job=self._job.job.model_copy(update={"id": number, "workers": ranks}),
                switch=self._job.switch,
                ports=PortsSection(server=server, workers=tuple(workers)),
                hosts={name: one for name, one in self._job.hosts.items() if int(name) in (server, *workers)},
            )
            runs = self._runs_of(described)
            try:
                answer = runs.start()
            except (NumberTakenError, HeldError):
                runs.close()
                continue
            except BaseException:
                runs.close()
                self._spare.extend((server, *workers))
                raise
            self._runs[guest] = runs, described
            return answer
        self._spare.extend((server, *workers))
        return {"refused": f"all {MAX_JOB_ID} numbers of jobs are taken at the switch; evict one"}

    def look(self) -> None:
        """End the runs whose leases have ended, and look after the others."""
        for guest, (runs, _) in list(self._runs.items()):
            if guest.left:
                self._end(guest)
            else:
                runs.look()

    def _end(self, guest: Guest) -> None:
        runs, described = self._runs.pop(guest)
        runs.close()
        runs.tell(f"group's job {described.job.id}: ended with {guest.name}")
        self._spare.extend((described.ports.server, *described.ports.workers))


def _addresses_of(job: JobDescription | RacksDescription) -> list[tuple[str, int]]:
    """Return the address that packets are sent to. Raises ServeError."""
    from peelsum.control import JobDescription

    if not isinstance(job, JobDescription):
        raise ServeError("ethernet: needs one switch; for racks, admit the job and give every host its seat")
    if job.switch.address is None:
        raise ServeError("switch.address: is missing; with --ethernet give the switch's mac and ip")
    return [(str(IPv4Address(job.switch.address.ip)), UDP_PORT)]


@contextmanager
def _only_server_of(job: JobDescription) -> Iterator[None]:
    """Hold a lock on each spare port, which ends with this process however that ends.

    Raises ServeError if another controller of this user has one on this machine.
    """
    name = hashlib.blake2b(job.switch.p4runtime.encode(), digest_size=8).hexdigest()
    with (records.folder() / f"spare-{name}").open("ab") as file:
        for port in job.ports.spare:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except OSError:
                raise ServeError(
                    f"ports.spare: another `peelsum job serve` has {port} of {job.switch.p4runtime}; "
                    "end it, or give each its own spare ports"
                ) from None
        yield


def _listening(place: tuple[str, int]) -> socket.socket:
    try:
        return socket.create_server(place)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise ServeError(f"--listen: {place[0]}:{place[1]}: {reason}; choose another") from error


def _answer(requests: Requests, runs: _Runs, groups: _Groups, ended: Signalled) -> None:
    """Start a run for each new holder of a lease, until a signal comes."""
    from peelsum.control import ControlError

    looked, busy_s = time.monotonic(), 0.0
    while not ended.wait(0):
        # The connections' deadlines do not run while this thread is busy, as it reads nothing then.
        guest = requests.next(time.monotonic() - busy_s, LOOK_EVERY_S)
        busy_since = time.monotonic()
        if guest is not None:
            try:
                answer = runs.start() if guest.ranks is None else groups.start(guest)
                runs.tell(_started(answer, guest))
            except (ControlError, ProcessError, OSError) as error:
                answer = {"error": str(error)}
                runs.tell(error)
            requests.tell(answer)
        if time.monotonic() - looked >= LOOK_EVERY_S:
            runs.look()
            groups.look()
            looked = time.monotonic()
        busy_s += time.monotonic() - busy_since


def _started(answer: dict[str, Any], guest: Guest) -> str:
    """Return the line to be printed about a response."""
    if reason := answer.get("refused") or answer.get("error"):
        return f"refused {guest.name}: {reason}"
    admission = answer["admission"]
    what = "" if guest.ranks is None else f"group's job {admission['job_id']}: "
    return f"{what}generation {admission['generation']}: started for {guest.name}"
