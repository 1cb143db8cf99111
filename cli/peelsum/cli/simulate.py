"""`peelsum simulate`: an allreduce in virtual time, on links of any rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.cli.options import Json, with_settings
from peelsum.cli.output import empty_table, measuring, print_json
from peelsum.options import CommandSettings, Option

if TYPE_CHECKING:
    from peelsum.simulation import Report, Simulation

_HEADINGS = ("job", "workers", "sums", "us", "Gbit/s", "in switch", "resends", "marked", "rtt us", "wrong")


@dataclass(frozen=True)
class _Replacements(CommandSettings):
    """Values that replace those of a scenario, which checks their ranges."""

    workers: Annotated[int | None, Option("Workers of each job, 1 to 1024.")] = None
    gbps: Annotated[float | None, Option("Rate of a host's link in Gbit/s, 0.001 to 1600.")] = None
    loss: Annotated[float | None, Option("Probability that a link loses a packet, less than 1.")] = None
    jobs: Annotated[int | None, Option("Number of equal jobs, 1 to 128.")] = None
    racks: Annotated[
        int | None, Option("Racks below a spine, 1 to 32; by default as few as the workers need.")
    ] = None
    oversubscription: Annotated[
        float | None,
        Option("Rate of a rack's hosts divided by that of its links to the spines, 0.01 to 1000."),
    ] = None
    elements: Annotated[int | None, Option("32-bit words of a sum, 1 to 2^30.")] = None
    lanes: Annotated[int | None, Option("Words of a chunk, 1 to 4096.")] = None
    seed: Annotated[int | None, Option("Seed of words, losses and cross traffic; 0 to 2^63 - 1.")] = None


@with_settings
def simulate(
    scenario: Annotated[
        Path | None, typer.Argument(help="A scenario in TOML; options replace its values.")
    ] = None,
    *,
    settings: _Replacements,
    json: Json = False,
) -> None:
    """Simulate sums through switches: the real endpoint, server and switch program over modelled links.

    Two runs with the same seed print the same figures. Every sum is compared with an independent one.
    """
    from peelsum.simulation import SimulationError
    from peelsum.simulation import simulate as run
    from peelsum.simulation.scenario import with_options

    with measuring(SimulationError) as tell:
        model = with_options(scenario, asdict(settings))
        report = run(model, _progress(tell))
        if json:
            print_json({"scenario": model.model_dump(mode="json"), **asdict(report)})
        else:
            _print(report)
    if any(row.wrong for row in report.jobs):
        raise typer.Exit(1)


def _progress(tell: Callable[[str], None]) -> Callable[[Simulation], None]:
    """Return a function that reports the progress at every 64th step."""

    def show(simulation: Simulation) -> None:
        if simulation.engine.steps % 64 == 0:
            tell(f"simulating: {simulation.progress():.0%}, {simulation.engine.now / 1e9:.3f} ms")

    return show


def _print(report: Report) -> None:
    """Print a table of the jobs, with counts of packets in its caption."""
    from rich.console import Console

    drops = {reason: count for reason, count in report.drops.items() if count}
    caption = (
        f"packets at switches: {_counts(report.packets)}\ndropped: {_counts(drops) or 'none'}; "
        f"{report.marked:,} marked, at most {report.deepest:,} in a queue; "
        f"{report.octets / 1e6:,.1f} MB on all links; "
        f"simulated {report.seconds * 1e3:.3f} ms in {report.wall_s:.1f} s"
    )
    table: Any = empty_table(_HEADINGS, caption=caption, caption_justify="left")
    for row in report.jobs:
        times = f"{row.seconds * 1e6:,.1f}", f"{row.goodput_gbps:.2f}", f"{row.in_switch:.1%}"
        marks = f"{row.resends:,}", f"{row.marked:,}", f"{row.rtt_us:.1f}", str(row.wrong)
        table.add_row(str(row.job), str(row.workers), str(row.sums), *times, *marks)
    Console().print(table)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
