"""AR-Topk (Tyagi and Swany, arXiv 2312.02493): one worker's top-k decides the index of all.

All workers send their values at its k positions, so the values add up in an all_reduce or a switch, and
residuals keep the others. The elected worker alone writes the index, which is OR-ed or broadcast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from peelsum.codec import index_words, kernels
from peelsum.compress.arithmetic import fixed_values, fixed_words
from peelsum.compress.compressor import (
    Floats,
    Kind,
    Payload,
    Positions,
    SharedIndex,
    TensorState,
    Values,
)
from peelsum.compress.errors import CompressConfigError
from peelsum.compress.sparsifiers import TopK, spread
from peelsum.summation import Words


@dataclass(frozen=True)
class StarTopK(TopK):
    """STAR-Topk: the workers take turns; worker (step mod workers) decides the index.

    An element waits up to `workers` steps for a worker that ranks it high. The sum has k elements.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample is not None:
            raise CompressConfigError(f"sample: {self.sample} makes k vary; use None with a shared index")

    @property
    def kind(self) -> Kind:
        """Additive: the workers share an index."""
        return "additive"

    @property
    def index(self) -> SharedIndex:
        """The object itself."""
        return self

    def turn(self, state: TensorState) -> int | None:
        """Return step mod workers."""
        return state.step % state.workers

    def merit(self, tensor: Floats, state: TensorState) -> float:
        """See `SharedIndex.merit`; it is not used."""
        return 0.0

    def words(self, state: TensorState) -> int:
        """Return the words of a list of k positions or of a bitmap, whichever are fewer."""
        return min(self.count(state.elements, state.step), index_words(state.elements))

    def encode(self, tensor: Floats, state: TensorState) -> Words:
        """See `SharedIndex.encode`."""
        positions, words = self._own(tensor, state), self.words(state)
        if words < index_words(state.elements):
            return positions.astype(np.uint32)
        bitmap = np.zeros(words, np.uint32)
        np.bitwise_or.at(bitmap, positions // 32, np.uint32(1) << (positions % 32).astype(np.uint32))
        return bitmap

    def decode(self, words: Words, state: TensorState) -> Positions:
        """See `SharedIndex.decode`."""
        if len(words) < index_words(state.elements):
            return words.astype(np.int64)
        return kernels("cpu").positions(words, state.elements)

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """Return the values at `state.positions` in fixed point."""
        assert state.positions is not None
        return Payload("additive", fixed_words(tensor[state.positions], state.bound, state.workers))

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        assert state.positions is not None
        values = fixed_values(payload.data, state.bound, state.workers)
        return spread(values, state.positions, state.elements)

    def _own(self, tensor: Floats, state: TensorState) -> Positions:
        """Return this worker's own top-k, ascending."""
        if "own" not in state.scratch:
            state.scratch["own"] = self.positions(tensor, state)
        positions: Positions = state.scratch["own"]
        return positions


@dataclass(frozen=True)
class VarTopK(StarTopK):
    """VAR-Topk: the worker whose k largest elements have the largest variance decides the index.

    The variances are compared as float32 numbers, rounded up.
    """

    def turn(self, state: TensorState) -> int | None:
        """Return None: `merit` decides."""
        return None

    def merit(self, tensor: Floats, state: TensorState) -> float:
        """Return the variance of this worker's top-k values; its sums are rounded once."""
        values = tensor[self._own(tensor, state)].astype(np.float64)
        if not values.size:
            return 0.0
        mean = math.fsum(values) / values.size
        return math.fsum((values - mean) ** 2) / values.size
