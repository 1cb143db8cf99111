"""One level of switches against two.

Four workers sum words over loopback UDP: below one switch, or in two racks of two below a spine. The server
is at the spine. Ports send at most `mbit` Mbit/s ("-": as fast as the machine), those between switches at
most `trunk` times that: with two workers a rack, 1 is an oversubscription of 2, and 0.5 of 4. The last
worker begins each sum `late_ms` milliseconds after the others; times count from then. Processor time is
that of the switch and server processes.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from statistics import median

from benchmarks import Experiment, Plot, Size, Value
from benchmarks.summing_workers import WARM_UPS, ended, one_sum, started
from peelsum.bench.devices import cpu_s
from peelsum.topology.description import Topology, star, switch_port, two_racks
from peelsum.topology.network import UdpNetwork
from peelsum.transport.seats import SEAT

_SUMS = 10


def measure(
    seed: int, levels: int, mbit: float | None, trunk: float, late_ms: float, workers: int, elements: int
) -> dict[str, Value]:
    """Sum over one switch, or over two racks and a spine. Raises TopologyError."""
    topology = topology_of(levels, workers, mbit, trunk)
    assert topology.job is not None
    with UdpNetwork(topology) as network, ExitStack() as stack:
        seats = [json.loads(network.places[host].environment[SEAT]) for host in topology.job.workers]
        children = started(stack, seats, elements=elements, seed=seed)
        sums = [one_sum(children, late_ms / 1e3) for _ in range(WARM_UPS)]
        before = {name: cpu_s(pid) for name, pid in network.processes.items()}
        sums += [one_sum(children, late_ms / 1e3) for _ in range(_SUMS)]
        spent = {name: 1e3 * (cpu_s(pid) - before[name]) / _SUMS for name, pid in network.processes.items()}
        ended(children)
    return {
        "step_ms": 1e3 * median(lines[-1]["seconds"] for lines in sums[WARM_UPS:]),
        "switch_cpu_ms": sum(spent[name] for name in topology.switches),
        "server_cpu_ms": spent["server"],
        "wrong": sum(line["wrong"] for lines in sums for line in lines),
    }


def topology_of(levels: int, workers: int, mbit: float | None, trunk: float) -> Topology:
    """Return the network's description; links between switches have `trunk` times the rate of the others."""
    plain = star(workers) if levels == 1 else two_racks(workers // 2)
    between = [all(switch_port(end) is not None for end in link.ends) for link in plain.links]
    rates = [mbit and mbit * (trunk if of_switches else 1.0) for of_switches in between]
    links = [
        link.model_copy(update={"rate_mbit": rate}) for link, rate in zip(plain.links, rates, strict=True)
    ]
    return plain.model_copy(update={"links": tuple(links)})


LATE, ONE, TWO = {"levels": (1, 2), "mbit": None}, {"levels": 1}, {"levels": 2, "trunk": (1.0, 0.5)}
EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "step_ms": "milliseconds from the last worker's start until it has the sum, median of ten",
        "switch_cpu_ms": "processor time of all switches per sum, ms",
        "server_cpu_ms": "processor time of the server per sum, ms",
        "wrong": "words that differ from an independent sum",
    },
    defaults={"mbit": 100.0, "trunk": 1.0, "late_ms": 0.0, "workers": 4, "elements": 2**18},
    sizes={
        "quick": Size([LATE], 2),
        "usual": Size([{**LATE, "late_ms": (0.0, 50.0)}, ONE, TWO], 3),
        "full": Size(
            [
                {**LATE, "late_ms": (0.0, 10.0, 50.0, 200.0), "elements": 2**20},
                *({**part, "mbit": 400.0, "elements": 2**20} for part in (ONE, TWO)),
            ],
            7,
        ),
    },
    plots=[
        Plot(
            "step_ms",
            x="levels trunk",
            y="step_ms",
            where={"mbit": 100.0},
            kind="bars",
            finding="""Two levels of switches take as long as one, {@2, 1.0:.0f} and {@1, 1.0:.0f} ms; trunks
                of half a host's rate take {@2, 0.5:.0f} ms""",
            setting="Four worker processes sum 1 MiB over loopback, with ports of 100 Mbit/s. Measured.",
            ylabel="Time of a sum (ms)",
            names={
                "1, 1.0": "one switch",
                "2, 1.0": "two racks, trunks of a host's rate",
                "2, 0.5": "two racks, trunks of half a host's rate",
            },
            height=1.6,
        )
    ],
)
