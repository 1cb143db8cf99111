"""`peelsum bench switch` and `peelsum bench profile`: rate, latency and profile of a switch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.bench.output import measuring, print_json, show, table_of
from peelsum.cli.options import Json, require_lanes, within
from peelsum.topology import TopologyError

if TYPE_CHECKING:
    from rich.table import Table

    from peelsum.bench.switch.planes import PlanesRow
    from peelsum.bench.switch.profile import LoopRow, Profile, ProgramRow
    from peelsum.bench.switch.rows import Row


def switch(
    lanes: Annotated[list[int] | None, typer.Option(help="Pipelines to measure; default: all.")] = None,
    workers: Annotated[
        list[int] | None, typer.Option(help="Workers, each at its own port; default: 4.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Duration of each rate and latency measurement.")] = 3.0,
    planes: Annotated[
        int | None, typer.Option(help="Measure so many switch processes together instead, beside one.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure packets per second and latency of a slot: softswitch, and BMv2 if it is installed."""
    from peelsum.bench.switch.planes import bench_planes
    from peelsum.bench.switch.rows import bench_switch
    from peelsum.pipelines import PipelineError
    from peelsum.softswitch import SoftswitchError
    from peelsum.wire import COMPILED_LANES

    _require_ranges(lanes, workers, seconds)
    if planes is not None:
        within("--planes", planes, 2, 64)
    with measuring(TopologyError, PipelineError, SoftswitchError, json=json):
        lanes, workers = lanes or list(COMPILED_LANES), workers or [4]
        if planes is None:
            show(bench_switch(lanes=lanes, workers=workers, seconds=seconds), _table, json=json)
        else:
            rows = bench_planes(planes, lanes=lanes, workers=workers, seconds=seconds)
            show(rows, _planes_table, json=json)


def profile(
    lanes: Annotated[
        list[int] | None, typer.Option(help="Pipelines to profile with 4 workers; default: all.")
    ] = None,
    workers: Annotated[
        list[int] | None, typer.Option(help="Workers to profile with the most lanes; default: 2, 8 and 16.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Duration of the load for each row of the process.")] = 2.0,
    json: Json = False,
) -> None:
    """Show where the softswitch spends a contribution's time: parts of the program, and of its process."""
    from peelsum.bench.switch import profile as bench
    from peelsum.wire import COMPILED_LANES

    _require_ranges(lanes, workers, seconds)
    with measuring(bench.ProfileError, TopologyError, json=json):
        found = bench.profile(lanes or COMPILED_LANES, workers or (2, 8, 16), seconds)
        if json:
            print_json(found)
        else:
            _print_profile(found)


def _require_ranges(lanes: list[int] | None, workers: list[int] | None, seconds: float) -> None:
    from peelsum.wire import MAX_WORKERS

    within("--seconds", seconds, 0.1, 3600)
    for count in workers or ():
        within("--workers", count, 1, MAX_WORKERS)
    for count in lanes or ():
        require_lanes(count)


def _table(rows: Sequence[Row]) -> Table:
    """Return a table that fits 80 columns, with the first packet's times below."""
    starts = (
        f"first packet, {row.lanes} lanes: {row.first_packet_cold_s:.2f} s with nothing compiled, "
        f"{row.first_packet_cached_s:.2f} s with compiled code on disk"
        for row in rows
        if row.first_packet_cold_s is not None
    )
    table = table_of(
        ("switch", "lanes", "workers", "packets/s", "x BMv2", "p50 us", "p99 us", "x BMv2"),
        left=("switch",),
        caption="\n".join(starts),
        caption_justify="left",
    )
    for row in rows:
        table.add_row(
            f"{row.target}, {row.ports}",
            str(row.lanes),
            str(row.workers),
            f"{row.packets_per_s:,.0f}",
            row.bmv2 if row.rate_to_bmv2 is None else f"{row.rate_to_bmv2:,.1f}",
            f"{row.latency_p50_us:,.1f}",
            f"{row.latency_p99_us:,.1f}",
            "-" if row.latency_to_bmv2 is None else f"{row.latency_to_bmv2:.3f}",
        )
    return table


def _planes_table(rows: Sequence[PlanesRow]) -> Table:
    table = table_of(
        ("planes", "lanes", "workers", "packets/s of CPU", "x one", "packets/s", "x one", "busy", "lost")
    )
    for row in rows:
        table.add_row(
            str(row.planes),
            str(row.lanes),
            str(row.workers),
            f"{row.packets_per_cpu_s:,}",
            f"{row.cpu_to_one:.2f}",
            f"{row.packets_per_s:,}",
            f"{row.clock_to_one:.2f}",
            f"{row.busy:.0%}",
            str(row.lost_chunks),
        )
    return table


def _print_profile(profile: Profile) -> None:
    from rich.console import Console

    program = _parts_table("program: ns per contribution", profile.program, "sum", "unstamped")
    for row in profile.program:
        program.add_row(*_parts(row), f"{row.sum_of_parts_ns:.0f}", f"{row.without_stamps_ns:.0f}")
    loop = _parts_table("process over UDP: ns of CPU time per contribution", profile.loop, "packets/s")
    for one in profile.loop:
        loop.add_row(*_parts(one), f"{one.packets_per_s:,}")
    Console().print(program, loop)


def _parts_table(title: str, rows: Sequence[ProgramRow | LoopRow], *more: str) -> Table:
    return table_of(("lanes", "workers", *rows[0].parts_ns, *more), title=title)


def _parts(row: ProgramRow | LoopRow) -> list[str]:
    return [str(row.lanes), str(row.workers), *(f"{ns:.0f}" for ns in row.parts_ns.values())]
