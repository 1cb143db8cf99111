"""`peelsum doctor`: check this machine, a job's switches or a cluster, and print remedies."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.options import ClusterSettings, Json, Tls, read_identity, report_errors, with_settings
from peelsum.cli.output import print_tables
from peelsum.processes import print_message
from peelsum.processes.progress import progress_reporter, reporting_progress
from peelsum.wire import DEFAULT_LANES

if TYPE_CHECKING:
    from peelsum.topology.doctor import Finding


@with_settings
def command(
    description: Annotated[
        Path | None, typer.Argument(help="A job's description, TOML: its switches are checked, too.")
    ] = None,
    interface: Annotated[
        list[str] | None,
        typer.Option(help="An interface to check as a switch port that no switch uses yet; repeat it."),
    ] = None,
    *,
    cluster: ClusterSettings,
    tls: Tls = None,
    json: Json = False,
) -> None:
    """Check this machine, a job's switches or a cluster; exit with status 1 if something needed is missing.

    Each finding that is not as it should be has a remedy.
    """
    from peelsum.control import read_description
    from peelsum.topology.doctor import examine, examine_cluster, examine_interface, examine_job

    with report_errors(), reporting_progress("checking", progress_reporter()):
        job = None if description is None else read_description(description)
        lanes = job.plans()[0].switch.pipeline_lanes if job else DEFAULT_LANES
        findings = list(examine(lanes, job.job.window) if job else examine())
        for name in interface or []:
            findings += examine_interface(name, lanes)
        if job is not None:
            findings += examine_job(job, read_identity(tls))
        if cluster.controller:
            findings += examine_cluster(cluster.controller, read_identity(tls))
    failed = [finding for finding in findings if finding.state == "failed"]
    if json:
        print_message(findings=[asdict(finding) for finding in findings], failed=len(failed))
    else:
        _print(findings, len(failed))
    if failed:
        raise SystemExit(1)


def _print(findings: list[Finding], failed: int) -> None:
    """Print a table of the findings, and the remedies below."""
    from rich.console import Console

    colours = {"ok": "green", "note": "yellow", "failed": "red"}
    rows = [
        (f"[{colours[finding.state]}]{finding.state}[/]", finding.subject, finding.result, finding.expected)
        for finding in findings
    ]
    print_tables((("", "check", "result", "expected"), rows))
    console = Console()
    for finding in findings:
        if finding.remedy:
            remedy = f"{finding.subject}: {finding.remedy}"
            console.print(remedy, markup=False, highlight=False, soft_wrap=True)
    console.print("something that is needed is missing" if failed else "nothing that is needed is missing")
