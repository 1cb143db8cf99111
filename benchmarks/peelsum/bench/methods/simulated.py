"""The cost model against packet-level simulations, in virtual time, of which processors take none.

Run `python -m peelsum.bench.methods.simulated`. The simulated endpoints, server and switch program are the
real ones; ring and all_gather are models of their transports on the same links.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median

from peelsum.bench.simulation.rows import measured
from peelsum.flexible import COLLECTIVES, LinkModel, SwitchPath
from peelsum.simulation import Job, NetworkSection, Scenario
from peelsum.simulation.simulation import frame_bytes
from peelsum.topology import say

#: The collectives, by the simulation's names and the model's.
SIMULATED = {"peelsum": "switch", "ring": "all_reduce_ring", "all_gather": "all_gather"}
#: Packets that may wait at a port, so many that no queue is ever full.
_QUEUE = 1 << 16


@dataclass(frozen=True)
class SimulatedGrid:
    """What to simulate: every combination."""

    workers: tuple[int, ...] = (2, 4, 8)
    gbps: tuple[float, ...] = (0.1, 1.0, 10.0)
    delays_us: tuple[float, ...] = (10.0, 1000.0)
    words: tuple[int, ...] = (1_000, 25_000, 100_000)


@dataclass(frozen=True)
class SimulatedRow:
    """One collective, as predicted and as simulated."""

    collective: str
    workers: int
    gbps: float
    """Rate of every link, in Gbit/s."""
    delay_us: float
    """Delay of every link, of which there are two between workers, in microseconds."""
    words: int
    """32-bit words of every worker."""
    predicted_ms: float
    """By the cost model."""
    simulated_ms: float
    """Until the slowest worker was done."""
    error: float
    """`predicted_ms` over `simulated_ms`, less 1."""
    wrong: int
    """Wrong sums."""


def simulated_rows(grid: SimulatedGrid) -> Iterator[SimulatedRow]:
    """Yield the collectives of every combination."""
    for workers, gbps, delay_us, words in product(grid.workers, grid.gbps, grid.delays_us, grid.words):
        network = NetworkSection(gbps=gbps, delay_us=delay_us, queue=_QUEUE, mark_from=_QUEUE)
        job = Job(workers=workers, elements=words)
        scenario = Scenario(network=network, jobs=(job,))
        frame_s = 8e-9 * frame_bytes(scenario.lanes) / gbps
        link = LinkModel(2 * (delay_us * 1e-6 + frame_s), gbps)
        for algorithm, name in SIMULATED.items():
            row = measured(scenario, algorithm)
            if algorithm == "peelsum":
                model = SwitchPath(scenario.lanes, job.window, scenario.slots).network(link)
            else:
                model = COLLECTIVES[name](link, workers)
            predicted_s = model.seconds(words, 1)
            yield SimulatedRow(
                collective=name,
                workers=workers,
                gbps=gbps,
                delay_us=delay_us,
                words=words,
                predicted_ms=1e3 * predicted_s,
                simulated_ms=1e3 * row.seconds,
                error=predicted_s / row.seconds - 1,
                wrong=row.wrong,
            )


def median_error(rows: list[SimulatedRow], collective: str = "") -> float:
    """Return the median of absolute errors, of one collective or of all."""
    return median(abs(row.error) for row in rows if collective in ("", row.collective))


if __name__ == "__main__":
    found = []
    for one in simulated_rows(SimulatedGrid()):
        say(**asdict(one))
        found.append(one)
    for which in (*SIMULATED.values(), ""):
        say(collective=which or "all", median_error=round(median_error(found, which), 4))
