"""`peelsum job serve`: the options of the service that admits a job whenever its workers start."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.options import Service, address, job_values, reporting
from peelsum.cli.settings import with_settings
from peelsum.processes import end_with_parent
from peelsum.processes.reports import told_of_compiling
from peelsum.topology import TopologyError

if TYPE_CHECKING:
    from peelsum.control.cluster import JobController


@with_settings
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
    token: Annotated[
        Path | None, typer.Option(help="The job's token, which requests must contain; needed with --tls.")
    ] = None,
    *,
    service: Service,
) -> None:
    """Admit a job again, with a new aggregation server, whenever its workers start; until Ctrl-C."""
    from peelsum.control import read_description
    from peelsum.tls import read_token, require_tls
    from peelsum.topology.serving import JobPlaces, ServeError, serve_job

    if service.child:
        end_with_parent()
    tell = told_of_compiling(child=service.child)
    bases = [address(base, "the switch") for base in udp or ()]
    place = address(listen, "the address to listen at")
    with reporting(ServeError, TopologyError), ExitStack() as stack:
        certificate, secret = service.identity, "" if token is None else read_token(token)
        require_tls("--listen", place[0], certificate)
        if certificate is not None and not secret:
            raise ServeError(
                "token: is missing; give --token FILE (peelsum certificates token FILE makes it)"
            )
        job = read_description(description)
        show = service.event_teller(job=job.job.id)

        def announce(host: str, port: int, jobs: JobController) -> None:
            values = partial(job_values, jobs, job.job.id)
            url = service.serve_metrics(stack, "controller", values)
            line = f"job {job.job.id}: asked for at {host}:{port}"
            service.announce(line, host=host, port=port, **url)

        places = JobPlaces(job, bases, ethernet=ethernet)
        serve_job(places, place, identity=certificate, token=secret, show=show, tell=tell, announce=announce)
