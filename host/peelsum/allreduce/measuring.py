"""Measure the network and the codec, to make the models from which the costs of forms are computed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, fields, replace
from typing import Any

import numpy as np

from peelsum.allreduce.allreduce import Allreduce
from peelsum.allreduce.costs import SKETCH_CALLS, CodecModel, NetworkModel
from peelsum.allreduce.errors import InvalidRequestError
from peelsum.allreduce.local import LocalSummation
from peelsum.allreduce.plan import Form, agreement_part
from peelsum.codec import MIN_CELLS_PER_CANDIDATE, CodecError, Implementation
from peelsum.codec.layout import WORD_BITS
from peelsum.summation import Part, Summation, gather_by_or

#: Lengths of the long sums, in words. The first that takes _LONGER round trips more than a sum of one word
#: gives the rate; if there is none, the last does.
_LONG, _LONGER = (2**16, 2**19, 2**22), 4
#: How many sums of each length are timed. The shortest time counts.
_SUMS = 5
#: Elements of a small and a large tensor, shares of non-zeros of sparse ones, and steps of each.
_FEW, _MANY, _SPARSE, _SPARSER, _STEPS = 2**5, 2**20, 2**-4, 2**-10, 5
#: What workers that measure agree on, in place of a plan's digest.
_MEASURING = 0x6D656173
#: The largest rate, in gigabits per second; also if sums are too short to show the rate.
_MAX_GBPS = 1000.0


def measured(
    summation: Summation,
    implementation: Implementation = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> NetworkModel:
    """Measure a summation's network and codec; return the same model on all workers.

    All workers must call this together. The round trip is the time of a sum of one word; the rate is that of
    longer sums, including the processor time that sending takes. The codec is measured by steps in memory.
    The slowest worker's times count, rounded to two digits. It takes about a second at 0.1 Gbit/s and 20 ms,
    and 0.3 s at 1 Gbit/s and 3 ms.
    Raises PlanMismatchError if others do not measure, CodecError for "gpu" without a GPU,
    InvalidRequestError if another worker has none, and the summation's errors.
    """
    message = (
        f"network: worker {summation.worker_id} measures it, and others do not; give all of them the same"
    )
    # Others' words could be added to the zeros of a measurement, and nobody would notice.
    summation.sum_words([agreement_part(_MEASURING, lambda: message)])

    def slowest_s(words: int) -> float:
        """Return the seconds of a sum: the shortest of some sums, on the worker where that is longest."""
        times, zeros = [], np.zeros(words, np.uint32)
        for _ in range(_SUMS):
            started = clock()
            summation.sum_words([Part(zeros, "add")])
            times.append(clock() - started)
        return _largest_of_workers(summation, min(times))[0]

    try:
        local = astuple(codec_model(implementation))
    except CodecError:
        with suppress(InvalidRequestError):
            _largest_of_workers(summation, *[math.nan] * len(fields(CodecModel)))
        raise
    codec = CodecModel(*map(_rounded, _largest_of_workers(summation, *local)))
    model = NetworkModel(_MAX_GBPS, _rounded(slowest_s(1)), codec)
    for words in _LONG:
        more_s = slowest_s(words) - model.round_trip_s
        if more_s > 0:
            model = replace(model, gbps=min(_rounded(WORD_BITS * words / more_s / 1e9), _MAX_GBPS))
        if more_s >= _LONGER * model.round_trip_s:
            break
    return model


def _largest_of_workers(summation: Summation, *local: float) -> list[float]:
    """Return the largest of all workers' first numbers, of their second numbers, and so on.

    Raises InvalidRequestError if a worker has passed NaN.
    """
    numbers = gather_by_or(summation, np.array(local, np.float32).view(np.uint32)).view(np.float32)
    failed = np.flatnonzero(np.isnan(numbers).any(axis=1))
    if failed.size:
        raise InvalidRequestError(
            f"implementation: worker {failed[0]} could not measure its codec; its own error says why"
        )
    largest: list[float] = numbers.max(axis=0).tolist()
    return largest


def codec_model(implementation: Implementation = "cpu") -> CodecModel:
    """Measure this worker's codec: by differences between the times of steps in memory.

    Raises CodecError for "gpu" if a GPU is missing.
    """
    table: list[tuple[Form, int, float, bool]] = [
        # Form, elements, share of non-zeros, and whether the step is done in one round.
        ("compact", _FEW, 1.0, False),
        ("sketch", _FEW, 1.0, False),
        ("sketch", _FEW, 1.0, True),
        ("dense", _FEW, 1.0, False),
        ("dense", _MANY, 1.0, False),
        ("compact", _MANY, _SPARSE, False),
        ("compact", _MANY, _SPARSER, False),
        ("sketch", _MANY, _SPARSE, False),
        ("dense", _MANY, 1.0, True),
    ]
    times = [_step_ns(implementation, *row) for row in table]
    compact, sketch, one_round, dense, large, sparse, sparser, large_sketch, large_one_round = times
    per_candidate = max(sparse - sparser, 0.0) / (_MANY * (_SPARSE - _SPARSER))
    call = max(sketch - compact, 0.0) / SKETCH_CALLS
    one_round_step = max(one_round - sketch, 0.0)
    return CodecModel(
        call=call,
        dense=max(large - dense, 0.0) / _MANY,
        sparse=max((sparser - compact) / _MANY - _SPARSER * per_candidate, 0.0),
        compact=per_candidate,
        cell=max(large_sketch - sparse - SKETCH_CALLS * call, 0.0)
        / (MIN_CELLS_PER_CANDIDATE * _SPARSE * _MANY),
        one_round=max(large_one_round - large - one_round_step, 0.0) / _MANY,
        one_round_step=one_round_step,
    )


def _step_ns(
    implementation: Implementation, form: Form, elements: int, share: float, one_round: bool
) -> float:
    """Return the shortest time of some steps of a single worker, which sums a tensor in memory."""
    (summation,) = LocalSummation.group(1, lanes=elements)
    # If exchanges take no time, every step is done in two rounds; if they take a minute, in one round.
    reduce = Allreduce(
        summation,
        forms="dense" if form == "dense" else "sparse",
        values=form if form != "dense" else "auto",
        network=NetworkModel(round_trip_s=60.0 if one_round else 0.0),
        implementation=implementation,
    )
    non_zeros = np.random.default_rng(0).random(elements) < share
    tensor: Any = non_zeros.astype(np.float32)
    if implementation == "gpu":
        import torch

        tensor = torch.from_numpy(tensor).cuda()
    steps = [reduce.sum({"tensor": tensor}) for _ in range(_STEPS)]
    # The first step has no history, and takes longer.
    return 1e9 * min(step.encode_s + step.decode_s for step in steps[1:])


def _rounded(number: float) -> float:
    """Round to two digits."""
    return float(f"{number:.2g}")
