"""`peelsum top`: jobs and packets of a switch or of a cluster, live."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.cluster_report import as_json, read_report, shown
from peelsum.cli.job_controller import Controllers
from peelsum.cli.options import Json, Tls, identity, require_device_id, within
from peelsum.topology import Signalled, say
from peelsum.topology.user_errors import reported
from peelsum.wire import Verdict

if TYPE_CHECKING:
    from rich.console import Group

    from peelsum.control import SwitchStatus

#: What a switch does with a job's packets and with other traffic; every other verdict is a refusal.
_USEFUL = (
    Verdict.ABSORBED,
    Verdict.COMPLETED,
    Verdict.BYPASSED,
    Verdict.RESULT_RETURNED,
    Verdict.NEED_PASSED,
    Verdict.RESET_DONE,
    Verdict.RESENT,
    Verdict.RESEND_PASSED,
    Verdict.RESEND_FORWARDED,
    Verdict.FORWARDED,
)
#: Contributions that the switch added up, and those that it passed on to the server.
_SUMMED = (Verdict.ABSORBED, Verdict.COMPLETED)
_PASSED = (Verdict.COLLIDED, Verdict.TOMBSTONED)


@dataclass(frozen=True)
class Rates:
    """What a switch did between two looks."""

    packets: float
    """Packets a second."""
    summed: float | None
    """Share of the contributions that the switch added up, 0 to 1; None if there were none."""
    refused: Mapping[str, float]
    """Packets a second that were not summed or forwarded, by verdict."""


def rates(before: Mapping[Verdict, int], after: Mapping[Verdict, int], seconds: float) -> Rates:
    """Return what happened in `seconds`. A count that shrank started again at 0, with a new pipeline."""
    new = {verdict: _growth(before[verdict], after[verdict]) for verdict in Verdict}
    summed, passed = (sum(new[verdict] for verdict in kind) for kind in (_SUMMED, _PASSED))
    refused = {
        verdict.name.lower(): count / seconds
        for verdict, count in new.items()
        if count and verdict not in _USEFUL
    }
    share = summed / (summed + passed) if summed + passed else None
    return Rates(sum(new.values()) / seconds, share, refused)


def _growth(before: int, after: int) -> int:
    return after - before if after >= before else after


def command(
    p4runtime: Annotated[str, typer.Option(help="The switch's P4Runtime address.")] = "127.0.0.1:9559",
    device_id: Annotated[int, typer.Option(help="P4Runtime's device_id.")] = 1,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    count: Annotated[int | None, typer.Option(help="End after so many looks; by default at Ctrl-C.")] = None,
    controller: Controllers = None,
    tls: Tls = None,
    json: Json = False,
) -> None:
    """Show a switch's jobs, packets a second, share summed in the switch, and refused packets, live.

    With --controller, show a cluster's switches with the same, and its jobs, desired and actual.
    """
    within("--every", every, 0.05, 3600)
    if controller:
        _watch_cluster(controller, every, count, tls, json)
        return
    require_device_id(device_id)
    _watch_switch(p4runtime, device_id, every, count, tls, json)


def _watch_cluster(
    controllers: list[str], every: float, count: int | None, tls: Path | None, json: bool
) -> None:
    """Look at a cluster until Ctrl-C, or `count` times."""
    from rich.console import Console
    from rich.live import Live

    from peelsum.control import ControlError
    from peelsum.tls import TlsError

    ended, looks = Signalled(SIGINT, SIGTERM), 0
    before: dict[tuple[str, int], dict[Verdict, int]] = {}
    since = time.monotonic()
    with reported(ControlError, TlsError), Live(console=Console(quiet=json), auto_refresh=False) as live:
        while not ended.wait(every if looks else 0.0) and looks != count:
            report, now = read_report(controllers, tls), time.monotonic()
            seen = {
                (one.p4runtime, one.device_id): one.status.verdicts for one in report.switches if one.status
            }
            done = {place: rates(before.get(place, new), new, now - since) for place, new in seen.items()}
            before, since, looks = seen, now, looks + 1
            if json:
                packets = {f"{address}/{device}": one.packets for (address, device), one in done.items()}
                say(**as_json(report), packets=packets)
            else:
                said = {place: f"{one.packets:,.0f}/s" for place, one in done.items()}
                live.update(shown(report, said or {("", 0): ""}), refresh=True)


def _watch_switch(
    p4runtime: str, device_id: int, every: float, count: int | None, tls: Path | None, json: bool
) -> None:
    """Look at one switch until Ctrl-C, or `count` times."""
    from rich.console import Console
    from rich.live import Live

    from peelsum.control import ControlError, Controller
    from peelsum.tls import TlsError

    ended = Signalled(SIGINT, SIGTERM)
    with (
        reported(ControlError, TlsError),
        Controller.observe(p4runtime, device_id, identity=identity(tls)) as controller,
        Live(console=Console(quiet=json), auto_refresh=False) as live,
    ):
        before, since, looks = controller.verdicts(), time.monotonic(), 0
        while not ended.wait(every) and looks != count:
            seen, now = controller.status(), time.monotonic()
            done = rates(before, seen.verdicts, now - since)
            before, since, looks = seen.verdicts, now, looks + 1
            if json:
                jobs = [one.job_id for one in seen.jobs]
                say(jobs=jobs, packets=done.packets, summed=done.summed, refused=done.refused)
            else:
                live.update(_shown(seen, done), refresh=True)


def _shown(seen: SwitchStatus, done: Rates) -> Group:
    from rich.console import Group
    from rich.table import Table

    share = "-" if done.summed is None else f"{done.summed:.1%}"
    title = f"{seen.address}: {seen.lanes} lanes, {done.packets:,.0f} packets/s, {share} summed in the switch"
    table = Table("job", "generation", "members", "slots in use")
    for job in seen.jobs:
        used = "unknown" if seen.slots_in_use is None else str(seen.slots_in_use.get(job.job_id, 0))
        members = str(len(job.worker_ports or job.rack_ports))
        table.add_row(str(job.job_id), str(job.generation), members, used)
    refused = ", ".join(f"{name} {count:,.0f}/s" for name, count in done.refused.items())
    return Group(title, table, f"refused or passed on unsummed: {refused or 'none'}")
