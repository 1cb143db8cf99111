"""Sparsifiers, which choose the elements of a gradient to send now; a memory keeps the others.

They take the largest elements, those above a threshold, or some at random. In AR-Topk one worker chooses for
all: the workers take turns, or the one with the largest variance does.

The values of chosen elements are summed by the exact all-reduce, through an index, if each worker chooses for
itself. If all send the same positions, the values add up as words of fixed point. A quantizer takes the
values instead, and makes of a sparsifier what Qsparse is (Basu et al., NeurIPS'19).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import field, replace
from typing import ClassVar, Literal

import numpy as np

from peelsum import buffers
from peelsum.codec import HOST, index_words
from peelsum.compress import loops
from peelsum.compress.arguments import CompressConfigError, Level, Momentum, Norm, Seed, Share, Steps
from peelsum.compress.arithmetic import arrays_of, bytes_of
from peelsum.compress.compressor import Compressor, Floats, Kind, Payload, Positions, TensorState, Values
from peelsum.compress.methods.packed import Dense
from peelsum.summation import Words

#: Who chooses: each worker for itself, all the same, or one worker for all.
Choice = Literal["own", "shared", "elected"]
_COUNT_BYTES = 4
#: A sampled threshold may let this many times too many through before it is corrected.
_TOO_MANY = 2
_FIXED_POINT = Dense()


class Sparsifier(Compressor, abstract=True):
    """A choice of elements to send. Subclasses implement `choose`.

    - `quantizer`: compresses the chosen values; None sends them in fixed point. Where workers choose for
      themselves it must be of kind "gather", and positions travel with the values, 4 bytes each. Where they
      share positions it must be additive.
    - `momentum`: the momentum correction of Deep Gradient Compression (Lin et al., ICLR'18), with error
      feedback: velocities u = momentum * u + gradient are accumulated, and cleared where they were sent.
      The optimizer must then have no momentum.
    - `clip`: its local clipping: a gradient's 2-norm is limited to clip / sqrt(workers).
    """

    quantizer: Compressor | None = field(default=None, kw_only=True)
    momentum: Momentum = field(default=0.0, kw_only=True)
    clip: Norm | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        one, shared = self.quantizer, self.choice != "own"
        if one is None:
            return
        if isinstance(one, Sparsifier) or one.rounds > 1:
            raise CompressConfigError(f"quantizer: {one!r} is not a quantizer; give e.g. QSGD(4)")
        if (one.kind == "additive") != shared:
            raise CompressConfigError(
                f"quantizer: {one!r} does not fit the positions of {type(self).__name__}, which are "
                f"{'shared; use e.g. PackedIntegers(8)' if shared else 'not shared; use e.g. QSGD(4)'}"
            )
        if self.choice == "elected" and not one.within_bound:
            raise CompressConfigError("quantizer: rotate=True needs the positions first; use rotate=False")

    @property
    def choice(self) -> Choice:
        """Who chooses the elements."""
        return "own"

    @property
    def kind(self) -> Kind:
        """Indexed where workers choose for themselves and the values are not quantized; the quantizer's."""
        return "indexed" if self._values is None else self._values.kind

    @property
    def _values(self) -> Compressor | None:
        """What compresses the chosen values; None leaves them to the exact all-reduce."""
        return _FIXED_POINT if self.quantizer is None and self.choice != "own" else self.quantizer

    @abstractmethod
    def choose(self, tensor: Floats, state: TensorState) -> Positions:
        """Return int64[k]: distinct positions in a tensor[n]."""

    def check(self, workers: int) -> None:
        if self._values is not None:
            self._values.check(workers)

    def announced(self, tensor: Floats, state: TensorState) -> float:
        """See `Compressor.announced`; if another worker chooses, any of the values may be sent."""
        if self.choice == "elected" or self._values is None:
            return super().announced(tensor, state)
        state.positions = self._chosen(tensor, state)
        return self._values.announced(tensor[state.positions], self._inner(state))

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        if self.choice == "own":
            state.positions = self._chosen(tensor, state)
        at = state.positions
        assert at is not None
        if self._values is None:
            return tensor[at]
        inner = self._values.compress(tensor[at], self._inner(state))
        if self.kind == "additive":
            return inner
        return bytes_of(np.array([at.size], np.uint32), at.astype(np.uint32), inner)

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        if self.kind == "gather":
            (count,) = payload[:_COUNT_BYTES].view(np.uint32).tolist()
            _, at, payload = arrays_of(payload, (np.uint32, 1), (np.uint32, count), (np.uint8, -1))
            state = replace(state, positions=at.astype(np.int64))
        assert state.positions is not None
        out = np.zeros(state.elements)
        values = (
            payload if self._values is None else self._values.decompress(payload, self._inner(state), added)
        )
        out[state.positions] = values
        return out

    def _chosen(self, tensor: Floats, state: TensorState) -> Positions:
        """Return int64[k]: the positions that this worker chooses, ascending."""
        return np.sort(self.choose(tensor, state))

    def _inner(self, state: TensorState) -> TensorState:
        """Return the quantizer's state, for a tensor of the chosen values."""
        assert state.positions is not None
        scratch = state.scratch.setdefault("inner", {})
        return replace(state, shape=state.positions.shape, positions=None, scratch=scratch, kept={})


class Ratio(Sparsifier, abstract=True):
    """A share `ratio` of the elements, at least one, reached over `warm_up_steps` from `warm_up_from`.

    It is a share of each tensor, or, with `per="bucket"`, of all tensors that are summed together.
    The exponential warm-up is that of Deep Gradient Compression (Lin et al., ICLR'18).
    """

    ratio: Share = 0.01
    warm_up_steps: Steps = field(default=0, kw_only=True)
    warm_up_from: Share = field(default=0.25, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warm_up_steps and self.warm_up_from < self.ratio:
            raise CompressConfigError(
                f"warm_up_from: {self.warm_up_from} is below the ratio, {self.ratio}; give at least the ratio"
            )

    def ratio_at(self, step: int) -> float:
        """Return the share in `step`, counted from 0: exponential from `warm_up_from` to `ratio`."""
        if step >= self.warm_up_steps:
            return self.ratio
        done = step / self.warm_up_steps
        return math.exp((1 - done) * math.log(self.warm_up_from) + done * math.log(self.ratio))

    def count(self, elements: int, step: int) -> int:
        """Return how many of `elements` elements `step` sends."""
        return min(elements, math.ceil(self.ratio_at(step) * elements))


def largest(floats: Floats, count: int) -> Positions:
    """Return int64[count]: the positions of the largest magnitudes, ascending; of equal ones the first.

    NaN is never among them, so that there may be fewer.
    """
    positions, space = np.empty(count, np.int64), buffers.empty(floats.size + loops.COUNTS, np.int64)
    above, counts = space[: floats.size], space[floats.size :]
    return positions[: loops.largest(floats.view(np.uint32), above, counts, positions)]


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
        return HOST.positions(words, state.elements)

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
