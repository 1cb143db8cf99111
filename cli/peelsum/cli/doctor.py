"""`peelsum doctor`: examine this machine, a job's switches or a cluster, and say what to do."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.controller import Controllers
from peelsum.cli.options import Json, Tls, identity, reporting
from peelsum.processes import say
from peelsum.wire import DEFAULT_LANES

if TYPE_CHECKING:
    from peelsum.topology.doctor import Finding


def command(
    description: Annotated[
        Path | None, typer.Argument(help="A job's description, TOML: its switches are asked, too.")
    ] = None,
    interface: Annotated[
        list[str] | None,
        typer.Option(help="An interface for a port of a switch, which must not run; repeat it for others."),
    ] = None,
    controller: Controllers = None,
    tls: Tls = None,
    json: Json = False,
) -> None:
    """Say what this machine has and lacks, and what to do; exit with status 1 if it lacks what is needed."""
    from peelsum.control import read_description
    from peelsum.topology.doctor import examine, examine_cluster, examine_interface, examine_job

    with reporting():
        job = None if description is None else read_description(description)
        lanes = job.plans()[0].switch.pipeline_lanes if job else DEFAULT_LANES
        findings = list(examine(lanes, job.job.window) if job else examine())
        for name in interface or []:
            findings += examine_interface(name, lanes)
        if job is not None:
            findings += examine_job(job, identity(tls))
        if controller:
            findings += examine_cluster(controller, identity(tls))
    failed = [finding for finding in findings if finding.state == "failed"]
    if json:
        say(findings=[asdict(finding) for finding in findings], failed=len(failed))
    else:
        _print(findings, len(failed))
    if failed:
        raise SystemExit(1)


def _print(findings: list[Finding], failed: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    colours = {"ok": "green", "note": "yellow", "failed": "red"}
    table = Table("", "what", "found", "wanted")
    for one in findings:
        table.add_row(f"[{colours[one.state]}]{one.state}[/]", one.what, one.found, one.wanted)
    console.print(table)
    for one in findings:
        if one.remedy:
            console.print(f"{one.what}: {one.remedy}", markup=False, highlight=False, soft_wrap=True)
    console.print("something that is needed is missing" if failed else "nothing that is needed is missing")
