"""Admits a job again whenever its workers start, over one switch or racks.

Rank 0 of a start sends a request; `Requests` decides which request gets the job's lease. The response
follows once the job is admitted in a new generation and its server runs. It is one JSON object, with
`admission` and with `switch`, the addresses of the workers' ports in order; or with `error`.

Rank 0 of a further group requests a job for that group. The job runs beside the first, at spare ports, with
a number and a server of its own, until the connection of its request ends. Without room for the job, the
response has `refused`, the reason.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from signal import SIG_IGN, SIGHUP, SIGINT, SIGTERM, getsignal

from peelsum.control import JobDescription, RacksDescription
from peelsum.control.cluster import Event, JobController, Requests, Runs, answer_all, listening
from peelsum.processes import Signalled
from peelsum.processes.progress import Tell, taking_time
from peelsum.tls import Identity
from peelsum.topology import records
from peelsum.transport.warming import warm_up
from peelsum.wire import UDP_PORT

#: Seconds between two checks of a job's switches.
_LOOK_EVERY_S = 1.0


class ServeError(Exception):
    """The job cannot be served with these options."""


@dataclass(frozen=True)
class JobPlaces:
    """A job, and where its packets are sent."""

    job: JobDescription | RacksDescription
    udp: Sequence[tuple[str, int]]
    """The address of each switch, with the port of its UDP base: the spine, then the racks in order."""
    ethernet: bool
    """Whether ports are interfaces; packets then go to `switch.address` of the description."""

    def bases(self) -> Sequence[tuple[str, int]]:
        """Return the addresses that packets are sent to. Raises ServeError naming what is missing."""
        if not self.ethernet:
            if len(self.udp) == len(self.job.plans()):
                return self.udp
            raise ServeError(
                f"udp: {len(self.udp)} for {len(self.job.plans())} switches; give --udp once for each, or "
                "--ethernet"
            )
        if self.udp:
            raise ServeError("udp: is for ports that are UDP sockets; leave it or --ethernet out")
        if not isinstance(self.job, JobDescription):
            raise ServeError(
                "ethernet: needs one switch; for racks, admit the job and give every host its seat"
            )
        if self.job.switch.address is None:
            raise ServeError("switch.address: is missing; with --ethernet give the switch's mac and ip")
        return [(str(IPv4Address(self.job.switch.address.ip)), UDP_PORT)]


def serve_job(
    places: JobPlaces,
    address: tuple[str, int],
    *,
    identity: Identity | None,
    token: str,
    show: Callable[[Event], None],
    tell: Tell,
    announce: Callable[[str, int, JobController], None],
) -> None:
    """Answer requests at `address` until a signal comes.

    show: takes the controller's events. tell: takes lines of progress. announce: called with host, port and
    controller once requests are answered. Raises ServeError and ControlError.
    """
    job, bases = places.job, places.bases()
    with ExitStack() as stack:
        controller = stack.enter_context(JobController(identity=identity, tell=show))
        with taking_time("loading the pipeline, which a switch that has not run it before compiles", tell):
            controller.hold(job)  # report errors before the first request
        # Before jobs are evicted: a controller that is refused must not evict those of one that runs.
        socket, evicted = stack.enter_context(listening(address, identity)), list[int]()
        if isinstance(job, JobDescription):
            stack.enter_context(_only_server_of(job))
            evicted = list(controller.evict_at(job, job.ports.spare))
        warm_up(job.plans()[0].switch.pipeline_lanes)  # so that no start waits for its server to compile
        name = f"job {job.job.id}"
        requests = stack.enter_context(Requests(socket, name, identity=identity, token=token))
        runs = stack.enter_context(Runs(controller, job, bases, ethernet=places.ethernet))
        outlives_terminal = getsignal(SIGHUP) is SIG_IGN  # as with nohup
        ended = Signalled(SIGINT, SIGTERM, *(() if outlives_terminal else (SIGHUP,)))
        host, port = socket.getsockname()[:2]
        announce(host, port, controller)
        for number in evicted:
            text = (
                f"job {number}: evicted, as it has spare ports, and no `peelsum job serve` has a group there"
            )
            controller.tell(Event("removed", text, number))
        answer_all(requests, runs.start, runs.look, lambda: ended.wait(0), every_s=_LOOK_EVERY_S)


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
