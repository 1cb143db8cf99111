"""The time of a steady step in each form, over links of a rate and a round trip, simulated.

A steady step is the third or a later one: the tensors' non-zeros are drawn again in every step, with the same
density. One worker's words and processor time are measured in memory, and each of its exchanges is simulated
packet by packet.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from peelsum.allreduce import Allreduce, Choice, Form, Settings, TensorPlan
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.costs import Candidate, Seen, candidates
from peelsum.allreduce.history_loops import warm_up
from peelsum.allreduce.plan import FORMS, Layout
from peelsum.bench.allreduce import settings_of, wrong_elements
from peelsum.bench.alone import LANES, Alone
from peelsum.bench.codec import require_memory, taught
from peelsum.bench.point import Point
from peelsum.simulation import Job, NetworkSection, Scenario, simulate

#: Chunks of a worker that may be under way.
WINDOW = 1024
#: Steps that are run, and the first that is timed.
STEPS, STEADY = 5, 2
#: Windows of chunks from which on each further one takes as long as the one before.
_SIMULATED = 4


@dataclass(frozen=True)
class FormTime:
    """The time of a step in one form."""

    form: Form
    predicted_ms: float
    """Milliseconds by the formulas from which an allreduce chooses."""
    ms: float | None = None
    """Milliseconds of a steady step, measured or simulated; None where it was only predicted."""
    codec_ms: float | None = None
    """Of them, milliseconds in the codec. Simulated, it is measured processor time of one worker."""
    wrong: int | None = None
    """Elements of the last step that differ from an independent sum, and wrong simulated sums."""


def ways(elements: int, known: Seen) -> Iterator[Candidate]:
    """Yield all ways to send a tensor: after a header, and together with it."""
    for ahead in (False, True):
        yield from candidates(elements, known, Settings(), ahead=ahead)


def chosen(point: Point, **settings: Any) -> Candidate:
    """Return the way that an allreduce with these settings chooses after steps with this density."""
    chooser = Chooser(network=point.network, **settings)
    tensor = TensorPlan("gradient", (point.elements,), "float32", Choice("dense", scale_block=2**15))
    taught(chooser, Layout([tensor]), point.seen)
    (planned,), ahead = chooser.choose([tensor], Settings())
    found = ways(point.elements, point.seen)
    return next(one for one in found if (one.choice, one.ahead) == (planned.choice, ahead))


def automatic(point: Point) -> Form:
    """Return the form that an allreduce chooses after steps with this density."""
    return chosen(point).choice.form


def predictions(point: Point) -> list[FormTime]:
    """Return the time by formula only of every form that can hold the tensor."""
    found = {form: chosen(point, **settings_of(form)) for form in FORMS}
    possible = ((form, one) for form, one in found.items() if math.isfinite(one.words))
    return [FormTime(form, 1e3 * one.seconds(point.network)) for form, one in possible]


def simulated(point: Point) -> list[FormTime]:
    """Return every form's time: one worker's codec as measured here, and exchanges as simulated.

    The workers' codecs run at the same time, each on a core of its own, and not during an exchange.
    Raises NotEnoughMemoryError if a step does not fit this machine.
    """
    return [_simulated(point, expected) for expected in predictions(point)]


def _simulated(point: Point, expected: FormTime) -> FormTime:
    chunks_each, codec_s, wrong = _in_memory(point, expected.form)
    workers = max(point.workers, 2)
    exchanges = [exchange(point.gbps, point.rtt, workers, chunks) for chunks in chunks_each]
    network_s, wrong_sums = (sum(column) for column in zip(*exchanges, strict=True))
    times = 1e3 * (codec_s + network_s), 1e3 * codec_s
    return FormTime(expected.form, expected.predicted_ms, *times, wrong + int(wrong_sums))


#: Steps in memory, by all that they depend on.
_KNOWN: dict[tuple[object, ...], tuple[tuple[int, ...], float, int]] = {}


def _in_memory(point: Point, form: Form) -> tuple[tuple[int, ...], float, int]:
    """Run one worker's steps, unless known from other links, which decide only on index and exchanges.

    Return the chunks of each exchange of the middle one of the steady steps, as some have a left-over round;
    the least processor seconds of a steady step, of all threads; and the last step's wrong elements.
    """
    way = chosen(point, **settings_of(form))
    known = point.elements, point.density, point.support, point.seed, way.choice, way.ahead
    if known not in _KNOWN:
        require_memory(point.elements, point.density)
        warm_up()
        _KNOWN[known] = _run_in_memory(point, form)
    return _KNOWN[known]


def _run_in_memory(point: Point, form: Form) -> tuple[tuple[int, ...], float, int]:
    backend, times, exchanges = Alone(), [], []
    reduce = Allreduce(backend, **settings_of(form), network=point.network, seed=point.seed)
    for number in range(STEPS):
        (union,) = replace(point, workers=1).tensors(number)
        backend.spent_s, backend.exchanges = 0.0, []
        started = time.process_time()
        step = reduce.sum({"gradient": union})
        times.append(time.process_time() - started - backend.spent_s)
        chunks = (sum(-(-part.words // LANES) for part in parts) for parts in backend.exchanges)
        exchanges.append(tuple(chunks))
    wrong = wrong_elements(step["gradient"], [union])
    steady = sorted(exchanges[STEADY:], key=lambda chunks: (len(chunks), sum(chunks)))
    return steady[len(steady) // 2], min(times[STEADY:]), wrong


@lru_cache(1 << 16)
def exchange(gbps: float, rtt: float, workers: int, chunks: int) -> tuple[float, int]:
    """Return the simulated seconds of an exchange of so many chunks, and wrong sums."""
    if chunks >= (_SIMULATED + 1) * WINDOW:
        # Long exchanges repeat themselves, window by window.
        near = _SIMULATED * WINDOW + chunks % WINDOW
        shorter, longer = (exchange(gbps, rtt, workers, size) for size in (near - WINDOW, near))
        more = (chunks - near) // WINDOW
        return longer[0] + more * (longer[0] - shorter[0]), longer[1]
    job = Job(workers=workers, elements=chunks * LANES, window=WINDOW, initial_window=WINDOW)
    network = NetworkSection(gbps=gbps, delay_us=1e6 * rtt / 4)
    (row,) = simulate(Scenario(lanes=LANES, network=network, jobs=(job,), limit_s=3600.0)).jobs
    return row.seconds, row.wrong
