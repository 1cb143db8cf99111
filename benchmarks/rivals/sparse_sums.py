"""Figures of one simulated allreduce, in virtual time or by formula; and of a sparse sum by every way.

The words of sparse sums are real: every worker has a float32 tensor, and every sum is compared bit for bit
with one computed by plain NumPy in 64 bits. The network's time is simulated packet by packet, the codec's is
processor time of one worker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.flows import run_collective
from benchmarks.rivals.lhc import (
    BATCHES,
    FewestWords,
    fewest_words,
    lhc_step,
    lhc_variants,
    smallest_lhc,
)
from benchmarks.rivals.program_bench import RivalRow, run_protocol
from benchmarks.rivals.slot_protocols import PROTOCOLS
from peelsum.allreduce import Allreduce, Form, LocalSummation
from peelsum.bench.allreduce import settings_of, shared_tensor, wrong_elements
from peelsum.bench.codec.timing import TimedDevice, positions
from peelsum.bench.point import Support
from peelsum.codec import fixed_point
from peelsum.simulation import Job, NetworkSection, Scenario, TimersSection, simulate
from peelsum.summation import Part, Words

#: Timers for round trips of microseconds, in place of those for a host's system calls.
QUICK = TimersSection(
    first_answer=2e-3, resend_least=1e-4, resend_most=5e-3, need=5e-4, need_most=2e-2, reply_gap=1e-5
)


def scenario_of(
    workers: int,
    *,
    elements: int = 1 << 20,
    gbps: float = 100.0,
    loss: float = 0.0,
    timers: TimersSection = QUICK,
    one_switch: bool = False,
) -> Scenario:
    """Return a scenario of one job, in as few racks of 32 as hold it."""
    racks = 1 if one_switch else max(1, -(-workers // 32))
    job = Job(workers=workers, elements=elements, timers=timers)
    return Scenario(network=NetworkSection(racks=racks, gbps=gbps, loss=loss), jobs=(job,))


def measured(scenario: Scenario, algorithm: str) -> dict[str, Any]:
    """Simulate one allreduce packet by packet. Raises SimulationError if the algorithm is unknown."""
    if algorithm == "peelsum":
        report = simulate(scenario)
        jobs, seconds = report.jobs, max(job.seconds for job in report.jobs)
        counts = {name: sum(getattr(job, name) for job in jobs) for name in ("resends", "wrong")}
        counts |= {"in_switch": sum(job.in_switch for job in jobs) / len(jobs), "octets": report.octets}
    else:
        protocol = PROTOCOLS.get(algorithm)
        row = run_protocol(scenario, algorithm, protocol) if protocol else run_collective(scenario, algorithm)
        seconds = row.seconds
        counts = {name: getattr(row, name) for name in ("in_switch", "resends", "octets", "wrong")}
    return {**counts, "seconds": seconds, "goodput_gbps": goodput_gbps(scenario, seconds)}


def goodput_gbps(scenario: Scenario, seconds: float) -> float:
    """Return the gigabits of a worker's words that a sum of so many seconds adds up per second."""
    return 32 * scenario.jobs[0].elements / seconds / 1e9


Way = Literal[
    "dense", "compact", "sketch", "lhc", "lhc_best", "lhc_fastest", "switchml", "atp", "omnireduce", "ring"
]
#: Streams of blocks that OmniReduce is tried with. A first block is sent even if it is zero, so that many
#: streams waste words, and few do not fill the links.
STREAMS = (16, 64, 256)
#: Elements of a block, and words of a packet.
LANES = 256
_TIMED = 3
_SMALLEST = np.finfo(np.float32).smallest_subnormal

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Tensors:
    """What is summed: `workers` tensors of `elements` float32 that share a support."""

    elements: int
    """Elements of a tensor."""
    density: float
    """Share of elements that are non-zero on some worker; of rows, with `support` "rows"."""
    support: Support = "uniform"
    """Where they are; see `peelsum.bench.codec.timing.positions`."""
    workers: int = 4
    """Number of workers."""
    seed: int = 0
    """Determines positions and values."""

    def each(self) -> list[Floats]:
        """Return every worker's float32[elements]: half of the union, at random, and its own share."""
        shared = np.random.default_rng([self.seed, self.elements])
        union = positions(self.support, self.elements, self.density, shared)
        return [
            shared_tensor(union, self.elements, worker, self.workers, self.seed)
            for worker in range(self.workers)
        ]


@dataclass(frozen=True)
class SparseSum:
    """What one sum takes."""

    network_s: float
    """Simulated seconds."""
    codec_s: float
    """Processor seconds in which one worker encodes and decodes."""
    words: int
    """Words that a worker sends, the mean over workers; headers excluded."""
    wrong: int
    """Elements, chunks or parts of a simulated sum with a wrong bit, over all workers."""


def links(gbps: float, workers: int, elements: int = 1) -> Scenario:
    """Return one switch with links of a rate; their delay is 50 us below 1 Gbit/s, else 1 us."""
    network = NetworkSection(gbps=gbps, delay_us=50.0 if gbps < 1 else 1.0)
    return Scenario(lanes=LANES, network=network, jobs=(Job(workers=workers, elements=elements),))


def sparse_sum(way: Way, tensors: Tensors, gbps: float) -> SparseSum:
    """Simulate the sum of the tensors by one way; return its seconds, words and number of wrong elements.

    Raises SimulationError if the simulation fails.
    """
    scenario = links(gbps, tensors.workers, tensors.elements)
    if way == "ring":
        # A ring of floats needs no codec. Its order of transfers is checked, not its rounding.
        row = run_collective(scenario, "ring")
        moved = 2 * (tensors.workers - 1) * tensors.elements // tensors.workers
        return SparseSum(row.seconds, 0.0, moved, row.wrong)
    if way in ("switchml", "atp"):
        # Either sends every element as an integer; its codec is timed as peelsum's dense codec.
        row = run_protocol(scenario, way, PROTOCOLS[way])
        codec_s = _codec_s("dense", np.sum(tensors.each(), axis=0))
        return SparseSum(row.seconds, codec_s, tensors.elements, row.wrong)
    if way == "omnireduce":
        return _omnireduce(tensors, scenario)
    if way == "lhc_fastest":
        # What a small table leaves over is one more exchange.
        sums = (_exchanged(words, codec_s, tensors, gbps) for codec_s, words in _timed_lhc_layouts(tensors))
        return min(sums, key=lambda table: table.network_s + table.codec_s)
    return (
        _lhc(way, tensors, gbps) if way in ("lhc", "lhc_best") else _peelsum(cast(Form, way), tensors, gbps)
    )


@lru_cache(maxsize=64)
def _peelsum(way: Form, tensors: Tensors, gbps: float) -> SparseSum:
    """Sum in memory, and simulate each exchange; an exchange waits for the results of the one before."""
    each = tensors.each()
    # All workers send as many words in each exchange.
    exchanges: list[list[int]] = [[] for _ in each]

    class Recorded(LocalSummation):
        """A sum in memory that remembers the words of each exchange."""

        def sum_words(self, parts: Sequence[Part]) -> list[Words]:
            exchanges[self.worker_id].append(sum(part.words.size for part in parts))
            return super().sum_words(parts)

    def work(seat: LocalSummation) -> int:
        reduce = Allreduce(seat, **settings_of(way), seed=tensors.seed)
        for _ in range(2):  # the second step knows the union
            exchanges[seat.worker_id].clear()
            step = reduce.sum({"gradient": each[seat.worker_id]})
        return wrong_elements(step["gradient"], each)

    with ThreadPoolExecutor(tensors.workers) as pool:
        wrong = sum(pool.map(work, Recorded.group(tensors.workers, lanes=LANES)))
    codec_s = _codec_s(way, np.sum(each, axis=0))
    return _exchanged(exchanges[0], codec_s, tensors, gbps, wrong)


def _exchanged(
    exchanges: Sequence[int], codec_s: float, tensors: Tensors, gbps: float, wrong: int = 0
) -> SparseSum:
    """Simulate exchanges of so many words that wait for each other."""
    sums = [_network(gbps, tensors.workers, words) for words in exchanges]
    wrong += sum(errors for _, errors in sums)
    return SparseSum(sum(seconds for seconds, _ in sums), codec_s, sum(exchanges), wrong)


@lru_cache(maxsize=256)
def _network(gbps: float, workers: int, words: int) -> tuple[float, int]:
    """Return the seconds of a sum of so many words through the switch, and wrong sums."""
    (row,) = simulate(links(gbps, workers, words)).jobs
    return row.seconds, row.wrong


def _field(values: Floats) -> int:
    """Return the largest exponent field."""
    return int((np.abs(values).view(np.uint32) >> 23).max(initial=0))


def _codec_s(way: Form, union: Floats) -> float:
    """Return a worker's processor seconds of encoding and decoding a tensor with the union's support."""
    (alone,) = LocalSummation.group(1, lanes=LANES)
    reduce = Allreduce(alone, **settings_of(way), clock=time.process_time)
    reduce.sum({"gradient": union})  # the second step knows the union
    steps = [reduce.sum({"gradient": union}) for _ in range(_TIMED)]
    return min(step.encode_s + step.decode_s for step in steps)


def _lhc(way: Way, tensors: Tensors, gbps: float) -> SparseSum:
    """Simulate the words that recover everything, in one exchange: LHC's table needs no union.

    "lhc" is the layout of LHC's program, "lhc_best" what its paper allows at best. Building and testing a
    Bloom filter does not count as codec time; its false positives do.
    """
    union = np.sum(tensors.each(), axis=0)
    table = lhc_words(way, np.flatnonzero(union), tensors.elements)
    if table is None:
        return _peelsum("dense", tensors, gbps)
    candidates = union.copy()
    # A false positive is a candidate whose integer is 0: so is the smallest float.
    candidates[table.candidates] = np.where(union[table.candidates], union[table.candidates], _SMALLEST)
    fixed = fixed_point(_field(union), 1)
    device = replace(TimedDevice.of("cpu"), clock=time.process_time)
    codec_s = min(lhc_step(device, table.layout, candidates, fixed).codec_s for _ in range(_TIMED))
    return _exchanged([table.words], codec_s, tensors, gbps)


@lru_cache(maxsize=8)
def _timed_lhc_layouts(tensors: Tensors) -> list[tuple[float, list[int]]]:
    """Return, for each LHC layout to try, the codec's least seconds and the words of its exchanges.

    Index and table are one exchange; what peeling leaves over, if anything, is another. The layouts are those
    of `lhc_variants`, and the smallest layout of each batch size in BATCHES.
    """
    union = np.sum(tensors.each(), axis=0)
    where, fixed = np.flatnonzero(union), fixed_point(_field(union), 1)
    device = replace(TimedDevice.of("cpu"), clock=time.process_time)
    smallest = [smallest_lhc(where, tensors.elements, lanes=lanes, index_bits=1) for lanes in BATCHES]
    layouts = [*lhc_variants(where.size, smallest[-1]), *filter(None, smallest)]
    timed = []
    for layout in layouts:
        runs = [lhc_step(device, layout, union, fixed) for _ in range(_TIMED)]
        unpeeled = runs[0].left_over
        words = [runs[0].words - unpeeled, unpeeled] if unpeeled else [runs[0].words]
        timed.append((min(run.codec_s for run in runs), words))
    return timed


def lhc_words(way: str, union: NDArray[np.int64], elements: int) -> FewestWords | None:
    """Return the words of "lhc", four bits and batches of 1024 lanes, or of "lhc_best"."""
    if way == "lhc_best":
        return fewest_words(union, elements)
    layout = smallest_lhc(union, elements)
    return None if layout is None else FewestWords(layout, layout.words(elements) - layout.cells, union)


def _omnireduce(tensors: Tensors, scenario: Scenario) -> SparseSum:
    """Simulate OmniReduce with the number of streams that is fastest, on quantized words.

    Its codec is peelsum's quantizing and dequantizing of everything, and the search for zero blocks.
    """
    each = tensors.each()
    fixed = fixed_point(max(map(_field, each)), tensors.workers)
    quantized = [np.rint(np.ldexp(values.astype(np.float64), fixed.scale)) for values in each]
    words = np.array(quantized, np.int32).view(np.uint32)
    best = omnireduce(scenario, words)
    blocks = each[0][: tensors.elements // LANES * LANES].reshape(-1, LANES)
    searches = []
    for _ in range(_TIMED):
        started = time.process_time()
        blocks.any(1)
        searches.append(time.process_time() - started)
    codec_s = _codec_s("dense", np.sum(each, axis=0)) + min(searches)
    return SparseSum(best.seconds, codec_s, best.words // tensors.workers, best.wrong)


def omnireduce(scenario: Scenario, words: Words) -> RivalRow:
    """Run OmniReduce for uint32[workers, elements] with each of STREAMS; return the fastest run.

    Its `wrong` is that of all runs. Time-outs are long, because no packet is lost here, and on slow links the
    packets of all streams take longer than the usual time-out.
    """
    protocol, timers = PROTOCOLS["omnireduce"], TimersSection(resend_least=1.0, resend_most=1.0)
    jobs = tuple(job.model_copy(update={"timers": timers}) for job in scenario.jobs)
    scenario = scenario.model_copy(update={"jobs": jobs})
    rows = [
        run_protocol(scenario.model_copy(update={"slots": 2 * streams}), "omnireduce", protocol, [words])
        for streams in STREAMS
    ]
    fastest = min(rows, key=lambda row: row.seconds)
    return replace(fastest, wrong=sum(row.wrong for row in rows))
