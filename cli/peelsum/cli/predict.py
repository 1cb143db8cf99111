"""`peelsum plan`: the ways to send a tensor; and `peelsum simulate`: an allreduce in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peelsum.bench.point import Point
from peelsum.cli.options import Json, with_settings
from peelsum.cli.output import aligned, empty_table, measuring, print_json
from peelsum.options import CommandSettings, Option
from peelsum.processes.progress import reporting_progress

if TYPE_CHECKING:
    from peelsum.simulation import Report, Simulation

#: Columns of each table by heading: the row's key and the format.
_WAYS = {
    "form": ("form", ""),
    "index": ("index", ""),
    "bytes": ("bytes", ","),
    "exchanges": ("exchanges", ""),
    "words ms": ("words_ms", ".3f"),
    "exch. ms": ("exchanges_ms", ".3f"),
    "codec ms": ("codec_ms", ".3f"),
    "total ms": ("total_ms", ".3f"),
}
_CHECKED = {
    "measured": ("measured_bytes", ","),
    "error": ("bytes_error", "+.1%"),
    "measured codec ms": ("measured_codec_ms", ".3f"),
    "codec error": ("codec_error", "+.0%"),
}
_METHODS = {
    "method": ("method", ""),
    "bytes": ("sent_bytes", ","),
    "latency ms": ("latency_ms", ".3f"),
    "words ms": ("words_ms", ".3f"),
    "codec ms": ("codec_ms", ".3f"),
    "total ms": ("total_ms", ".3f"),
}
_TEXT_COLUMNS = ("form", "index", "layout", "method")
#: The unit of each axis of the crossovers, how many are 1 of the axis, and the format.
_UNITS = {
    "gbps": (" Gbit/s", 1, ".3g"),
    "latency_s": (" ms of latency", 1e3, ".3g"),
    "ratio": ("% of all elements", 1e2, ".3g"),
    "elements": (" elements", 1, ",.0f"),
}
_HEADINGS = ("job", "workers", "sums", "us", "Gbit/s", "in switch", "resends", "marked", "rtt us", "wrong")


@with_settings
def plan(
    request: Point,
    check: Annotated[
        bool,
        typer.Option(help="Measure each on this machine too, and show the errors of predictions."),
    ] = False,
    json: Json = False,
) -> None:
    """Compare all ways to sum a tensor, with predicted bytes and time, and explain the recommended one.

    The first table has the ways through the switch, by form and index. The second has dense and sparse
    collectives, and below it the values of rate, latency, ratio and size at which the fastest changes.
    """
    from peelsum.bench import plan as bench
    from peelsum.bench.codec.timing import NotEnoughMemoryError, NotExactError

    with measuring(NotEnoughMemoryError, NotExactError) as tell:
        with reporting_progress("measuring" if check else "predicting", tell):
            planned = bench.plan(request, check=check)
        if json:
            print_json(planned)
            return
        columns = {**_WAYS, **(_CHECKED if check else {}), "layout": ("layout", "")}
        lines = [*_table(planned["candidates"], columns), "", *planned["why"], ""]
        for form in planned["forms"]:
            line = f"{form['form']}: {form['predicted_ms']:.4g} ms a step, predicted"
            if form["ms"] is None:
                lines.append(f"{line}; not measured.")
            else:
                codec, network = form["codec_ms"], form["ms"] - form["codec_ms"]
                parts = f"{codec:.4g} ms of codec, measured, and {network:.4g} ms of network, simulated."
                lines.append(f"{line}; {parts}")
        lines.append("")
        if planned["methods"]:
            lines += [*_table(planned["methods"], _METHODS), ""]
        for change in planned["crossovers"]:
            unit, factor, spec = _UNITS[change["axis"]]
            value = f"{change['at'] * factor:{spec}}{unit}"
            lines.append(f"At {value}, {change['above']} becomes faster than {change['below']}.")
        print(*lines, planned["advice"], sep="\n")


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, str]]) -> list[str]:
    cells = [[format(row[key], spec) for key, spec in columns.values()] for row in rows]
    return aligned([list(columns), *cells], _TEXT_COLUMNS)


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

    def show_progress(simulation: Simulation) -> None:
        if simulation.engine.steps % 64 == 0:
            tell(f"simulating: {simulation.progress():.0%}, {simulation.engine.now / 1e9:.3f} ms")

    with measuring(SimulationError) as tell:
        model = with_options(scenario, asdict(settings))
        report = run(model, show_progress)
        if json:
            print_json({"scenario": model.model_dump(mode="json"), **asdict(report)})
        else:
            _print(report)
    if any(row.wrong for row in report.jobs):
        raise typer.Exit(1)


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
