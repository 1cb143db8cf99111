"""Steps in one exchange: how often, with how many words, and how precisely, on gradients of real models"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from peelsum.allreduce import Allreduce, LocalSummation, NetworkModel, StepResult
from peelsum.allreduce.costs import lower_bound_bits
from peelsum.experiments import Column, Experiment, Size
from peelsum.experiments.catalogue.precision import Gradients, gradients_of
from peelsum.summation import Part

#: Steps that are not counted: nothing is known before the first, and little before the next ones.
_FIRST = 4


class _Counted(LocalSummation):
    """A sum in memory that remembers the words of each exchange of a step."""

    words: list[int]

    def sum_words(self, parts: Sequence[Part]) -> Any:
        self.words.append(sum(part.words.size for part in parts if part.check is None))
        return super().sum_words(parts)


def measure(
    seed: int, model: Any, way: Any, rtt_ms: float, gbps: float, workers: int, steps: int
) -> dict[str, Any]:
    """Train a small model, sum the gradients of every step, and count."""
    network = NetworkModel(gbps, rtt_ms / 1e3)
    group: Any = _Counted.group(workers)
    reduces = [Allreduce(one, values=way, network=network, seed=seed) for one in group]
    counts, errors = np.zeros(6), []
    with ThreadPoolExecutor(workers) as pool:
        for step, gradients in gradients_of(model, range(steps), workers, seed):
            for one in group:
                one.words = []
            own = [{name: each[worker] for name, each in gradients.items()} for worker in range(workers)]
            results = list(pool.map(lambda reduce, tensors: reduce.sum(tensors), reduces, own))
            _require_exact(results)
            if step >= _FIRST:
                sent = group[0].words
                again = sum(sent[1:]) if results[0].ahead else 0
                bits = sum(
                    lower_bound_bits(one.elements, int(np.count_nonzero(one.total_at)))
                    for one in results[0].tensors
                )
                tally = results[0].tally
                counts += results[0].exchanges, tally.cells, tally.candidates, again, sum(sent), bits / 32
                errors.append(_median_errors(gradients, results[0]))
    exchanges, cells, candidates, again, words, bound = counts.tolist()
    ours, float32 = np.median(errors, axis=0).tolist()
    return {
        "exchanges": exchanges / len(errors),
        "cells": cells / candidates if candidates else None,
        "again": again / words,
        "over_lower_bound": words / bound,
        "median_error": ours,
        "median_error_float32": float32,
    }


def _require_exact(results: Sequence[StepResult]) -> None:
    """Raise ArithmeticError unless totals are the sums of all workers' own numbers."""
    for tensor in results[0].tensors:
        total = sum(one[tensor.name].quantized.astype(np.int64) for one in results)
        if not np.array_equal(tensor.total, total):
            raise ArithmeticError(f"{tensor.name}: a total is not the sum; this is a bug, please report it")


def _median_errors(gradients: Gradients, result: StepResult) -> tuple[float, float]:
    """Return the median relative errors of results, and of float32 added in the workers' order."""
    errors: list[list[Any]] = [[], []]
    for name, each in gradients.items():
        exact, in_sequence = np.sum(each, axis=0, dtype=np.longdouble), each[0].copy()
        for array in each[1:]:
            in_sequence += array
        used = exact != 0
        for found, values in zip(errors, (result[name].values, in_sequence), strict=True):
            found.append((np.abs(values - exact)[used] / np.abs(exact)[used]).astype(np.float64))
    ours, float32 = (float(np.median(np.concatenate(found))) for found in errors)
    return ours, float32


EXPERIMENT = Experiment(
    about="""
Workers are threads of one process, and sum in memory: exchanges, words and bits are those of any backend. The
network model is what the choice between one exchange and two depends on. The first four steps do not count.
""",
    measure=measure,
    columns={
        "exchanges": Column("mean exchanges of a step"),
        "cells": Column("cells of sketches for each candidate"),
        "again": Column("words sent in a second exchange of steps ahead, over all words"),
        "over_lower_bound": Column("words over the lower bound for uniform positions"),
        "median_error": Column("median relative error of a sum, the median of steps"),
        "median_error_float32": Column("the same of float32 added in the workers' order"),
    },
    defaults={"way": ("sketch", "compact"), "workers": 4, "gbps": 1.0, "rtt_ms": 10.0, "steps": 40},
    sizes={
        "quick": Size([{"model": "ncf", "steps": 8}], 1),
        "usual": Size([{"model": ("ncf", "lstm", "bert")}], 1),
    },
    choices={"way": ("sketch", "compact", "auto")},
    ranges={"workers": (1, 64), "gbps": (0.001, 1600), "rtt_ms": (0, 4000), "steps": (6, 10_000)},
    timed=False,
    needs=("torch",),
)
