"""Sparsifiers: the largest elements, those above a threshold, or some at random."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Literal

import numpy as np

from peelsum import buffers
from peelsum.compress.arguments import Level, Seed, Share, Steps
from peelsum.compress.compressor import Floats, Positions, TensorState
from peelsum.compress.sparsifier import Choice, Ratio, Sparsifier, largest

#: A sampled threshold may let this many times too many through before it is corrected.
_TOO_MANY = 2


class TopK(Ratio):
    """The largest elements: exactly, or by a threshold estimated from a share `sample` of all elements.

    It is top_k(x) of Aji and Heafield (EMNLP'17) and of Stich et al. (NeurIPS'18, section 2): x_i where |x_i|
    is among the k largest, else 0. Of equal elements, the first are taken. Contraction: |x - top_k(x)|^2 <=
    (1 - k/n) |x|^2. The sample is that of Lin et al. (ICLR'18). An estimated threshold may pass up to twice
    as many elements; if it passes more, the largest are taken. `seed` determines the sample.
    """

    name = "top-k"
    sample: Share | None = field(default=None, kw_only=True)
    seed: Seed = field(default=0, kw_only=True)

    def choose(self, tensor: Floats, state: TensorState) -> Positions:
        count = self.count(tensor.size, state.step)
        if self.sample is None or not tensor.size:
            return largest(tensor, count)
        magnitudes = np.abs(tensor, out=buffers.empty(tensor.size, np.float32))
        generator = state.generator(self.seed, own=False)
        some = generator.choice(tensor.size, math.ceil(self.sample * tensor.size), replace=False)
        few = max(1, round(some.size * count / tensor.size))
        passed = np.flatnonzero(magnitudes >= np.partition(magnitudes[some], -few)[-few])
        return passed[largest(magnitudes[passed], count)] if passed.size > _TOO_MANY * count else passed


class DGC(TopK):
    """Deep Gradient Compression (Lin et al., ICLR'18): a sampled top-k whose share warms up.

    Its momentum correction, momentum factor masking and local clipping are `momentum` and `clip`.
    """

    name = "dgc"
    sample: Share | None = field(default=0.01, kw_only=True)
    warm_up_steps: Steps = field(default=1000, kw_only=True)


class Threshold(Sparsifier):
    """The elements of at least magnitude `value`, above 0 (Strom, Interspeech'15; here without quantizing).

    What it leaves out is below `value` in each element: an absolute bound, and no contraction.
    """

    name = "threshold"
    value: Level = 0.01

    def choose(self, tensor: Floats, state: TensorState) -> Positions:
        return np.flatnonzero(np.abs(tensor, out=buffers.empty(tensor.size, np.float32)) >= self.value)


class RandomK(Ratio):
    """Elements at random, by `seed`: rand_k(x) of Stich et al. (NeurIPS'18, section 2).

    With `seeds="shared"` all workers choose the same elements, so that their values add up without an index.
    With "own" every worker chooses for itself, and n/k as many elements are non-zero in the sum. Contraction,
    in the mean: E |x - rand_k(x)|^2 = (1 - k/n) |x|^2.
    """

    name = "random-k"
    seeds: Literal["shared", "own"] = "shared"
    seed: Seed = 0

    @property
    def choice(self) -> Choice:
        """Whether the choice is the same on all workers."""
        return self.seeds

    def choose(self, tensor: Floats, state: TensorState) -> Positions:
        generator = state.generator(self.seed, own=self.seeds == "own")
        count = self.count(tensor.size, state.step)
        return generator.choice(tensor.size, count, replace=False, shuffle=False)
