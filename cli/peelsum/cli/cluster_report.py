"""`peelsum status` and `peelsum top` with `--controller`: a cluster's jobs, desired and actual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peelsum.cli.job_controller import controllers_client
from peelsum.cli.options import identity

if TYPE_CHECKING:
    from rich.console import Group

    from peelsum.control.cluster import Report


def read_report(controllers: list[str], tls: Path | None) -> Report:
    """Ask the cluster's primary, and then every switch. Raises ControlError or TlsError."""
    from peelsum.control.cluster import observed

    return observed(controllers_client(controllers, tls).list(), identity(tls))


def as_json(report: Report) -> dict[str, Any]:
    """Return a report for scripts."""
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


def shown(report: Report, packets: Mapping[tuple[str, int], str] | None = None) -> Group:
    """Return a report for people. packets: what each switch did since the last look, by its place."""
    from rich.console import Group
    from rich.table import Table

    switches = Table(
        "switch", "device_id", "controller says", "switch says", *(["packets"] if packets else [])
    )
    for one in report.switches:
        says = f"{one.status.lanes} lanes, {one.status.slots} slots" if one.status else one.trouble
        done = [packets.get((one.p4runtime, one.device_id), "-")] if packets else []
        switches.add_row(one.p4runtime, str(one.device_id), one.state, says, *done)
    jobs = Table("job", "switch", "desired generation", "actual generation", "state")
    for job in report.jobs:
        state = job.state or "not admitted by this controller"
        generations = ("-" if one is None else str(one) for one in (job.desired, job.actual))
        jobs.add_row(
            str(job.job_id), job.p4runtime, *generations, state if job.agrees else f"differs: {state}"
        )
    title = f"{report.address}: primary, epoch {report.epoch}"
    return Group(title, switches, jobs if report.jobs else "no jobs")
