"""`peelsum bench switch`: rate and latency of one compiled pipeline, on the softswitch and on BMv2.

Every measurement runs in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from typing import Any, ParamSpec, TypeVar

from peelsum.bench.switch import rates
from peelsum.processes import ProcessError
from peelsum.topology import bmv2
from peelsum.topology.errors import TopologyError

P = ParamSpec("P")
T = TypeVar("T")
#: measure(lanes, workers, seconds) returns figures.
Measure = Callable[[int, int, float], dict[str, Any]]
MEASURES: dict[str, Measure] = {
    "memory": rates.in_memory,
    "udp": rates.over_udp,
    "xdp": partial(rates.over_interfaces, method="xdp"),
    "packet": partial(rates.over_interfaces, method="packet"),
    "bmv2": rates.bmv2_over_veth,
}
#: Figures that are missing in some rows.
_OPTIONAL = (
    "packets_per_cpu_s",
    "latency_p50_us",
    "latency_p99_us",
    "slots_timed",
    "lost_chunks",
    "rate_to_bmv2",
    "latency_to_bmv2",
    "first_packet_cold_s",
    "first_packet_cached_s",
)
#: Measures, in a new process, the time from importing the softswitch to the first packet's output.
_FIRST_PACKET = """
import sys, time
started = time.perf_counter()
from peelsum.softswitch import Frames, Switch, load
from peelsum.pipelines import pipeline
Switch(load(pipeline(int(sys.argv[1])).json_path)).process(Frames.of([(1, bytes(2048))]), 0)
print(time.perf_counter() - started)
"""


def measure_switches(
    lanes: int, workers: int, seconds: float, on_interfaces: Mapping[str, Measure] | None = None
) -> list[dict[str, Any]]:
    """Measure every switch with these lanes and workers; return the rows.

    There are no rows on interfaces if this process may not create any, and none of BMv2 if it is missing; the
    field `bmv2` of all rows has the reason. `seconds` is the duration of each row's rate measurement, and of
    its latency measurement. on_interfaces: further measurements, by their names for `measure_switch`.
    """
    cold, cached = _first_packet_seconds(lanes)
    shape = lanes, workers, seconds
    rows = [measure_switch(ports, *shape) for ports in ("memory", "udp")]
    rows[0] |= {"first_packet_cold_s": cold, "first_packet_cached_s": cached}
    try:
        rows += [measure_switch(ports, *shape) for ports in ("xdp", "packet")]
        rows += [measure_switch(name, *shape, measure) for name, measure in (on_interfaces or {}).items()]
        if not bmv2.available():
            raise TopologyError("not on PATH")
        baseline = measure_switch("bmv2", *shape)
    except (TopologyError, ProcessError, OSError) as error:
        return [row | {"bmv2": str(error)} for row in rows]
    return [
        row
        | {
            "rate_to_bmv2": round(row["packets_per_s"] / baseline["packets_per_s"], 1),
            "latency_to_bmv2": row["latency_p50_us"]
            and round(row["latency_p50_us"] / baseline["latency_p50_us"], 3),
        }
        for row in (*rows, baseline)
    ]


def measure_switch(
    name: str, lanes: int, workers: int, seconds: float, measure: Measure | None = None
) -> dict[str, Any]:
    """Measure one switch in a separate process, whose end also ends its namespaces; return the row.

    name: "memory", "udp", "xdp" and "packet" for the softswitch, "bmv2" for BMv2 on veth; or with `measure`,
    PORTS_TARGET. Raises TopologyError, or OSError if this process may not have such ports.
    """
    figures = in_process(measure or MEASURES[name], lanes, workers, seconds)
    ports, _, target = name.partition("_")
    target, ports = ("bmv2", "packet") if name == "bmv2" else (target or "embedded", ports)
    return {"target": target, "ports": ports, "bmv2": "measured", **dict.fromkeys(_OPTIONAL), **figures}


def in_process(measure: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a new process; return its result."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        with _sigint_blocked():
            future = process.submit(measure, *args, **kwargs)
        return future.result()


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in the body; children inherit that, because Ctrl-C reaches every process of the terminal.

    This process handles a SIGINT that arrives in the body after it.
    """
    resource_tracker.ensure_running()  # its start would unblock signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _first_packet_seconds(lanes: int) -> tuple[float, float]:
    """Return the seconds until the first packet's output, without and with compiled code on disk."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        command = [sys.executable, "-c", _FIRST_PACKET, str(lanes)]
        cold, cached = (
            # In its own process group, which Ctrl-C does not reach; `run` ends it.
            subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True, process_group=0
            ).stdout
            for _ in range(2)
        )
    return round(float(cold), 2), round(float(cached), 2)
