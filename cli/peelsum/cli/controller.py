"""`peelsum controller`: the controller of several switches and jobs; and what `--controller` asks it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from peelsum.cli.options import Service, identity, reporting
from peelsum.cli.options import address as host_and_port
from peelsum.cli.settings import with_settings
from peelsum.processes import Signalled, end_with_parent, say
from peelsum.processes.progress import taking_time
from peelsum.processes.reports import told

if TYPE_CHECKING:
    from peelsum.control.cluster import ControllerClient, Event, Report

app = typer.Typer(help="The controller of several switches and jobs.", no_args_is_help=True)
_LOOK_EVERY_S = 0.2


@app.command()
@with_settings
def run(
    config: Annotated[Path, typer.Option(help="The cluster's description, TOML.")],
    listen: Annotated[
        str, typer.Option(help="Where `peelsum job --controller` asks, host:port; port 0 chooses a free one.")
    ] = "127.0.0.1:9564",
    *,
    service: Service,
) -> None:
    """Admit and evict jobs on request, and keep them on the cluster's switches, until Ctrl-C.

    Run it twice, with the same description and at two addresses: one is the backup of the other.
    """
    from peelsum.control.cluster import Cluster, Requests, Store, answer_all, listening, read_cluster
    from peelsum.metrics import Values, cluster_values

    if service.child:
        end_with_parent()
    place = host_and_port(listen, "the address to listen at")

    def print_event(event: object) -> None:
        service.announce(str(event), **cast("Event", event).values())

    with reporting(), ExitStack() as stack:
        tell = service.logged("controller", print_event)
        described, certificate = read_cluster(config), service.identity
        store = stack.enter_context(Store(config.parent / described.controller.state))
        socket = stack.enter_context(listening(place, certificate))
        calls = ("admit", "evict", "list")
        requests = stack.enter_context(Requests(socket, "controller", calls, identity=certificate))
        here = f"{listen.rpartition(':')[0]}:{socket.getsockname()[1]}"
        cluster = Cluster(described, store, address=here, identity=certificate, tell=tell)

        def read() -> Values:
            return cluster_values(cluster.totals())

        url = service.serve_metrics(stack, "cluster", read)
        ended = Signalled(SIGINT, SIGTERM)
        service.announce(f"controller: asked at {here}", listen=here, **url)
        with cluster:
            answer_all(
                requests,
                cluster.respond,
                lambda: None,
                lambda: ended.wait(0) or cluster.wait(0.0),
                every_s=_LOOK_EVERY_S,
            )


Controllers = Annotated[
    list[str] | None,
    typer.Option(
        "--controller",
        metavar="HOST:PORT",
        help="Ask the cluster's controller there; repeat it for a backup.",
    ),
]
Token = Annotated[
    Path | None, typer.Option(help="The job's token, without which nobody else may change the job.")
]


def admit_there(
    controllers: list[str], description: Path, tls: Path | None, token: Path | None
) -> dict[str, Any]:
    """Have a controller admit a job; return what its participants must know."""
    from peelsum.control.description import file_text

    with reporting():
        client, text = controllers_client(controllers, tls), file_text(description)
        with taking_time("waiting for the controller", told()):
            return client.admit(text, str(description), _secret(token))


def evict_there(controllers: list[str], job_id: int, tls: Path | None, token: Path | None) -> None:
    """Have a controller evict a job, and print which switches will follow later."""
    with reporting():
        for switch in controllers_client(controllers, tls).evict(job_id, _secret(token))["waiting"]:
            print(f"switch: {switch} is away; the job is removed from it when it is up")


def controllers_client(controllers: list[str] | None, tls: Path | None) -> ControllerClient:
    """Return a client of the controllers at these addresses. Raises TlsError, or BadParameter for none."""
    from peelsum.control.cluster import ControllerClient

    if not controllers:
        raise typer.BadParameter("--controller: is missing; give HOST:PORT of `peelsum controller run`")
    for one in controllers:
        host_and_port(one, "the controller")
    return ControllerClient(controllers, identity(tls))


def _secret(token: Path | None) -> str:
    from peelsum.tls import read_token

    return "" if token is None else read_token(token)


def show_cluster(controllers: list[str], tls: Path | None, json: bool) -> None:
    """Ask the cluster's primary, and then every switch; print both. Raises ControlError or TlsError."""
    from peelsum.control.cluster import observed

    report = observed(controllers_client(controllers, tls).list(), identity(tls))
    if json:
        say(**_as_json(report))
    else:
        _print(report)


def _as_json(report: Report) -> dict[str, Any]:
    switches = [
        {
            **{name: value for name, value in asdict(switch).items() if name != "status"},
            "lanes": switch.status.lanes if switch.status else None,
            "slots_in_use": switch.status.slots_in_use if switch.status else None,
        }
        for switch in report.switches
    ]
    jobs = [{**asdict(job), "agrees": job.agrees} for job in report.jobs]
    return {"primary": report.address, "epoch": report.epoch, "switches": switches, "jobs": jobs}


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"{report.address}: primary, epoch {report.epoch}")
    switches = Table("switch", "device_id", "controller says", "switch says")
    for one in report.switches:
        says = f"{one.status.lanes} lanes, {one.status.slots} slots" if one.status else one.trouble
        switches.add_row(one.p4runtime, str(one.device_id), one.state, says)
    console.print(switches)
    jobs = Table("job", "switch", "desired generation", "actual generation", "state")
    for job in report.jobs:
        state = job.state or "not admitted by this controller"
        generations = ("-" if one is None else str(one) for one in (job.desired, job.actual))
        jobs.add_row(
            str(job.job_id), job.p4runtime, *generations, state if job.agrees else f"differs: {state}"
        )
    console.print(jobs if report.jobs else "no jobs")
