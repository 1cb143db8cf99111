"""The rows of the benches of the simulator: one allreduce each, in virtual time or by formula."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from peelsum.allreduce import Settings
from peelsum.allreduce.costs import Seen, candidates
from peelsum.bench.simulation.sparse import LANES, lhc_words, omnireduce
from peelsum.simulation import Job, NetworkSection, Scenario, TimersSection, simulate
from peelsum.simulation.collectives import COLLECTIVES
from peelsum.simulation.cost_model import (
    CALIBRATION,
    MOST_IN_SWITCHES,
    estimate,
    fitted,
    parts,
)
from peelsum.simulation.flows import run_collective
from peelsum.simulation.slot_model import run_protocol
from peelsum.simulation.slot_protocols import ATP_SLOTS, PROTOCOLS

#: Timers for round trips of microseconds, in place of those for a host's system calls.
QUICK = TimersSection(
    first_answer=2e-3, resend_least=1e-4, resend_most=5e-3, need=5e-4, need_most=2e-2, reply_gap=5e-5
)
#: What the scale rows compare.
COMPARED = ("peelsum", "switchml", "ring", "binomial", "parameter_server", "sharded_server")


@dataclass(frozen=True)
class Row:
    """One allreduce."""

    algorithm: str
    """A collective, a slot protocol or "peelsum"."""
    level: str
    """Either "packet" or "formula"."""
    workers: int
    """Number of workers."""
    racks: int
    """Number of racks; 1 is one switch."""
    elements: int
    """32-bit words of the sum."""
    gbps: float
    """Rate of a host's link."""
    loss: float
    """Probability that a link loses a packet."""
    slots: int
    """Slots of a switch."""
    jobs: int
    """Jobs at once, each with so many workers."""
    seconds: float
    """Simulated seconds of the slowest job."""
    goodput_gbps: float
    """Gigabits of a worker's words summed per second, in the slowest job."""
    in_switch: float | None
    """Share of chunks that switches summed, over jobs; None without switches that sum."""
    resends: int
    """Packets sent again."""
    octets: int
    """Bytes on all links; 0 by formula."""
    wrong: int
    """Wrong sums."""
    timers: str = "default"
    """Either "default" or "quick", see `QUICK`."""
    density: float = 1.0
    """Share of elements that are non-zero at one worker, anywhere."""
    words: int = 0
    """Words that the network sums; of "omnireduce" and "all_gather", what a worker sends. 0: `elements`."""
    wall_s: float = field(compare=False, default=0.0)
    """Seconds that it took."""


def scenario_of(
    workers: int,
    *,
    elements: int = 1 << 20,
    gbps: float = 100.0,
    loss: float = 0.0,
    quick: bool = True,
    one_switch: bool = False,
) -> Scenario:
    """Return a scenario of one job, in as few racks of 32 as hold it."""
    racks = 1 if one_switch else max(1, -(-workers // 32))
    job = Job(workers=workers, elements=elements, timers=QUICK if quick else TimersSection())
    return Scenario(network=NetworkSection(racks=racks, gbps=gbps, loss=loss), jobs=(job,))


def measured(scenario: Scenario, algorithm: str) -> Row:
    """Simulate one allreduce packet by packet. Raises SimulationError if the algorithm is unknown."""
    if algorithm == "peelsum":
        return _peelsum(scenario)
    if algorithm in PROTOCOLS:
        found = run_protocol(scenario, algorithm, PROTOCOLS[algorithm])
        return _row(scenario, algorithm, found.seconds, found.in_switch, found.resends, found)
    flow = run_collective(scenario, algorithm)
    return _row(scenario, algorithm, flow.seconds, None, flow.resends, flow)


def _row(
    scenario: Scenario, algorithm: str, seconds: float, in_switch: float | None, resends: int, found: object
) -> Row:
    network, job = scenario.network, scenario.jobs[0]
    return Row(
        algorithm=algorithm,
        level="packet",
        workers=job.workers,
        racks=network.racks,
        elements=job.elements,
        gbps=network.gbps,
        loss=network.loss,
        slots=scenario.slots,
        jobs=len(scenario.jobs),
        seconds=seconds,
        goodput_gbps=32 * job.elements / seconds / 1e9,
        in_switch=in_switch,
        resends=resends,
        octets=getattr(found, "octets", 0),
        wrong=getattr(found, "wrong", 0),
        timers="quick" if job.timers == QUICK else "default",
        wall_s=round(getattr(found, "wall_s", 0.0), 2),
    )


def _peelsum(scenario: Scenario) -> Row:
    started = time.perf_counter()
    report = simulate(scenario)
    slowest = max(report.jobs, key=lambda row: row.seconds)
    share = sum(row.in_switch for row in report.jobs) / len(report.jobs)
    row = _row(scenario, "peelsum", slowest.seconds, share, sum(one.resends for one in report.jobs), report)
    wrong, wall_s = sum(one.wrong for one in report.jobs), round(time.perf_counter() - started, 2)
    return replace(row, wrong=wrong, wall_s=wall_s)


def scale_rows(
    packet: Sequence[int],
    formula: Sequence[int],
    algorithms: Sequence[str] = COMPARED,
) -> Iterator[Row]:
    """Yield time against the number of workers: packet by packet, then by formula."""
    for workers in packet:
        for algorithm in algorithms:
            # The models of slot protocols have one switch.
            if algorithm not in PROTOCOLS or workers <= 32:
                yield measured(scenario_of(workers), algorithm)
    for workers in formula:
        for algorithm in algorithms:
            if workers <= MOST_IN_SWITCHES or algorithm in COLLECTIVES:
                yield by_formula(workers, algorithm)


def by_formula(workers: int, algorithm: str, elements: int = 1 << 20) -> Row:
    """Return the row of a formula. More than 1,024 workers are in racks of as many as 32 racks need."""
    racks = min(max(1, -(-workers // 32)), 32)
    job = Job.model_construct(workers=workers, elements=elements)
    scenario = Scenario.model_construct(network=NetworkSection(racks=racks), jobs=(job,))
    seconds = estimate(scenario, algorithm)
    row = _row(scenario, algorithm, seconds, None, 0, None)
    return replace(row, level="formula")


def loss_rows(
    losses: Sequence[float],
    algorithms: Sequence[str] = ("peelsum", "switchml", "atp", "ring"),
    workers: int = 8,
) -> Iterator[Row]:
    """Yield goodput against loss on every link; peelsum also with its default timers, ATP with its slots."""
    for loss in losses:
        for algorithm in algorithms:
            scenario = scenario_of(workers, loss=loss)
            yield measured(_with_slots_of_atp(scenario) if algorithm == "atp" else scenario, algorithm)
        yield measured(scenario_of(workers, loss=loss, quick=False), "peelsum")


def density_rows(densities: Sequence[float], workers: int, elements: int) -> Iterator[Row]:
    """Yield the network's time of sparse sums by encoding; no time of encoding or decoding is in it.

    peelsum's words are those of its planner's smallest form. LHC's are those of its program's layout, and of
    the best that its paper allows ("lhc_best"), in the smallest table that recovers everything. OmniReduce
    sends blocks of 256 elements, with the fastest number of STREAMS. all_gather sends indices and values.
    """
    shortest = measured(scenario_of(workers, elements=1), "peelsum")
    for density in densities:
        random = np.random.default_rng(round(density * 1e6))
        supports = random.random((workers, elements), np.float32) < density
        union = np.flatnonzero(supports.any(0))
        seen = Seen.uniform(elements, len(union) / elements)
        best = min(candidates(elements, seen, Settings()), key=lambda one: one.words)
        lhc, lhc_best = (lhc_words(way, union, elements) for way in ("lhc", "lhc_best"))
        mine = int(supports.sum(1).max())
        for algorithm, runs, words in (
            ("peelsum", "peelsum", math.ceil(best.words)),
            ("lhc", "peelsum", lhc.words if lhc else elements),
            ("lhc_best", "peelsum", lhc_best.words if lhc_best else elements),
            ("dense", "peelsum", elements),
            ("ring", "ring", elements),
            ("all_gather", "all_gather", 2 * mine),
        ):
            row = measured(scenario_of(workers, elements=words), runs)
            if algorithm == "peelsum":
                # Each exchange before the last waits for its own results.
                row = replace(row, seconds=row.seconds + (best.exchanges - 1) * shortest.seconds)
            yield _sparse(row, algorithm, elements, density, words)
        values = random.integers(1, 1 << 32, (workers, elements), np.uint32) * supports
        found = omnireduce(scenario_of(workers, elements=elements), values)
        row = _row(
            scenario_of(workers, elements=elements), "omnireduce", found.seconds, found.in_switch, 0, found
        )
        blocks = values.reshape(workers, -1, LANES).any(2)
        yield _sparse(row, "omnireduce", elements, density, int(blocks.sum(1).max()) * LANES)


def _sparse(row: Row, algorithm: str, elements: int, density: float, words: int) -> Row:
    return replace(
        row,
        algorithm=algorithm,
        elements=elements,
        goodput_gbps=32 * elements / row.seconds / 1e9,
        density=density,
        words=words,
    )


def slots_rows(slots: int, jobs: int) -> Iterator[Row]:
    """Yield the share summed in the switch against its slots, for a window of 8,192 chunks.

    The links are long (15 us each) and chunks short (8 lanes), so that many chunks are under way. The models
    have one job. The slots of ATP's paper are for ATP alone.
    """
    if slots == ATP_SLOTS:
        yield measured(_with_slots_of_atp(_long_links(1 << 14, 1)), "atp")
        return
    scenario = _long_links(slots, jobs)
    for algorithm in ("peelsum", *(("atp", "switchml") if jobs == 1 else ())):
        yield measured(scenario, algorithm)


def _long_links(slots: int, jobs: int) -> Scenario:
    window = 8192
    job = Job(workers=2, elements=8 * 3 * window, window=window, initial_window=window, timers=QUICK)
    network = NetworkSection(delay_us=15.0, queue=1 << 17, mark_from=1 << 17)
    return Scenario(lanes=8, slots=slots, network=network, jobs=(job,) * jobs)


def _with_slots_of_atp(scenario: Scenario) -> Scenario:
    """Return the scenario with the published slots of ATP's switch, which are not a power of two as ours."""
    return scenario.model_copy(update={"slots": ATP_SLOTS})


@dataclass(frozen=True)
class Check:
    """One formula against the packet level."""

    algorithm: str
    """The algorithm."""
    workers: int
    """Number of workers."""
    elements: int
    """Words of the sum."""
    gbps: float
    """Rate of a host's link."""
    packet_s: float
    """Seconds at the packet level."""
    formula_s: float
    """Seconds by formula."""
    error: float
    """(formula - packet) / packet."""
    fitted: bool
    """Whether this case was among those that the factors were fitted to."""


Cases = Sequence[tuple[int, int, float]]
#: Cases for fitting: workers, elements, Gbit/s; and others for checking.
FITTED = ((4, 1 << 20, 100.0), (8, 1 << 18, 100.0), (16, 1 << 20, 100.0), (32, 1 << 18, 100.0))
CHECKED = (
    (4, 1 << 18, 400.0),
    (6, 1 << 19, 100.0),
    (12, 1 << 20, 25.0),
    (24, 1 << 19, 100.0),
    (64, 1 << 18, 100.0),
)


def calibrated(algorithm: str) -> dict[str, float]:
    """Return factors fitted to packet-level simulations of the FITTED cases."""
    cases = [scenario_of(w, elements=n, gbps=g) for w, n, g in FITTED]
    found = fitted([(parts(one, algorithm), measured(one, algorithm).seconds) for one in cases])
    return {"transfer": found.transfer, "latency": found.latency}


def check_rows(algorithm: str, kinds: Iterable[tuple[bool, Cases]]) -> Iterator[Check]:
    """Yield a formula beside the packet level, on cases that it was fitted to and on others."""
    for fit, cases in kinds:
        for workers, elements, gbps in cases:
            scenario = scenario_of(workers, elements=elements, gbps=gbps)
            if algorithm in PROTOCOLS and workers > 32:
                continue
            if algorithm == "halving_doubling" and workers & (workers - 1):
                continue
            packet_s = measured(scenario, algorithm).seconds
            formula_s = CALIBRATION[algorithm].seconds(parts(scenario, algorithm))
            error = (formula_s - packet_s) / packet_s
            yield Check(algorithm, workers, elements, gbps, packet_s, formula_s, error, fit)
