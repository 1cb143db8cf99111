"""Several softswitch processes under one load, beside one of them.

`planes` softswitch processes over UDP beside one of them, in five rounds each that take turns. Processor time
is that of the switch processes; by the clock, the switches and the load share the machine's cores. Every
switch has a job of its own, and one process plays all hosts. With one plane the other switches run idle.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

from peelsum.bench.devices import cpu_s
from peelsum.bench.switch.load import Load, Loop
from peelsum.bench.switch.load_hosts import UdpHosts
from peelsum.bench.switch.rates import FIRST_CHUNK_S, UDP_WINDOW, admit, switch_process
from peelsum.bench.switch.rows import in_process
from peelsum.experiments import Column, Experiment, Size
from peelsum.topology.errors import TopologyError
from peelsum.wire import COMPILED_LANES, MAX_WORKERS, packet_bytes

_ROUNDS = 5
#: Silence of a plane after which its outstanding chunks count as lost, in seconds.
_PATIENCE_S = 0.2
_CHECKED = 2048


class _Plane(NamedTuple):
    """A switch under a load."""

    loop: Loop
    hosts: UdpHosts
    pid: int


@dataclass
class _Total:
    """What a number of planes did in all rounds."""

    chunks: list[int]
    cpu_s: list[float]
    seconds: float = 0.0
    lost: int = 0


def measured(planes: int, lanes: int, workers: int, seconds: float) -> list[dict[str, Any]]:
    """Return the rows of one plane and of all. Call it in a new process. Raises TopologyError."""
    with ExitStack() as stack:
        scene = [_plane(stack, plane, lanes, workers) for plane in range(planes)]
        for plane in scene:
            _drive([plane], FIRST_CHUNK_S, only_first=True)
        totals = {count: _Total([0] * count, [0.0] * count) for count in (1, planes)}
        for _ in range(_ROUNDS):
            for count, total in totals.items():
                _add_round(total, scene[:count], seconds / _ROUNDS)
    one = _rates(totals[1], workers)
    return [_row(count, workers, total, one) for count, total in totals.items()]


def _plane(stack: ExitStack, plane: int, lanes: int, workers: int) -> _Plane:
    """Start a switch and its hosts, until `stack` closes."""
    at, pid = stack.enter_context(switch_process(workers))
    generation = admit(f"{at.host}:{at.grpc_port}", lanes, workers)
    load = Load.random(workers=workers, window=UDP_WINDOW, lanes=lanes, generation=generation, seed=plane)
    hosts = stack.enter_context(UdpHosts(at.host, at.udp_ports, workers, packet_bytes(lanes)))
    return _Plane(Loop(load, hosts, _CHECKED), hosts, pid)


def _add_round(total: _Total, scene: Sequence[_Plane], seconds: float) -> None:
    chunks, lost = [one.loop.done for one in scene], [one.loop.lost for one in scene]
    spent = [cpu_s(one.pid) for one in scene]
    total.seconds += _drive(scene, seconds)
    for i, one in enumerate(scene):
        total.cpu_s[i] += cpu_s(one.pid) - spent[i]
        total.chunks[i] += one.loop.done - chunks[i]
        total.lost += one.loop.lost - lost[i]


def _drive(scene: Sequence[_Plane], seconds: float, *, only_first: bool = False) -> float:
    """Run the closed loops of all planes side by side; return for how many seconds.

    What is under way at the end goes on in the plane's next round. only_first: whether to end as soon as
    every plane has summed a chunk. Raises TopologyError if none does.
    """
    started = now = time.perf_counter()
    heard = [started] * len(scene)
    while (now := time.perf_counter()) < started + seconds:
        quiet = True
        for i, one in enumerate(scene):
            if one.loop.turn(0.0):
                heard[i], quiet = now, False
            elif now > heard[i] + _PATIENCE_S:
                one.loop.give_up()
                heard[i] = now
        if only_first and all(one.loop.done for one in scene):
            break
        if quiet:
            select.select([one.hosts for one in scene], [], [], _PATIENCE_S)
    if not all(one.loop.done for one in scene):
        raise TopologyError(f"switch: no chunk came back in {seconds:g} s; is it running?")
    return now - started


def _rates(total: _Total, workers: int) -> tuple[float, float]:
    """Return contributions per CPU second, summed over planes, and per second by the clock."""
    by_cpu = sum(chunks / cpu_s for chunks, cpu_s in zip(total.chunks, total.cpu_s, strict=True))
    return workers * by_cpu, workers * sum(total.chunks) / total.seconds


def _row(planes: int, workers: int, total: _Total, one: tuple[float, float]) -> dict[str, Any]:
    by_cpu, by_clock = _rates(total, workers)
    return {
        "switches": planes,
        "packets_per_cpu_s": round(by_cpu),
        "packets_per_s": round(by_clock),
        "busy": round(sum(total.cpu_s) / planes / total.seconds, 3),
        "cpu_to_one": round(by_cpu / one[0], 2),
        "clock_to_one": round(by_clock / one[1], 2),
        "lost_chunks": total.lost,
    }


def measure(seed: int, planes: int, lanes: int, workers: int, seconds: float) -> Any:
    """Measure one plane and all of them, in rounds that take turns. Raises TopologyError."""
    return in_process(measured, planes, lanes, workers, seconds)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "switches": Column("switch processes under load"),
        "packets_per_cpu_s": Column(
            "contributions summed per second of a process's CPU time; sum over planes"
        ),
        "packets_per_s": Column("contributions summed per second by the clock; sum over planes"),
        "busy": Column("CPU seconds of a switch process per second by the clock, mean over planes"),
        "cpu_to_one": Column("`packets_per_cpu_s` over that of one plane"),
        "clock_to_one": Column("`packets_per_s` over that of one plane"),
        "lost_chunks": Column("chunks that the load gave up after a silence"),
    },
    keys=("switches",),
    sizes={
        "quick": Size([{"planes": 2, "lanes": 32, "workers": 2, "seconds": 0.5}], 1),
        "usual": Size([{"planes": 2, "lanes": (32, 64, 128, 256), "workers": 4, "seconds": 3.0}], 1),
    },
    ranges={"planes": (2, 64), "workers": (1, MAX_WORKERS), "seconds": (0.1, 3600)},
    choices={"lanes": COMPILED_LANES},
)
