"""`peelsum bench switch`: packets per second through the same compiled pipeline, embedded and on BMv2.

Owns what is measured and how it is shown. Every measurement runs in processes of its own.
"""

from __future__ import annotations

import json as json_format
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.table import Table

from peelsum.topology import bmv2, rates
from peelsum.topology.errors import TopologyError
from peelsum.wire import COMPILED_LANES

#: From importing the target to the first packet's way out of the pipeline, in a new process.
_FIRST_PACKET = """
import sys, time
started = time.perf_counter()
from peelsum.target import Frames, Switch, load
from peelsum.target.artifacts import pipeline
Switch(load(pipeline(int(sys.argv[1])).json_path)).process(Frames.of([(1, bytes(2048))]), 0)
print(time.perf_counter() - started)
"""


@dataclass(frozen=True)
class Row:
    """One measurement.

    packets_per_s: contributions that went into complete sums; sums and results travel beside them.
    ratio_to_bmv2: against BMv2 with as many lanes, where it was measured.
    first_packet_cold_s, first_packet_cached_s: from importing the target to the first packet's way out,
        with nothing compiled yet and with the compiled code on disk.
    lost_chunks: given up by the load after a silence.
    """

    target: str
    ports: str
    lanes: int
    packets_per_s: float
    ratio_to_bmv2: float | None = None
    first_packet_cold_s: float | None = None
    first_packet_cached_s: float | None = None
    lost_chunks: int = 0


def bench_switch(
    *, json: bool = False, lanes: Sequence[int] = COMPILED_LANES, seconds: float = 3.0
) -> list[Row]:
    """Measure every target, and print a table or, with `json`, a list of objects.

    BMv2 is left out, with a line that says why, where it is missing or may not have its interfaces.
    seconds: how long each row is measured.
    """
    rows = [row for count in lanes for row in _with_ratios(list(_measure(count, seconds)))]
    if json:
        sys.stdout.write(json_format.dumps([asdict(row) for row in rows], indent=2) + "\n")
    else:
        Console().print(_table(rows))
    return rows


def _measure(lanes: int, seconds: float) -> Iterator[Row]:
    cold, cached = _first_packet_seconds(lanes)
    row = _row("memory", lanes, seconds)
    yield replace(row, first_packet_cold_s=cold, first_packet_cached_s=cached)
    yield _row("udp", lanes, seconds)
    if not bmv2.available():
        _note(f"{bmv2.BINARY} is not on PATH")
        return
    try:
        yield _row("veth", lanes, seconds)
    except TopologyError as error:
        _note(str(error))


def _note(reason: str) -> None:
    print(f"bmv2: left out, {reason}", file=sys.stderr)


def _row(ports: str, lanes: int, seconds: float) -> Row:
    """One measurement in a process of its own, which ends with what it set up."""
    measure = {"memory": rates.in_memory, "udp": rates.over_udp, "veth": rates.bmv2_over_veth}[ports]
    quiet = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; this process answers it
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=signal.signal, initargs=quiet) as process:
        rate = process.submit(measure, lanes, seconds).result()
    target = "bmv2" if ports == "veth" else "embedded"
    return Row(target, ports, lanes, round(rate.packets_per_s), lost_chunks=rate.lost_chunks)


def _with_ratios(rows: list[Row]) -> list[Row]:
    """The rows of one number of lanes, each compared with BMv2's if that is among them."""
    base = next((row.packets_per_s for row in rows if row.target == "bmv2"), None)
    if not base:
        return rows
    return [replace(row, ratio_to_bmv2=round(row.packets_per_s / base, 1)) for row in rows]


def _first_packet_seconds(lanes: int) -> tuple[float, float]:
    """Without and with compiled code on disk."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "NUMBA_CACHE_DIR": cache}
        command = [sys.executable, "-c", _FIRST_PACKET, str(lanes)]
        cold, cached = (
            subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
            for _ in range(2)
        )
    return round(float(cold), 2), round(float(cached), 2)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title=f"Contributions of {rates.WORKERS} workers through the same compiled pipeline")
    for heading in ("target", "ports", "lanes", "packets/s", "x BMv2", "first packet, cold", "cached"):
        table.add_column(heading, justify="left" if heading in ("target", "ports") else "right")
    for row in rows:
        table.add_row(
            row.target,
            row.ports,
            str(row.lanes),
            f"{row.packets_per_s:,.0f}",
            _or_dash(row.ratio_to_bmv2, "{:.1f}"),
            _or_dash(row.first_packet_cold_s, "{:.2f} s"),
            _or_dash(row.first_packet_cached_s, "{:.2f} s"),
        )
    return table


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
