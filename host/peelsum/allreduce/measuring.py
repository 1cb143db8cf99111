"""Measure the time of words, exchanges and the codec, from which the costs of forms are computed."""

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
from peelsum.allreduce.errors import InvalidRequestError, PlanMismatchError
from peelsum.allreduce.local import LocalSummation
from peelsum.allreduce.plan import Form, agreed, agreement_words
from peelsum.codec import FEWEST_CELLS, CodecError, Implementation
from peelsum.codec.index import WORD_BITS
from peelsum.summation import Part, Summation, Words

#: Words of the long sums. The first that takes _LONGER round trips more than one word gives the rate, or else
#: the last.
_LONG, _LONGER = (2**16, 2**19, 2**22), 4
#: Sums of each length, of which the shortest time counts.
_SUMS = 5
#: Elements of a small and a large tensor, shares of non-zeros of sparse ones, and steps of each.
_FEW, _MANY, _SPARSE, _SPARSER, _STEPS = 2**5, 2**20, 2**-4, 2**-10, 5
#: What workers that measure agree on, in place of a plan's digest.
_MEASURING = 0x6D656173
#: A rate of so many gigabits per second is taken for one that the longest sums do not show.
_FASTEST = 1000.0


def measured(
    summation: Summation,
    implementation: Implementation = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> NetworkModel:
    """Measure a summation's network and codec; return the same model on all workers.

    All of them must call this together.

    Sums of one word show the round trip, longer ones the rate, with the processor time that sending takes.
    Steps in memory show what the codec takes. The slowest worker's times count, rounded to two digits. It
    takes about a second at 0.1 Gbit/s and 20 ms, and 0.3 s at 1 Gbit/s and 3 ms.
    Raises PlanMismatchError if others do not measure, CodecError for "gpu" without a GPU,
    InvalidRequestError if another worker has none, and the summation's errors.
    """

    def check(words: Words) -> None:
        if not agreed(words):
            raise PlanMismatchError(
                f"network: worker {summation.worker_id} measures it, and others do not; "
                "give all of them the same"
            )

    # Zeros would pass for another worker's share of a sum.
    summation.sum_words([Part(agreement_words(_MEASURING), "or", check)])

    def slowest_s(words: int) -> float:
        """Return the shortest time of some sums on the worker where it is longest."""
        own, zeros = [], np.zeros(words, np.uint32)
        for _ in range(_SUMS):
            started = clock()
            summation.sum_words([Part(zeros, "add")])
            own.append(clock() - started)
        return _slowest(summation, min(own))[0]

    try:
        own = astuple(codec_model(implementation))
    except CodecError:
        with suppress(InvalidRequestError):
            _slowest(summation, *[math.nan] * len(fields(CodecModel)))
        raise
    codec = CodecModel(*map(_rounded, _slowest(summation, *own)))
    model = NetworkModel(_FASTEST, _rounded(slowest_s(1)), codec)
    for words in _LONG:
        more_s = slowest_s(words) - model.round_trip_s
        if more_s > 0:
            model = replace(model, gbps=min(_rounded(WORD_BITS * words / more_s / 1e9), _FASTEST))
        if more_s >= _LONGER * model.round_trip_s:
            break
    return model


def _slowest(summation: Summation, *own: float) -> list[float]:
    """Return each number of the worker where it is largest."""
    told = np.zeros((summation.workers, len(own)), np.float32)
    told[summation.worker_id] = own
    (words,) = summation.sum_words([Part(told.reshape(-1).view(np.uint32), "or")])
    all_told = words.view(np.float32).reshape(told.shape)
    failed = np.flatnonzero(np.isnan(all_told).any(axis=1))
    if failed.size:
        raise InvalidRequestError(
            f"implementation: worker {failed[0]} could not measure its codec; its own error says why"
        )
    largest: list[float] = all_told.max(axis=0).tolist()
    return largest


def codec_model(implementation: Implementation = "cpu") -> CodecModel:
    """Return what this worker's codec takes: differences between the times of steps in memory.

    Raises CodecError for "gpu" if a GPU is missing.
    """
    table: list[tuple[Form, int, float, bool]] = [
        # The form, elements, share of non-zeros, and whether the step goes ahead.
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
    compact, sketch, ahead, dense, much, sparse, sparser, cells, much_ahead = times
    each = max(sparse - sparser, 0.0) / (_MANY * (_SPARSE - _SPARSER))
    call = max(sketch - compact, 0.0) / SKETCH_CALLS
    ahead_step = max(ahead - sketch, 0.0)
    return CodecModel(
        call=call,
        dense=max(much - dense, 0.0) / _MANY,
        sparse=max((sparser - compact) / _MANY - _SPARSER * each, 0.0),
        compact=each,
        cell=max(cells - sparse - SKETCH_CALLS * call, 0.0) / (FEWEST_CELLS * _SPARSE * _MANY),
        ahead=max(much_ahead - much - ahead_step, 0.0) / _MANY,
        ahead_step=ahead_step,
    )


def _step_ns(implementation: Implementation, form: Form, elements: int, share: float, ahead: bool) -> float:
    """Return the least time of some steps of one worker that sums one tensor in memory."""
    (alone,) = LocalSummation.group(1, lanes=elements)
    # No step goes ahead if exchanges take no time, and every one does if they take a minute.
    reduce = Allreduce(
        alone,
        forms="dense" if form == "dense" else "sparse",
        values=form if form != "dense" else "auto",
        network=NetworkModel(round_trip_s=60.0 if ahead else 0.0),
        implementation=implementation,
    )
    chosen = np.random.default_rng(0).random(elements) < share
    tensor: Any = chosen.astype(np.float32)
    if implementation == "gpu":
        import torch

        tensor = torch.from_numpy(tensor).cuda()
    steps = [reduce.sum({"tensor": tensor}) for _ in range(_STEPS)]
    # The first knows nothing of the tensor, and takes longer.
    return 1e9 * min(one.encode_s + one.decode_s for one in steps[1:])


def _rounded(number: float) -> float:
    return float(f"{number:.2g}")
