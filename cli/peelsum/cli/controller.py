"""`peelsum controller run`, the controller of a cluster; and commands that are requests to it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from peelsum.cli.options import Service, address, parse_address, read_identity, report_errors
from peelsum.cli.settings import with_settings
from peelsum.options import CommandSettings, Option
from peelsum.processes import SignalWaiter, print_message, terminate_with_parent
from peelsum.processes.progress import progress_reporter, reporting_progress

if TYPE_CHECKING:
    from peelsum.control.cluster import ClusterReport, ControllerClient, Event

app = typer.Typer(help="The controller of a cluster of switches and jobs.", no_args_is_help=True)
_CHECK_INTERVAL_S = 0.2


@dataclass(frozen=True)
class _ControllerSettings(CommandSettings):
    """A cluster's description, and where its controller listens."""

    config: Annotated[Path, Option("The cluster's description, TOML.")]
    listen: Annotated[
        str,
        Option(
            "Address for requests of `peelsum job --controller`, host:port; port 0 chooses a free port.",
            parse=address("the address to listen at"),
        ),
    ] = "127.0.0.1:9564"


@app.command()
@with_settings
def run(settings: _ControllerSettings, service: Service) -> None:
    """Admit and evict jobs on request, and keep them on the cluster's switches, until Ctrl-C.

    Run it twice, with the same description and at two addresses: one is the backup of the other.
    """
    from peelsum.control.cluster import (
        Cluster,
        RequestServer,
        Store,
        listening_socket,
        read_cluster,
        serve_requests,
    )
    from peelsum.metrics import Values, cluster_values

    if service.child:
        terminate_with_parent()

    def print_event(event: object) -> None:
        service.announce(str(event), **cast("Event", event).values())

    with report_errors(), ExitStack() as stack:
        log = service.event_logger("controller", print_event)
        description, identity = read_cluster(settings.config), service.identity
        store = stack.enter_context(Store(settings.config.parent / description.controller.state))
        socket = stack.enter_context(listening_socket(parse_address(settings.listen), identity))
        calls = ("admit", "evict", "list")
        requests = stack.enter_context(RequestServer(socket, "controller", calls, identity=identity))
        own_address = f"{settings.listen.rpartition(':')[0]}:{socket.getsockname()[1]}"
        cluster = Cluster(description, store, address=own_address, identity=identity, tell=log)

        def read_metrics() -> Values:
            return cluster_values(cluster.totals())

        url = service.serve_metrics(stack, "cluster", read_metrics)
        signals = SignalWaiter(SIGINT, SIGTERM)
        service.announce(f"controller: listening at {own_address}", listen=own_address, **url)
        with cluster:
            serve_requests(
                requests,
                cluster.respond,
                lambda: None,
                lambda: signals.wait(0) or cluster.wait(0.0),
                every_s=_CHECK_INTERVAL_S,
            )


def request_admission(
    controllers: Sequence[str], description: Path, tls: Path | None, token: Path | None
) -> dict[str, Any]:
    """Ask a cluster's controller to admit a job; return the job's admission."""
    from peelsum.control.description import file_text

    with report_errors():
        client, text = _client(controllers, tls), file_text(description)
        with reporting_progress("waiting for the controller", progress_reporter()):
            return client.admit(text, str(description), _read_token(token))


def request_eviction(controllers: Sequence[str], job_id: int, tls: Path | None, token: Path | None) -> None:
    """Ask a cluster's controller to evict a job; print the switches that still have to follow."""
    with report_errors():
        for switch in _client(controllers, tls).evict(job_id, _read_token(token))["waiting"]:
            print(f"switch: {switch} is away; the job is removed from it when it is up")


def show_cluster(controllers: Sequence[str], tls: Path | None, json: bool) -> None:
    """Print the jobs and switches of a cluster, as its controller and as its switches report them.

    Raises ControlError or TlsError.
    """
    from peelsum.control.cluster import observe_cluster

    report = observe_cluster(_client(controllers, tls).list(), read_identity(tls))
    if json:
        print_message(**_as_json(report))
    else:
        _print(report)


def _client(controllers: Sequence[str], tls: Path | None) -> ControllerClient:
    from peelsum.control.cluster import ControllerClient

    return ControllerClient(controllers, read_identity(tls))


def _read_token(path: Path | None) -> str:
    from peelsum.tls import read_token

    return "" if path is None else read_token(path)


def _as_json(report: ClusterReport) -> dict[str, Any]:
    """Return the report as `--json` prints it."""
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


def _print(report: ClusterReport) -> None:
    """Print the cluster's switches and jobs as tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"{report.address}: primary, epoch {report.epoch}")
    switches = Table("switch", "device_id", "controller reports", "switch reports")
    for switch in report.switches:
        status = switch.status
        answer = f"{status.lanes} lanes, {status.slots} slots" if status else switch.trouble
        switches.add_row(switch.p4runtime, str(switch.device_id), switch.state, answer)
    console.print(switches)
    jobs = Table("job", "switch", "desired generation", "actual generation", "state")
    for job in report.jobs:
        state = job.state or "not admitted by this controller"
        generations = ("-" if number is None else str(number) for number in (job.desired, job.actual))
        jobs.add_row(
            str(job.job_id), job.p4runtime, *generations, state if job.agrees else f"differs: {state}"
        )
    console.print(jobs if report.jobs else "no jobs")
