"""`peelsum bench codec --small`: a hundred small tensors of a step, beside the same elements as one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Allreduce, Part
from peelsum.allreduce.costs import lower_bound_bits
from peelsum.bench.codec.sequences import NETWORKS
from peelsum.bench.codec.timing import NotExactError
from peelsum.codec import warm_up
from peelsum.summation import Words

TENSORS = 100
DENSITIES = (1.0, 0.01, 0.001)
_LENGTHS = (64, 3073)
_WARM_UPS, _STEPS = 5, 30


@dataclass(frozen=True)
class SmallRow:
    """One density, and one way to pass the elements."""

    tensors: int
    elements: int
    """Elements of all tensors."""
    density: float
    """Share of elements that are not zero."""
    network: str
    """The network model by which choices are made: "words" counts words only."""
    lower_bound: float
    """Words that encode the non-zeros' values and positions."""
    words: int
    """Words that a worker sends in a step."""
    cpu_ms: float
    """Processor time of a step of `Allreduce.sum`, without a network: the median."""


class _Alone:
    """A backend of one worker."""

    lanes, workers, worker_id = 256, 1, 0

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        return [part.words.copy() for part in parts]


def bench_small(*, seed: int = 0) -> Iterator[SmallRow]:
    """Yield two rows for each density and network model: the tensors apart, and as one.

    Raises NotExactError for a wrong sum.
    """
    warm_up()
    rng = np.random.default_rng(seed)
    lengths = rng.integers(*_LENGTHS, TENSORS)
    for density, network, way in product(DENSITIES, NETWORKS, ("apart", "as one")):
        drawn = np.random.default_rng(seed).random(lengths.sum()) < density
        whole = np.where(drawn, np.float32(1.5), np.float32(0))
        yield _row(whole, lengths if way == "apart" else lengths.sum(keepdims=True), density, network)


def _row(whole: NDArray[np.float32], lengths: NDArray[np.int64], density: float, network: str) -> SmallRow:
    reduce, spent = Allreduce(_Alone(), network=NETWORKS[network]), []
    for _ in range(_WARM_UPS + _STEPS):
        pieces = np.split(whole.copy(), np.cumsum(lengths)[:-1])
        tensors = {f"t{number}": piece for number, piece in enumerate(pieces)}
        before = time.thread_time()
        result = reduce.sum(tensors, in_place=True)
        spent.append(time.thread_time() - before)
    if not np.array_equal(np.concatenate([result[name].values for name in tensors]), whole):
        raise NotExactError("sum: that of one worker's tensors differs from them; this is a bug in the codec")
    return SmallRow(
        tensors=len(lengths),
        elements=whole.size,
        density=density,
        network=network,
        lower_bound=round(lower_bound_bits(whole.size, int(np.count_nonzero(whole))) / 32, 1),
        words=sum(tensor.words_sent for tensor in result.tensors),
        cpu_ms=round(1e3 * median(spent[_WARM_UPS:]), 2),
    )
