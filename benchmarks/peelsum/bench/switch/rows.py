"""`peelsum bench switch`: measure rate and latency of one compiled pipeline, on the softswitch and on BMv2.

Every measurement runs in separate processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from typing import ParamSpec, TypeVar

from peelsum.bench.switch import rates
from peelsum.topology import bmv2
from peelsum.topology.errors import TopologyError
from peelsum.wire import COMPILED_LANES

P = ParamSpec("P")
T = TypeVar("T")
#: Measures, in a new process, the time from importing the softswitch to the first packet's output.
_FIRST_PACKET = """
import sys, time
started = time.perf_counter()
from peelsum.softswitch import Frames, Switch, load
from peelsum.pipelines import pipeline
Switch(load(pipeline(int(sys.argv[1])).json_path)).process(Frames.of([(1, bytes(2048))]), 0)
print(time.perf_counter() - started)
"""


@dataclass(frozen=True)
class Row:
    """One measurement of a switch with `workers` + 1 ports."""

    target: str
    """The switch: "embedded" for the softswitch, or "bmv2"."""
    ports: str
    """What its ports are: "memory", "udp" or "veth"."""
    lanes: int
    workers: int
    packets_per_s: float
    """Contributions per second that went into complete sums; sums and results are not counted."""
    latency_p50_us: float
    """Median time from a chunk's last contribution in to its sum out, one chunk at a time."""
    latency_p99_us: float
    """99th percentile of the same time."""
    slots_timed: int
    """Number of chunks whose latency was measured."""
    bmv2: str = "measured"
    """"measured", or the reason why BMv2 was not; the ratios are then None."""
    rate_to_bmv2: float | None = None
    """`packets_per_s` over BMv2's with as many lanes and workers."""
    latency_to_bmv2: float | None = None
    """`latency_p50_us` over BMv2's."""
    first_packet_cold_s: float | None = None
    """Seconds from importing the softswitch to the first packet's output, without compiled code on disk."""
    first_packet_cached_s: float | None = None
    """Seconds from importing the softswitch to the first packet's output, with compiled code on disk."""
    lost_chunks: int = 0
    """Chunks that the load gave up after a silence."""


def bench_switch(
    *, lanes: Sequence[int] = COMPILED_LANES, workers: Sequence[int] = (4,), seconds: float = 3.0
) -> list[Row]:
    """Measure every switch with every number of lanes and workers; return the rows.

    If BMv2 is missing or cannot have its interfaces, it is left out, and every row says why. `seconds` is the
    duration of each row's rate measurement, and of its latency measurement.
    """
    return [row for count in lanes for row in _rows(count, workers, seconds)]


def _rows(lanes: int, workers: Sequence[int], seconds: float) -> list[Row]:
    """Return the rows of one number of lanes; the first has the first packet's times."""
    cold, cached = _first_packet_seconds(lanes)
    rows = [row for count in workers for row in _compared(lanes, count, seconds)]
    return [replace(rows[0], first_packet_cold_s=cold, first_packet_cached_s=cached), *rows[1:]]


def _compared(lanes: int, workers: int, seconds: float) -> list[Row]:
    """Return a row for every switch, compared with BMv2, or with the reason why BMv2 is missing."""
    rows = [measured(ports, lanes, workers, seconds) for ports in ("memory", "udp")]
    if not bmv2.available():
        return [replace(row, bmv2="not on PATH") for row in rows]
    try:
        base = measured("veth", lanes, workers, seconds)
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


def measured(ports: str, lanes: int, workers: int, seconds: float) -> Row:
    """Measure one switch in a separate process, which takes its set-up with it when it ends.

    ports: "memory" and "udp" for the softswitch, "veth" for BMv2. Raises TopologyError.
    """
    measure = {"memory": rates.in_memory, "udp": rates.over_udp, "veth": rates.bmv2_over_veth}[ports]
    rate = in_process(measure, lanes, workers, seconds)
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


def in_process(measure: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function returns in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        with _deaf_children():
            running = process.submit(measure, *args, **kwargs)
        return running.result()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Start processes in the body with SIGINT blocked, because Ctrl-C reaches every process of the terminal.

    This process handles a SIGINT that arrives in the body after it.
    """
    resource_tracker.ensure_running()  # its start would unblock signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _first_packet_seconds(lanes: int) -> tuple[float, float]:
    """Return the first packet's seconds without and with compiled code on disk."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "NUMBA_CACHE_DIR": cache}
        command = [sys.executable, "-c", _FIRST_PACKET, str(lanes)]
        cold, cached = (
            # In its own process group, which Ctrl-C does not reach; `run` ends it.
            subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True, process_group=0
            ).stdout
            for _ in range(2)
        )
    return round(float(cold), 2), round(float(cached), 2)
