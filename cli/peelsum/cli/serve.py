"""`peelsum job serve`: admit a job again for each training that starts.

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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from socket import getaddrinfo
from typing import TYPE_CHECKING, Annotated

from peelsum.addresses import parse_address
from peelsum.cli.options import (
    CHECK_INTERVAL_S,
    Description,
    Service,
    address,
    addresses,
    job_metrics,
    read_token,
    report_errors,
    with_settings,
)
from peelsum.options import CommandSettings, Option, OptionError
from peelsum.processes import SignalWaiter, terminate_with_parent
from peelsum.processes.progress import compile_progress_reporter, reporting_progress
from peelsum.processes.user_errors import ending_signals
from peelsum.topology import TopologyError
from peelsum.wire import UDP_PORT

if TYPE_CHECKING:
    from peelsum.control import JobDescription
    from peelsum.control.description import AnyDescription


@dataclass(frozen=True)
class _Serving(CommandSettings):
    """The ports of a job's switches, and where its workers request it."""

    udp: Annotated[
        tuple[str, ...],
        Option(
            "The switch's host:port, with the port of its --udp-base. With racks, repeat it for each "
            "switch: the spine, then the racks in order.",
            parse=addresses("the switch"), repeated=True,
        ),
    ] = ()  # fmt: skip
    ethernet: Annotated[
        bool,
        Option(
            "The switch's ports are interfaces, and the server's port is linked to this host; packets go to "
            "switch.address of the description."
        ),
    ] = False
    listen: Annotated[
        str,
        Option(
            "Address at which rank 0 requests the job, host:port (TCP).",
            parse=address("the address to listen at"),
        ),
    ] = "127.0.0.1:9560"
    token: Annotated[
        Path | None, Option("File with the job's token, which requests must contain; needed with --tls.")
    ] = None


@with_settings
def serve(description: Description, settings: _Serving, service: Service) -> None:
    """Serve a job until Ctrl-C: admit it, with a new aggregation server, each time its workers start."""
    from peelsum.control import JobDescription, read_description
    from peelsum.control.cluster import (
        Event,
        JobController,
        JobRuns,
        RequestServer,
        listening_socket,
        serve_requests,
    )
    from peelsum.tls import require_tls
    from peelsum.transport.warming import warm_up

    if service.child:
        terminate_with_parent()
    tell = compile_progress_reporter(child=service.child)
    listen, ethernet = parse_address(settings.listen), settings.ethernet
    with report_errors(TopologyError), ExitStack() as stack:
        identity, token = service.identity, read_token(settings.token)
        require_tls("--listen", listen[0], identity)
        if identity is not None and not token:
            raise OptionError(
                "token: is missing; give --token FILE (peelsum certificates token FILE makes it)"
            )
        job, evicted = read_description(description), list[int]()
        log = service.job_event_logger(job=job.job.id)
        bases = _switch_addresses(job, [parse_address(base) for base in settings.udp], ethernet=ethernet)
        controller = stack.enter_context(JobController(identity=identity, on_event=log))
        switches = ", ".join(plan.switch.p4runtime for plan in job.plans())
        with reporting_progress(f"connecting to {switches}, loading the pipeline unless it runs there", tell):
            controller.acquire_lease(job)  # so that errors are reported before the first request
        # Listen before jobs are evicted, so that only one of two controllers evicts jobs.
        socket = stack.enter_context(listening_socket(listen, identity))
        if isinstance(job, JobDescription):
            stack.enter_context(_lock_spare_ports(job))
            evicted = controller.evict_at(job, job.ports.spare)
        warm_up(job.plans()[0].switch.pipeline_lanes)  # so that no start waits for its server to compile
        name = f"job {job.job.id}"
        requests = stack.enter_context(RequestServer(socket, name, identity=identity, token=token))
        runs = stack.enter_context(JobRuns(controller, job, bases, ethernet=ethernet))
        ended = SignalWaiter(*ending_signals())
        host, port = socket.getsockname()[:2]
        url = service.serve_metrics(stack, "controller", partial(job_metrics, controller, job.job.id))
        service.announce(f"{name}: waiting for requests at {host}:{port}", host=host, port=port, **url)
        for number in evicted:
            reason = "it has spare ports, and no `peelsum job serve` has a group there"
            controller.report(Event("removed", f"job {number}: evicted, as {reason}", number))
        serve_requests(
            requests,
            runs.respond,
            runs.check,
            lambda: ended.wait(0),
            every_s=CHECK_INTERVAL_S,
            after_events=runs.update,
        )


def _switch_addresses(
    job: AnyDescription, udp: Sequence[tuple[str, int]], *, ethernet: bool
) -> Sequence[tuple[str, int]]:
    """Return the address of each switch, to which packets are sent: the spine's first. Raises OptionError.

    udp: host and UDP base port of each switch. ethernet: whether switch ports are interfaces; packets are
    then sent to the description's `switch.address`.
    """
    from peelsum.control import JobDescription

    if not ethernet:
        if len(udp) == len(job.plans()):
            for host, port in udp:
                try:
                    getaddrinfo(host, port)
                except (OSError, UnicodeError) as error:
                    reason = error.strerror if isinstance(error, OSError) else "is no name"
                    raise OptionError(
                        f"--udp: {host}: {reason}; use a name that this machine can resolve"
                    ) from None
            return udp
        if not udp:
            raise OptionError("--udp: is missing; give it once for each of the job's switches, or --ethernet")
        raise OptionError(
            f"--udp: gives {len(udp)} addresses, but the job has {len(job.plans())} switches; "
            "give --udp once for each, or --ethernet"
        )
    if udp:
        raise OptionError("udp: is for ports that are UDP sockets; leave it or --ethernet out")
    if not isinstance(job, JobDescription):
        raise OptionError("ethernet: needs one switch; for racks, admit the job and give every host its seat")
    if job.switch.address is None:
        raise OptionError("switch.address: is missing; with --ethernet give the switch's mac and ip")
    return [(str(IPv4Address(job.switch.address.ip)), UDP_PORT)]


@contextmanager
def _lock_spare_ports(job: JobDescription) -> Iterator[None]:
    """Hold a lock on each spare port during the body. The kernel releases it when the process ends.

    Raises OptionError if another process of this user on this machine holds one.
    """
    from peelsum.topology import records

    if not job.ports.spare:
        yield
        return
    name = hashlib.blake2b(job.switch.p4runtime.encode(), digest_size=8).hexdigest()
    with (records.folder() / f"spare-{name}").open("ab") as file:
        for port in job.ports.spare:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except OSError:
                raise OptionError(
                    f"ports.spare: another `peelsum job serve` has {port} of {job.switch.p4runtime}; "
                    "end it, or give each its own spare ports"
                ) from None
        yield
