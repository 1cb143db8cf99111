"""The simulated time of a steady step in each form, over links of a given rate and round-trip time.

A steady step is the third or a later one. Every step has new random non-zeros of the same density. One
worker's words and processor time are measured in memory, and each of its exchanges is simulated packet by
packet.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from peelsum.allreduce import Allreduce, Choice, Form, PlanSettings, TensorPlan
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.costs import CostEstimate, cost_estimates
from peelsum.allreduce.history_loops import warm_up
from peelsum.allreduce.indexes import UnionCounts
from peelsum.allreduce.plan import FORMS, Layout
from peelsum.bench.allreduce import settings_of, wrong_elements
from peelsum.bench.codec.timing import add_to_history, require_memory
from peelsum.bench.point import Point
from peelsum.simulation import Job, NetworkSection, Scenario, simulate
from peelsum.summation import Part, Words

LANES = 256
#: Chunks of a worker that may be outstanding.
WINDOW = 1024
#: Steps that are run, and the first that is timed.
STEPS, STEADY = 5, 2
#: Windows of chunks that are simulated; each further one takes as long as the last of these.
_SIMULATED_WINDOWS = 4


class SentPart(NamedTuple):
    """A part of an exchange."""

    op: str
    """The operation, "add" or "or"."""
    words: int
    """Number of words."""
    checked: bool
    """Whether the part has a check of its sums, such as of a digest."""


class LoopbackSummation:
    """A backend that returns copies of its input, and records its own time and the parts of exchanges."""

    workers, worker_id, lanes = 1, 0, LANES

    def __init__(self) -> None:
        #: Processor seconds of all calls.
        self.spent_s = 0.0
        self.exchanges = list[list[SentPart]]()

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        started = time.process_time()
        self.exchanges.append([SentPart(part.op, part.words.size, part.check is not None) for part in parts])
        sums = [part.words.copy() for part in parts]
        self.spent_s += time.process_time() - started
        for part, result in zip(parts, sums, strict=True):
            if part.check is not None:
                part.check(result)
        return sums


@dataclass(frozen=True)
class FormTime:
    """The time of a step in one form."""

    form: Form
    predicted_ms: float
    """Milliseconds by the formulas from which an allreduce chooses."""
    ms: float | None = None
    """Milliseconds of a steady step, measured or simulated; None if it was only predicted."""
    codec_ms: float | None = None
    """The codec's part of `ms`; in a simulated step, one worker's measured processor time."""
    wrong: int | None = None
    """Elements of the last step that differ from an independent sum, and wrong simulated sums."""


def all_candidates(elements: int, statistics: UnionCounts) -> Iterator[CostEstimate]:
    """Yield all ways to send a tensor, in two rounds and in one."""
    for one_round in (False, True):
        yield from cost_estimates(elements, statistics, PlanSettings(), one_round=one_round)


def best_candidate(point: Point, **settings: Any) -> CostEstimate:
    """Return the candidate that an allreduce with these settings chooses after steps with this density."""
    chooser = Chooser(network=point.network, **settings)
    tensor = TensorPlan("gradient", (point.elements,), "float32", Choice("dense", scale_block=2**15))
    add_to_history(chooser, Layout([tensor]), point.expected_statistics)
    (plan,), one_round = chooser.choose([tensor], PlanSettings())
    ways = all_candidates(point.elements, point.expected_statistics)
    return next(way for way in ways if (way.choice, way.one_round) == (plan.choice, one_round))


def chosen_form(point: Point) -> Form:
    """Return the form that an allreduce chooses after steps with this density."""
    return best_candidate(point).choice.form


def predict_forms(point: Point) -> list[FormTime]:
    """Return the predicted time of every form that can hold the tensor."""
    best = {form: best_candidate(point, **settings_of(form)) for form in FORMS}
    possible = {form: way for form, way in best.items() if math.isfinite(way.words)}
    return [FormTime(form, 1e3 * way.seconds(point.network)) for form, way in possible.items()]


def simulate_forms(point: Point) -> list[FormTime]:
    """Return every form's time: the measured time of one worker's codec, and the simulated one of exchanges.

    The workers' codecs run at the same time, each on a core of its own, and not during an exchange.
    Raises NotEnoughMemoryError if a step does not fit this machine.
    """
    times = []
    for expected in predict_forms(point):
        step, workers = _in_memory(point, expected.form), max(point.workers, 2)
        exchanges = [exchange(point.gbps, point.rtt, workers, chunks) for chunks in step.exchange_chunks]
        network_s, wrong_sums = (sum(column) for column in zip(*exchanges, strict=True))
        ms, codec_ms = 1e3 * (step.codec_s + network_s), 1e3 * step.codec_s
        times.append(replace(expected, ms=ms, codec_ms=codec_ms, wrong=step.wrong + int(wrong_sums)))
    return times


class SteadyStep(NamedTuple):
    """The figures of one worker's steady steps in memory."""

    exchange_chunks: tuple[int, ...]
    """Chunks of each exchange of the median step, because some steps have a left-over round."""
    codec_s: float
    """Least processor seconds of a step, of all threads."""
    wrong: int
    """Wrong elements of the last step."""


#: Results of `_in_memory`, which depend on the links only by the candidate.
_in_memory_cache: dict[tuple[object, ...], SteadyStep] = {}


def _in_memory(point: Point, form: Form) -> SteadyStep:
    """Run STEPS steps of one worker, or return the cached result of the same steps for other links."""
    way = best_candidate(point, **settings_of(form))
    key = point.elements, point.density, point.support, point.seed, way.choice, way.one_round
    if key in _in_memory_cache:
        return _in_memory_cache[key]
    require_memory(point.elements, point.density)
    warm_up()
    backend, times, exchanges = LoopbackSummation(), [], []
    allreduce = Allreduce(backend, **settings_of(form), network=point.network, seed=point.seed)
    for number in range(STEPS):
        (tensor,) = replace(point, workers=1).tensors(number)
        backend.spent_s, backend.exchanges = 0.0, []
        started = time.process_time()
        step = allreduce.sum({"gradient": tensor})
        times.append(time.process_time() - started - backend.spent_s)
        chunks = (sum(-(-part.words // LANES) for part in parts) for parts in backend.exchanges)
        exchanges.append(tuple(chunks))
    wrong = wrong_elements(step["gradient"], [tensor])
    steady = sorted(exchanges[STEADY:], key=lambda chunks: (len(chunks), sum(chunks)))
    _in_memory_cache[key] = SteadyStep(steady[len(steady) // 2], min(times[STEADY:]), wrong)
    return _in_memory_cache[key]


@lru_cache(1 << 16)
def exchange(gbps: float, rtt: float, workers: int, chunks: int) -> tuple[float, int]:
    """Return the simulated seconds of an exchange of `chunks` chunks, and its wrong sums."""
    if chunks >= (_SIMULATED_WINDOWS + 1) * WINDOW:
        # In a long exchange, every further window takes as long as the last one.
        size = _SIMULATED_WINDOWS * WINDOW + chunks % WINDOW
        seconds, wrong = exchange(gbps, rtt, workers, size)
        window_s = seconds - exchange(gbps, rtt, workers, size - WINDOW)[0]
        return seconds + (chunks - size) // WINDOW * window_s, wrong
    job = Job(workers=workers, elements=chunks * LANES, window=WINDOW, initial_window=WINDOW)
    network = NetworkSection(gbps=gbps, delay_us=1e6 * rtt / 4)
    (row,) = simulate(Scenario(lanes=LANES, network=network, jobs=(job,), limit_s=3600.0)).jobs
    return row.seconds, row.wrong
