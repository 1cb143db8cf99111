"""One level of switches against two: the same workers below one switch, or in two racks below a spine.

Switches, controller, server and workers are processes over loopback UDP. Ports may have rates, and the links
between the switches rates of their own. One worker may begin each sum late.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from peelsum.topology import Child, ProcessError
from peelsum.topology.description import Link, Topology, star, switch_port, two_racks
from peelsum.topology.network import UdpNetwork
from peelsum.transport.seats import SEAT

_WARM_UPS, _PATIENCE_S = 2, 120.0


@dataclass(frozen=True)
class Scene:
    """A network, and sums over it."""

    levels: int
    """1: one switch; 2: two racks and a spine."""
    workers: int = 4
    """Workers in all; even with two levels."""
    elements: int = 1 << 18
    """Words of a sum."""
    mbit: float | None = None
    """Rate of the hosts' links; None is as fast as the machine."""
    trunk_mbit: float | None = None
    """Rate of the links between switches."""
    late_ms: float = 0.0
    """Milliseconds by which the last worker begins each sum after the others."""
    sums: int = 10
    """Sums that are timed."""
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """The measurement of a scene; times are medians of sums, of the slowest worker."""

    step_ms: float
    """Milliseconds from the last worker's start to the last result."""
    switch_cpu_ms: float
    """Processor time of a sum in all switches."""
    server_cpu_ms: float
    """Processor time of a sum in the aggregation server."""
    wrong: int
    """Words that differ from an independent sum, all workers."""


def topology_of(scene: Scene) -> Topology:
    """Return the network's description, with rates."""
    plain = star(scene.workers) if scene.levels == 1 else two_racks(scene.workers // 2)
    links = tuple(
        link.model_copy(update={"rate_mbit": scene.trunk_mbit if _trunk(link) else scene.mbit})
        for link in plain.links
    )
    return plain.model_copy(update={"links": links})


def run(scene: Scene) -> Found:
    """Start the network, sum, and end everything. Raises TopologyError."""
    topology = topology_of(scene)
    assert topology.job is not None
    with UdpNetwork(topology) as network, ExitStack() as stack:
        seats = [json.loads(network.places[host].environment[SEAT]) for host in topology.job.workers]
        workers = [_worker(seat, scene) for seat in seats]
        for worker in workers:
            stack.callback(worker.stop)
        for worker in workers:
            worker.ready()
        sums = [_sum(workers, scene.late_ms) for _ in range(_WARM_UPS)]
        before = _cpu_s(network)
        sums += [_sum(workers, scene.late_ms) for _ in range(scene.sums)]
        after = _cpu_s(network)
        for worker in workers:
            worker.tell(again=False)
        for worker in workers:
            worker.next_line(_PATIENCE_S)
    spent = {name: 1e3 * (after[name] - before[name]) / scene.sums for name in after}
    return Found(
        step_ms=1e3 * median(seconds for seconds, _ in sums[_WARM_UPS:]),
        switch_cpu_ms=sum(spent[name] for name in topology.switches),
        server_cpu_ms=spent["server"],
        wrong=sum(wrong for _, wrong in sums),
    )


def _trunk(link: Link) -> bool:
    return all(switch_port(end) is not None for end in link.ends)


def _worker(seat: dict[str, Any], scene: Scene) -> Child:
    arguments = {"seat": seat, "elements": scene.elements, "seed": scene.seed}
    command = [sys.executable, "-m", "peelsum.bench.loss.worker", json.dumps(arguments)]
    # In a sum it does not read its input, and would outlive a killed parent until the sum stalls.
    return Child(f"worker {seat['worker_id']}", command, foreign=True)


def _sum(workers: Sequence[Child], late_ms: float) -> tuple[float, int]:
    """Begin a sum at all workers, at the last one later; return seconds since then, and wrong words."""
    for worker in workers[:-1]:
        worker.tell(again=True)
    time.sleep(late_ms / 1e3)
    workers[-1].tell(again=True)
    lines = []
    for worker in workers:
        line = worker.next_line(_PATIENCE_S)
        if line is None:
            raise ProcessError(
                f"{worker.name}: ended before it finished; run again, it may have been stopped"
            )
        lines.append(line)
    return lines[-1]["seconds"], sum(line["wrong"] for line in lines)


def _cpu_s(network: UdpNetwork) -> dict[str, float]:
    """Return the processor seconds of the network's processes so far, by name."""
    return {name: _of_process(pid) for name, pid in network.processes.items()}


def _of_process(pid: int) -> float:
    """Return the processor seconds of all threads of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
