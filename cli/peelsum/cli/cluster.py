"""What `--controller` asks: a cluster's controller for its jobs, and its switches for what they have."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.cli.options import address, identity, reporting
from peelsum.processes import say
from peelsum.processes.progress import taking_time
from peelsum.processes.reports import told

if TYPE_CHECKING:
    from peelsum.control.cluster import ControllerClient, Report

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
    controllers: list[str], description: Path, tls: Path | None, token: Path | None, json: bool
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
        address(one, "the controller")
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
