"""`peelsum job` with `--controller`: what a cluster's controller is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.cli.options import Json, Tls, address, identity
from peelsum.topology import say
from peelsum.topology.progress import taking_time
from peelsum.topology.telling import told
from peelsum.topology.user_errors import reported

if TYPE_CHECKING:
    from peelsum.control.cluster import ControllerClient

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
    from peelsum.control import ControlError
    from peelsum.control.description import file_text
    from peelsum.tls import TlsError

    with reported(ControlError, TlsError):
        client, text = controllers_client(controllers, tls), file_text(description)
        with taking_time("waiting for the controller", told(json=json)):
            return client.admit(text, str(description), _secret(token))


def evict_there(controllers: list[str], job_id: int, tls: Path | None, token: Path | None) -> None:
    """Have a controller evict a job, and print which switches will follow later."""
    from peelsum.control import ControlError
    from peelsum.tls import TlsError

    with reported(ControlError, TlsError):
        for switch in controllers_client(controllers, tls).evict(job_id, _secret(token))["waiting"]:
            print(f"switch: {switch} is away; the job is removed from it when it is up")


def list_(controller: Controllers = None, tls: Tls = None, json: Json = False) -> None:
    """Show the jobs and switches of a cluster's controller."""
    from peelsum.control import ControlError
    from peelsum.tls import TlsError

    with reported(ControlError, TlsError):
        found = controllers_client(controller, tls).list()
    if json:
        say(**found)
    else:
        _print(found)


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


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"{found['address']}: primary, epoch {found['epoch']}")
    switches = Table("switch", "device_id", "lanes", "state")
    for one in found["switches"]:
        switches.add_row(one["p4runtime"], str(one["device_id"]), str(one["pipeline_lanes"]), one["state"])
    console.print(switches)
    jobs = Table("job", "generation", "workers", "switches", "state")
    for one in found["jobs"]:
        numbers = (str(one[name]) for name in ("job_id", "generation", "workers"))
        jobs.add_row(*numbers, ", ".join(one["switches"]), one["state"])
    console.print(jobs if found["jobs"] else "no jobs")
