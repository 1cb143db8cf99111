"""`peelsum bench switch`: rate and latency of the same compiled pipeline, embedded and on BMv2.

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
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import resource_tracker

from rich import box
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
    """One measurement of a switch with `workers` + 1 ports.

    packets_per_s: contributions that went into complete sums; sums and results travel beside them.
    latency_p50_us, latency_p99_us: from a chunk's last contribution in to its sum out, one chunk at a time;
    slots_timed: how many chunks that was measured on.
    bmv2: "measured", or why not; then the ratios are None.
    rate_to_bmv2: packets_per_s over BMv2's with as many lanes and workers; latency_to_bmv2: p50 over BMv2's.
    first_packet_cold_s, first_packet_cached_s: from importing the target to the first packet's way out,
        with nothing compiled yet and with the compiled code on disk.
    lost_chunks: given up by the load after a silence.
    """

    target: str
    ports: str
    lanes: int
    workers: int
    packets_per_s: float
    latency_p50_us: float
    latency_p99_us: float
    slots_timed: int
    bmv2: str = "measured"
    rate_to_bmv2: float | None = None
    latency_to_bmv2: float | None = None
    first_packet_cold_s: float | None = None
    first_packet_cached_s: float | None = None
    lost_chunks: int = 0


def bench_switch(
    *,
    json: bool = False,
    lanes: Sequence[int] = COMPILED_LANES,
    workers: Sequence[int] = (4,),
    seconds: float = 3.0,
) -> list[Row]:
    """Measure every target, and print a table or, with `json`, a list of objects.

    BMv2 is left out, and every row says why, where it is missing or may not have its interfaces.
    seconds: how long each row's rate is measured, and its latency for as long again.
    """
    rows = [row for count in lanes for row in _rows(count, workers, seconds)]
    if json:
        sys.stdout.write(json_format.dumps([asdict(row) for row in rows], indent=2) + "\n")
    else:
        Console().print(_table(rows))
    return rows


def _rows(lanes: int, workers: Sequence[int], seconds: float) -> list[Row]:
    """The rows of one number of lanes; the first tells how long the first packet takes."""
    cold, cached = _first_packet_seconds(lanes)
    rows = [row for count in workers for row in _compared(lanes, count, seconds)]
    return [replace(rows[0], first_packet_cold_s=cold, first_packet_cached_s=cached), *rows[1:]]


def _compared(lanes: int, workers: int, seconds: float) -> list[Row]:
    """Every target with as many lanes and workers, beside BMv2 or with the reason why it is not there."""
    rows = [_row(ports, lanes, workers, seconds) for ports in ("memory", "udp")]
    if not bmv2.available():
        return [replace(row, bmv2="not on PATH") for row in rows]
    try:
        base = _row("veth", lanes, workers, seconds)
    except TopologyError as error:
        return [replace(row, bmv2=str(error)) for row in rows]
    return [
        replace(
            row,
            rate_to_bmv2=round(row.packets_per_s / base.packets_per_s, 1),
            latency_to_bmv2=round(row.latency_p50_us / base.latency_p50_us, 3),
        )
        for row in (*rows, base)
    ]


def _row(ports: str, lanes: int, workers: int, seconds: float) -> Row:
    """One measurement in a process of its own, which ends with what it set up."""
    measure = {"memory": rates.in_memory, "udp": rates.over_udp, "veth": rates.bmv2_over_veth}[ports]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        with _deaf_children():
            measured = process.submit(measure, lanes, workers, seconds)
        rate = measured.result()
    return Row(
        target="bmv2" if ports == "veth" else "embedded",
        ports=ports,
        lanes=lanes,
        workers=workers,
        packets_per_s=round(rate.packets_per_s),
        latency_p50_us=round(rate.latency_p50_us, 1),
        latency_p99_us=round(rate.latency_p99_us, 1),
        slots_timed=rate.slots_timed,
        lost_chunks=rate.lost_chunks,
    )


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Ctrl-C reaches the whole terminal: what starts here never hears it, from its first moment on.

    This process answers it, after the body if it comes within.
    """
    resource_tracker.ensure_running()  # as it starts, it lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _first_packet_seconds(lanes: int) -> tuple[float, float]:
    """Without and with compiled code on disk."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "NUMBA_CACHE_DIR": cache}
        command = [sys.executable, "-c", _FIRST_PACKET, str(lanes)]
        cold, cached = (
            # In a process group of its own, which Ctrl-C does not reach; `run` ends it.
            subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True, process_group=0
            ).stdout
            for _ in range(2)
        )
    return round(float(cold), 2), round(float(cached), 2)


def _table(rows: Sequence[Row]) -> Table:
    """A table that fits 80 columns; what it takes to start stands below it."""
    starts = (
        f"first packet, {row.lanes} lanes: {row.first_packet_cold_s:.2f} s with nothing compiled, "
        f"{row.first_packet_cached_s:.2f} s with compiled code on disk"
        for row in rows
        if row.first_packet_cold_s is not None
    )
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption="\n".join(starts), caption_justify="left"
    )
    for heading in ("switch", "lanes", "workers", "packets/s", "x BMv2", "p50 us", "p99 us", "x BMv2"):
        table.add_column(heading, justify="left" if heading == "switch" else "right")
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
