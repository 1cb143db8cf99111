"""The time of an allreduce by formula, for thousands of workers: `peelsum.compress`'s costs, calibrated.

A time has two parts: words at the links' rate, and messages that wait for each other. Each algorithm has two
factors, fitted to packet-level simulations of 4 to 32 workers (`python -m benchmarks simulation_check`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from peelsum.compress.costs import LinkModel, SwitchPath, tree_rounds
from peelsum.simulation.scenario import Scenario
from peelsum.simulation.simulation import frame_bytes
from peelsum.simulation.trains import SimulationError
from peelsum.wire import MAX_WORKERS

#: Most workers of one job: 32 racks of 32.
MOST_IN_SWITCHES = MAX_WORKERS * MAX_WORKERS


class Parts(NamedTuple):
    """The two parts of a time, in seconds; or their factors."""

    transfer: float
    """Words at the rate of the busiest link."""
    latency: float
    """Messages that wait for each other."""

    def scaled(self, factors: Parts) -> float:
        """Return the sum of the parts, each times its factor."""
        return self.transfer * factors.transfer + self.latency * factors.latency


#: Factors, as `python -m benchmarks simulation_check` printed them; docs/reference/simulation.md has errors.
CALIBRATION: dict[str, Parts] = {
    "peelsum": Parts(transfer=1.0, latency=0.98),
    "switchml": Parts(transfer=1.0, latency=0.96),
    "ring": Parts(transfer=1.015, latency=0.946),
    "binomial": Parts(transfer=1.28, latency=1.0),
    "all_gather": Parts(transfer=1.014, latency=0.889),
    "sharded_server": Parts(transfer=1.014, latency=1.303),
}
#: The algorithms that have a formula.
ALGORITHMS = tuple(CALIBRATION)


def parts(scenario: Scenario, algorithm: str) -> Parts:
    """Return the uncalibrated parts for the scenario's first job, without loss and oversubscription.

    Raises SimulationError for an unknown algorithm, or if "peelsum" has more than 1,024 workers.
    """
    if algorithm not in CALIBRATION:
        raise SimulationError(f"algorithm: {algorithm!r} is unknown; use {', '.join(CALIBRATION)}")
    network, job = scenario.network, scenario.jobs[0]
    workers, frame_s = job.workers, 8e-9 * frame_bytes(scenario.lanes) / network.gbps
    hop_s, words_s = frame_s + network.delay_us * 1e-6, frame_s * job.elements / scenario.lanes
    if algorithm in ("peelsum", "switchml"):
        return _through_switches(scenario, algorithm, LinkModel(hop_s, network.gbps))
    far = 2 if network.racks == 1 else 4  # links between two hosts that are farthest apart
    levels, share = tree_rounds(workers), 2 * (workers - 1) / workers
    # Round the ring; one hop per rack leads to another rack.
    tour = 2 * (workers - network.racks) + far * network.racks
    times, hops = {
        "ring": (share, share * tour),  # a partial sum goes round twice
        # The root receives from as many children as there are levels, and pieces pass the levels twice.
        "binomial": (levels * (1 + 2 / 16), 2 * levels * far),
        "all_gather": (workers - 1, tour),
        "sharded_server": (share, 2 * far),
    }[algorithm]
    return Parts(times * words_s, hops * hop_s)


def _through_switches(scenario: Scenario, algorithm: str, link: LinkModel) -> Parts:
    network, job = scenario.network, scenario.jobs[0]
    if algorithm == "peelsum" and job.workers > MOST_IN_SWITCHES:
        raise SimulationError(
            f"workers: {job.workers}: two levels of switches take {MOST_IN_SWITCHES}; use that or fewer"
        )
    # Worker, switch, server, and back; a spine adds a link each way. SwitchML's switch returns results.
    hops = 2 if algorithm == "switchml" else 4 if network.racks == 1 else 6
    window = min(job.window, scenario.slots // 2)
    path = SwitchPath(lanes=scenario.lanes, window=window, slots=scenario.slots, hops=hops).network(link)
    return Parts(path.seconds(job.elements, 0), path.seconds(0, 1))


def estimate(scenario: Scenario, algorithm: str) -> float:
    """Return the seconds that an algorithm takes. Raises SimulationError as `parts` does."""
    return parts(scenario, algorithm).scaled(CALIBRATION[algorithm])


def fitted(measured: Sequence[tuple[Parts, float]]) -> Parts:
    """Return the factors with the least squares of relative errors, for parts and measured seconds."""
    rows = np.array([(part.transfer / s, part.latency / s) for part, s in measured])
    (transfer, latency), *_ = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)
    if latency < 0:
        # Too little of the time is latency to fit it.
        latency = 1.0
        transfer = rows[:, 0] @ (1 - rows[:, 1]) / (rows[:, 0] @ rows[:, 0])
    return Parts(round(float(transfer), 3), round(float(latency), 3))
