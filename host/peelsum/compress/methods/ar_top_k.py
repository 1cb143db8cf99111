"""AR-Topk: the workers take turns to choose for all, or the one with the largest variance does."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from peelsum.codec import index_words, kernels
from peelsum.compress.compressor import Floats, Positions, TensorState
from peelsum.compress.sparsifier import Choice, Ratio, largest
from peelsum.summation import Words


class Elected(Ratio, abstract=True):
    """AR-Topk (Tyagi and Swany, arXiv 2312.02493): one worker's top-k decides the positions of all.

    All workers send their values at its k positions, so the values add up in an all_reduce or a switch, and
    residuals keep the others. The elected worker alone writes the index, which is OR-ed or broadcast.
    """

    #: Whether the worker of the largest merit decides, not the one whose turn it is.
    by_merit: ClassVar[bool] = False

    @property
    def choice(self) -> Choice:
        """One worker chooses for all."""
        return "elected"

    def choose(self, tensor: Floats, state: TensorState) -> Positions:
        return largest(tensor, self.count(tensor.size, state.step))

    def turn(self, state: TensorState) -> int:
        """Return the worker whose turn it is."""
        return state.step % state.workers

    def merit(self, tensor: Floats, state: TensorState) -> float:
        """Return a number, at least 0; the first of the workers with the largest decides."""
        raise NotImplementedError

    def encode(self, tensor: Floats, state: TensorState) -> Words:
        """Return the positions that this worker would decide: a list of k, or a bitmap if that is shorter."""
        positions, words = self.own(tensor, state), self.words(state)
        if words < index_words(state.elements):
            return positions.astype(np.uint32)
        bitmap = np.zeros(words, np.uint32)
        np.bitwise_or.at(bitmap, positions // 32, np.uint32(1) << (positions % 32).astype(np.uint32))
        return bitmap

    def decode(self, words: Words, state: TensorState) -> Positions:
        """Return int64[k], ascending: the positions in a worker's words."""
        if len(words) < index_words(state.elements):
            return words.astype(np.int64)
        return kernels("cpu").positions(words, state.elements)

    def words(self, state: TensorState) -> int:
        """Return the number of words of an index, the same on all workers."""
        return min(self.count(state.elements, state.step), index_words(state.elements))

    def own(self, tensor: Floats, state: TensorState) -> Positions:
        """Return this worker's own choice, ascending."""
        if "own" not in state.scratch:
            state.scratch["own"] = self._chosen(tensor, state)
        positions: Positions = state.scratch["own"]
        return positions


class StarTopK(Elected):
    """STAR-Topk: the workers take turns; worker (step mod workers) decides the index.

    An element waits up to `workers` steps for a worker that ranks it high. The sum has k elements.
    """

    name = "star"


class VarTopK(Elected):
    """VAR-Topk: the worker whose k largest elements have the largest variance decides the index.

    The variances are compared as float32 numbers, rounded up.
    """

    name = "var"
    by_merit = True

    def merit(self, tensor: Floats, state: TensorState) -> float:
        """Return the variance of this worker's top-k values; its sums are rounded once."""
        values = tensor[self.own(tensor, state)].astype(np.float64)
        if not values.size:
            return 0.0
        mean = math.fsum(values) / values.size
        return math.fsum((values - mean) ** 2) / values.size
