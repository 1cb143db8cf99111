"""Serve a job: admit it again for each training that starts (`peelsum job serve`).

Rank 0 of a training sends a request, and `RequestServer` decides which request gets the lease on the job. The
response is sent after the job was admitted in a new generation and its server is running. It is a JSON object
with `admission`, with `switch`, the addresses of the workers' switch ports in order, and with `run`; or with
`error`. The other ranks join with `run`. Each rank's connection stays open, so that its end is noticed.

Rank 0 of a further group of workers requests a job for that group. This job has a number and a server of its
own, and uses spare ports of the switch, until the connection of its request is closed. If there is no room
for it, the response has the reason as `refused`.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from signal import SIG_IGN, SIGHUP, SIGINT, SIGTERM, getsignal

from peelsum.control import JobDescription
from peelsum.control.cluster import (
    Event,
    JobController,
    JobRuns,
    RequestServer,
    listening_socket,
    serve_requests,
)
from peelsum.control.description import AnyDescription
from peelsum.processes import SignalWaiter
from peelsum.processes.progress import ProgressCallback, reporting_progress
from peelsum.tls import TlsIdentity
from peelsum.topology import records
from peelsum.transport.warming import warm_up
from peelsum.wire import UDP_PORT

#: Seconds between two checks of a job's switches.
_CHECK_INTERVAL_S = 1.0


class ServeError(Exception):
    """The job cannot be served with these options, or another process serves it."""


def addresses_of(
    job: AnyDescription, udp: Sequence[tuple[str, int]], *, ethernet: bool
) -> Sequence[tuple[str, int]]:
    """Return the address of each switch, to which packets are sent: the spine's first. Raises ServeError.

    udp: host and UDP base port of each switch. ethernet: whether switch ports are interfaces; packets are
    then sent to the description's `switch.address`.
    """
    if not ethernet:
        if len(udp) == len(job.plans()):
            return udp
        raise ServeError(
            f"udp: {len(udp)} for {len(job.plans())} switches; give --udp once for each, or --ethernet"
        )
    if udp:
        raise ServeError("udp: is for ports that are UDP sockets; leave it or --ethernet out")
    if not isinstance(job, JobDescription):
        raise ServeError("ethernet: needs one switch; for racks, admit the job and give every host its seat")
    if job.switch.address is None:
        raise ServeError("switch.address: is missing; with --ethernet give the switch's mac and ip")
    return [(str(IPv4Address(job.switch.address.ip)), UDP_PORT)]


def serve_job(
    job: AnyDescription,
    bases: Sequence[tuple[str, int]],
    address: tuple[str, int],
    *,
    ethernet: bool,
    identity: TlsIdentity | None,
    token: str,
    show: Callable[[Event], None],
    tell: ProgressCallback,
    announce: Callable[[str, int, JobController], None],
) -> None:
    """Serve a job at `address` until a signal ends this process.

    bases, ethernet: the switches' addresses, see `addresses_of`. identity, token: as for `RequestServer`.
    show: takes the controller's events. tell: takes progress messages. announce: called with host, port and
    controller when requests can be sent.
    Raises ServeError and ControlError.
    """
    with ExitStack() as stack:
        controller = stack.enter_context(JobController(identity=identity, tell=show))
        with reporting_progress(
            "loading the pipeline, which a switch that has not run it before compiles", tell
        ):
            controller.acquire_lease(job)  # so that errors are reported before the first request
        # Listen before jobs are evicted, so that only one of two controllers evicts jobs.
        socket, evicted = stack.enter_context(listening_socket(address, identity)), list[int]()
        if isinstance(job, JobDescription):
            stack.enter_context(_lock_spare_ports(job))
            evicted = list(controller.evict_at(job, job.ports.spare))
        warm_up(job.plans()[0].switch.pipeline_lanes)  # so that no start waits for its server to compile
        name = f"job {job.job.id}"
        requests = stack.enter_context(RequestServer(socket, name, identity=identity, token=token))
        runs = stack.enter_context(JobRuns(controller, job, bases, ethernet=ethernet))
        outlives_terminal = getsignal(SIGHUP) is SIG_IGN  # as with nohup
        ended = SignalWaiter(SIGINT, SIGTERM, *(() if outlives_terminal else (SIGHUP,)))
        host, port = socket.getsockname()[:2]
        announce(host, port, controller)
        for number in evicted:
            text = (
                f"job {number}: evicted, as it has spare ports, and no `peelsum job serve` has a group there"
            )
            controller.tell(Event("removed", text, number))
        serve_requests(
            requests,
            runs.respond,
            runs.check,
            lambda: ended.wait(0),
            every_s=_CHECK_INTERVAL_S,
            after_events=runs.update,
        )


@contextmanager
def _lock_spare_ports(job: JobDescription) -> Iterator[None]:
    """Hold a lock on each spare port during the body. The kernel releases it when the process ends.

    Raises ServeError if another process of this user on this machine holds one.
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
