"""`peelsum job serve`: admits a job again whenever its workers start, over one switch or racks.

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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from signal import SIG_IGN, SIGHUP, SIGINT, SIGTERM, getsignal
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.options import (
    LOOK_EVERY_S,
    ChildOf,
    Json,
    LogFormat,
    Metrics,
    Tls,
    address,
    event_teller,
    identity,
    job_values,
    reporting,
    serve_metrics,
)
from peelsum.processes import Signalled, end_with_parent, say
from peelsum.processes.progress import taking_time
from peelsum.processes.reports import told_of_compiling
from peelsum.topology import TopologyError, records
from peelsum.wire import UDP_PORT

if TYPE_CHECKING:
    from peelsum.control import JobDescription, RacksDescription


class ServeError(Exception):
    """The job cannot be served with these options."""


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
    from peelsum.control import JobDescription, read_description
    from peelsum.control.cluster import Event, JobController, Requests, Runs, answer_all, listening
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
        show = event_teller(log_format, json, job=job.job.id)
        controller = stack.enter_context(JobController(identity=certificate, tell=show))
        with taking_time("loading the pipeline, which a switch that has not run it before compiles", tell):
            controller.hold(job)  # report errors before the first request
        # Before jobs are evicted: a controller that is refused must not evict those of one that runs.
        socket, left = stack.enter_context(listening(place, certificate)), []
        if isinstance(job, JobDescription):
            stack.enter_context(_only_server_of(job))
            left = controller.evict_at(job, job.ports.spare)
        warm_up(job.plans()[0].switch.pipeline_lanes)  # so that no start waits for its server to compile
        requests = stack.enter_context(
            Requests(socket, f"job {job.job.id}", identity=certificate, token=secret)
        )
        runs = stack.enter_context(Runs(controller, job, bases, ethernet=ethernet))
        url = serve_metrics(
            stack, metrics, "controller", partial(job_values, controller, job.job.id), tls, json
        )
        outlives_terminal = getsignal(SIGHUP) is SIG_IGN  # as with nohup
        ended = Signalled(SIGINT, SIGTERM, *(() if outlives_terminal else (SIGHUP,)))
        host, port = socket.getsockname()[:2]
        if json:
            say(host=host, port=port, **url)
        else:
            print(f"job {job.job.id}: asked for at {host}:{port}", flush=True)
        for number in left:
            text = (
                f"job {number}: evicted, as it has spare ports, and no `peelsum job serve` has a group there"
            )
            controller.tell(Event("removed", text, number))
        answer_all(requests, runs.start, runs.look, lambda: ended.wait(0), every_s=LOOK_EVERY_S)


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
