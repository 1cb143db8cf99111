"""The time of an allreduce by formula, for thousands of workers: `peelsum.flexible`'s costs, calibrated.

A time has two parts: words at the links' rate, and messages that wait for each other. Each algorithm has two
factors, fitted to packet-level simulations of 4 to 32 workers (`peelsum bench simulation_check`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from peelsum.flexible.collectives import LinkModel, SwitchPath, rounds
from peelsum.simulation.scenario import Scenario
from peelsum.simulation.simulation import frame_bytes
from peelsum.simulation.trains import SimulationError
from peelsum.wire import MAX_WORKERS

#: Most workers of one job: 32 racks of 32.
MOST_IN_SWITCHES = MAX_WORKERS * MAX_WORKERS


@dataclass(frozen=True)
class Parts:
    """The two parts of a time, in seconds."""

    transfer_s: float
    """Words at the rate of the busiest link."""
    latency_s: float
    """Messages that wait for each other."""


@dataclass(frozen=True)
class Calibration:
    """Factors of the two parts."""

    transfer: float
    """Factor of `Parts.transfer_s`."""
    latency: float
    """Factor of `Parts.latency_s`."""

    def seconds(self, parts: Parts) -> float:
        """Return the time."""
        return self.transfer * parts.transfer_s + self.latency * parts.latency_s


#: As `peelsum bench simulation_check` printed them; docs/reference/simulation.md has the errors.
CALIBRATION: dict[str, Calibration] = {
    "peelsum": Calibration(transfer=1.0, latency=0.98),
    "switchml": Calibration(transfer=1.0, latency=0.96),
    "ring": Calibration(transfer=1.015, latency=0.946),
    "halving_doubling": Calibration(transfer=1.015, latency=0.946),
    "binomial": Calibration(transfer=1.28, latency=1.0),
    "all_gather": Calibration(transfer=1.014, latency=0.889),
    "parameter_server": Calibration(transfer=1.132, latency=1.0),
    "sharded_server": Calibration(transfer=1.014, latency=1.303),
}


def parts(scenario: Scenario, algorithm: str) -> Parts:
    """Return the uncalibrated parts for the scenario's first job, without loss and oversubscription.

    Raises SimulationError for an unknown algorithm, or if "peelsum" has more than 1,024 workers.
    """
    if algorithm not in _PARTS:
        raise SimulationError(f"algorithm: {algorithm!r} is unknown; use {', '.join(_PARTS)}")
    return _PARTS[algorithm](_Setting.of(scenario))


def estimate(scenario: Scenario, algorithm: str) -> float:
    """Return the seconds that an algorithm takes. Raises SimulationError as `parts` does."""
    return CALIBRATION[algorithm].seconds(parts(scenario, algorithm))


def fitted(measured: Sequence[tuple[Parts, float]]) -> Calibration:
    """Return the factors with the least squares of relative errors, for parts and measured seconds."""
    rows = np.array([(one.transfer_s / s, one.latency_s / s) for one, s in measured])
    (transfer, latency), *_ = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)
    if latency < 0:
        # Too little of the time is latency to fit it.
        latency = 1.0
        transfer = rows[:, 0] @ (1 - rows[:, 1]) / (rows[:, 0] @ rows[:, 0])
    return Calibration(round(float(transfer), 3), round(float(latency), 3))


@dataclass(frozen=True)
class _Setting:
    workers: int
    racks: int
    words: int
    words_s: float
    """Seconds that the words take at a link's rate, in whole frames."""
    hop_s: float
    """Seconds of a frame on one link."""
    link: LinkModel
    path: SwitchPath

    @classmethod
    def of(cls, scenario: Scenario) -> _Setting:
        network, job = scenario.network, scenario.jobs[0]
        frame_s = 8e-9 * frame_bytes(scenario.lanes) / network.gbps
        hop_s = frame_s + network.delay_us * 1e-6
        # Worker, switch, server, and back; a spine adds a link each way.
        hops = 4 if network.racks == 1 else 6
        window = min(job.window, scenario.slots // 2)
        path = SwitchPath(lanes=scenario.lanes, window=window, slots=scenario.slots, hops=hops)
        words_s = frame_s * job.elements / scenario.lanes
        return cls(
            job.workers, network.racks, job.elements, words_s, hop_s, LinkModel(hop_s, network.gbps), path
        )

    @property
    def far(self) -> int:
        """Links between two hosts that are farthest apart."""
        return 2 if self.racks == 1 else 4


def _peelsum(at: _Setting) -> Parts:
    if at.workers > MOST_IN_SWITCHES:
        raise SimulationError(
            f"workers: {at.workers}: two levels of switches take {MOST_IN_SWITCHES}; use that or fewer"
        )
    network = at.path.network(at.link)
    return Parts(network.seconds(at.words, 0), network.seconds(0, 1))


def _switchml(at: _Setting) -> Parts:
    # The switch returns the results itself.
    network = replace(at.path, hops=2).network(at.link)
    return Parts(network.seconds(at.words, 0), network.seconds(0, 1))


def _ring(at: _Setting) -> Parts:
    # A partial sum goes round the ring twice; one hop per rack leads to another rack.
    tour = 2 * (at.workers - at.racks) + at.far * at.racks
    share = 2 * (at.workers - 1) / at.workers
    return Parts(share * at.words_s, share * tour * at.hop_s)


def _halving_doubling(at: _Setting) -> Parts:
    share = 2 * (at.workers - 1) / at.workers
    return Parts(share * at.words_s, 2 * rounds(at.workers) * at.far * at.hop_s)


def _binomial(at: _Setting) -> Parts:
    # The root receives from as many children as there are levels, and pieces pass the levels twice.
    levels = rounds(at.workers)
    return Parts(levels * (1 + 2 / 16) * at.words_s, 2 * levels * at.far * at.hop_s)


def _all_gather(at: _Setting) -> Parts:
    tour = 2 * (at.workers - at.racks) + at.far * at.racks
    return Parts((at.workers - 1) * at.words_s, tour * at.hop_s)


def _parameter_server(at: _Setting) -> Parts:
    # The last piece comes back to all workers after the last words have come in.
    return Parts(at.workers * (1 + 1 / 16) * at.words_s, 2 * at.far * at.hop_s)


def _sharded_server(at: _Setting) -> Parts:
    share = 2 * (at.workers - 1) / at.workers
    return Parts(share * at.words_s, 2 * at.far * at.hop_s)


_PARTS: dict[str, Callable[[_Setting], Parts]] = {
    "peelsum": _peelsum,
    "switchml": _switchml,
    "ring": _ring,
    "halving_doubling": _halving_doubling,
    "binomial": _binomial,
    "all_gather": _all_gather,
    "parameter_server": _parameter_server,
    "sharded_server": _sharded_server,
}
#: The algorithms that have a formula.
ALGORITHMS = tuple(_PARTS)
