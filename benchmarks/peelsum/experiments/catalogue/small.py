"""A hundred small tensors of a step, beside the same elements as one.

A hundred tensors of 64 to 3,072 elements are summed apart, and as one, by one worker without a network.
`network` is the network model by which choices are made: "words" counts words only.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np

from peelsum.allreduce import Allreduce
from peelsum.allreduce.costs import lower_bound_bits
from peelsum.bench.codec.timing import NotExactError
from peelsum.codec import warm_up
from peelsum.experiments import Column, Experiment, Size
from peelsum.experiments.catalogue.sequence import NETWORKS, Alone

TENSORS = 100
_LENGTHS = (64, 3073)
_WARM_UPS, _STEPS = 5, 30


def measure(seed: int, density: float, network: str, way: str) -> dict[str, Any]:
    """Return the figures of the tensors "apart", or "as one". Raises NotExactError for a wrong sum."""
    warm_up()
    lengths = np.random.default_rng(seed).integers(*_LENGTHS, TENSORS)
    drawn = np.random.default_rng(seed).random(lengths.sum()) < density
    whole = np.where(drawn, np.float32(1.5), np.float32(0))
    if way != "apart":
        lengths = lengths.sum(keepdims=True)
    reduce, spent = Allreduce(Alone(), network=NETWORKS[network]), []
    for _ in range(_WARM_UPS + _STEPS):
        pieces = np.split(whole.copy(), np.cumsum(lengths)[:-1])
        tensors = {f"t{number}": piece for number, piece in enumerate(pieces)}
        before = time.thread_time()
        result = reduce.sum(tensors, in_place=True)
        spent.append(time.thread_time() - before)
    if not np.array_equal(np.concatenate([result[name].values for name in tensors]), whole):
        raise NotExactError("sum: that of one worker's tensors differs from them; this is a bug in the codec")
    return {
        "tensors": len(lengths),
        "elements": whole.size,
        "lower_bound": round(lower_bound_bits(whole.size, int(np.count_nonzero(whole))) / 32, 1),
        "words": sum(tensor.words_sent for tensor in result.tensors),
        "cpu_ms": round(1e3 * median(spent[_WARM_UPS:]), 2),
    }


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "tensors": Column("tensors of the step"),
        "elements": Column("elements of all tensors"),
        "lower_bound": Column("words that encode the non-zeros' values and positions"),
        "words": Column("words that a worker sends in a step"),
        "cpu_ms": Column("processor time of a step, in milliseconds: the median"),
    },
    defaults={"network": tuple(NETWORKS), "way": ("apart", "as one")},
    sizes={"usual": Size([{"density": (1.0, 0.01, 0.001)}], 1)},
)
