"""Sparsifiers, which choose the elements of a gradient to send in a step; a memory keeps the others.

They choose the largest elements, those above a threshold, or random ones. In AR-Topk a single worker chooses
for all: the workers take turns, or the worker with the largest variance is elected.

If each worker chooses for itself, the exact all-reduce sums the values of chosen elements, through an index.
If all workers send the same positions, the values are added as words of fixed point. With a quantizer for the
values, a sparsifier is Qsparse (Basu et al., NeurIPS'19).
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
from peelsum.compress.arithmetic import from_bytes, to_bytes
from peelsum.compress.compressor import Compressor, Floats, Kind, Payload, Positions, TensorState, Values
from peelsum.compress.methods.packed import Dense
from peelsum.summation import Words

#: Who chooses the elements: each worker for itself, all workers the same ones, or one worker for all.
Choice = Literal["own", "shared", "elected"]
_COUNT_BYTES = 4
#: If a sampled threshold passes more than this many times the intended number, the largest are selected.
_MAX_EXCESS = 2
_FIXED_POINT = Dense()


class Sparsifier(Compressor, abstract=True):
    """The base class of compressors that send some elements. Subclasses implement `choose`.

    - `quantizer`: compresses the chosen values; None sends them in fixed point. If workers choose for
      themselves, it must be of kind "gather", and positions are sent with the values, in 4 bytes each. If
      workers share positions, it must be additive.
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
        quantizer, shared = self.quantizer, self.choice != "own"
        if quantizer is None:
            return
        if isinstance(quantizer, Sparsifier) or quantizer.rounds > 1:
            raise CompressConfigError(f"quantizer: {quantizer!r} is not a quantizer; give e.g. QSGD(4)")
        if (quantizer.kind == "additive") != shared:
            raise CompressConfigError(
                f"quantizer: {quantizer!r} does not fit the positions of {type(self).__name__}, which are "
                f"{'shared; use e.g. PackedIntegers(8)' if shared else 'not shared; use e.g. QSGD(4)'}"
            )
        if self.choice == "elected" and not quantizer.within_bound:
            raise CompressConfigError("quantizer: rotate=True needs the positions first; use rotate=False")

    @property
    def choice(self) -> Choice:
        """Who chooses the elements."""
        return "own"

    @property
    def kind(self) -> Kind:
        """The quantizer's kind; without a quantizer "indexed", or "additive" for shared positions."""
        return "indexed" if self._value_compressor is None else self._value_compressor.kind

    @property
    def _value_compressor(self) -> Compressor | None:
        """The compressor of the chosen values; None if the exact all-reduce sums them."""
        return _FIXED_POINT if self.quantizer is None and self.choice != "own" else self.quantizer

    @abstractmethod
    def choose(self, tensor: Floats, state: TensorState) -> Positions:
        """Return int64[k]: distinct positions in a tensor[n]."""

    def check(self, workers: int) -> None:
        if self._value_compressor is not None:
            self._value_compressor.check(workers)

    def announced(self, tensor: Floats, state: TensorState) -> float:
        """See `Compressor.announced`; if another worker may choose, the bound is that of all elements."""
        if self.choice == "elected" or self._value_compressor is None:
            return super().announced(tensor, state)
        state.positions = self._choose_sorted(tensor, state)
        return self._value_compressor.announced(tensor[state.positions], self._value_state(state))

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """Return the payload of the chosen values; of kind "gather", with their number and positions."""
        if self.choice == "own":
            state.positions = self._choose_sorted(tensor, state)
        positions = state.positions
        assert positions is not None
        if self._value_compressor is None:
            return tensor[positions]
        payload = self._value_compressor.compress(tensor[positions], self._value_state(state))
        if self.kind == "additive":
            return payload
        return to_bytes(np.array([positions.size], np.uint32), positions.astype(np.uint32), payload)

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        """Return the values of a payload at their positions, zeros elsewhere."""
        if self.kind == "gather":
            (count,) = payload[:_COUNT_BYTES].view(np.uint32).tolist()
            _, positions, payload = from_bytes(payload, (np.uint32, 1), (np.uint32, count), (np.uint8, -1))
            state = replace(state, positions=positions.astype(np.int64))
        assert state.positions is not None
        if self._value_compressor is not None:
            payload = self._value_compressor.decompress(payload, self._value_state(state), added)
        out = np.zeros(state.elements)
        out[state.positions] = payload
        return out

    def _choose_sorted(self, tensor: Floats, state: TensorState) -> Positions:
        """Return int64[k]: the positions that this worker chooses, ascending."""
        return np.sort(self.choose(tensor, state))

    def _value_state(self, state: TensorState) -> TensorState:
        """Return the state of the quantizer, whose tensor has the chosen values."""
        assert state.positions is not None
        scratch = state.scratch.setdefault("inner", {})
        return replace(state, shape=state.positions.shape, positions=None, scratch=scratch, kept={})


class Ratio(Sparsifier, abstract=True):
    """The base class of sparsifiers that send a share `ratio` of the elements, at least one element.

    It is a share of each tensor, or, with `per="bucket"`, of all tensors that are summed together. During the
    first `warm_up_steps` steps, it decreases exponentially from `warm_up_from`, as in Deep Gradient
    Compression (Lin et al., ICLR'18).
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
        """Return the share of elements to send in `step`, counted from 0."""
        if step >= self.warm_up_steps:
            return self.ratio
        progress = step / self.warm_up_steps
        return math.exp((1 - progress) * math.log(self.warm_up_from) + progress * math.log(self.ratio))

    def count(self, elements: int, step: int) -> int:
        """Return the number of elements to send in `step` of a tensor with `elements` elements."""
        return min(elements, math.ceil(self.ratio_at(step) * elements))


def largest(floats: Floats, count: int) -> Positions:
    """Return int64[count]: the positions of the largest magnitudes, ascending.

    Of equal magnitudes, the first are taken. NaN is left out, so there may be fewer positions.
    """
    positions, scratch = np.empty(count, np.int64), buffers.empty(floats.size + loops.COUNTS, np.int64)
    above, counts = scratch[: floats.size], scratch[floats.size :]
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
        """Return the positions of the largest elements; with a sample, of those above its threshold."""
        count = self.count(tensor.size, state.step)
        if self.sample is None or not tensor.size:
            return largest(tensor, count)
        magnitudes = np.abs(tensor, out=buffers.empty(tensor.size, np.float32))
        generator = state.generator(self.seed, per_worker=False)
        sample = generator.choice(tensor.size, math.ceil(self.sample * tensor.size), replace=False)
        sample_count = max(1, round(sample.size * count / tensor.size))
        threshold = np.partition(magnitudes[sample], -sample_count)[-sample_count]
        passed = np.flatnonzero(magnitudes >= threshold)
        return passed[largest(magnitudes[passed], count)] if passed.size > _MAX_EXCESS * count else passed


class DGC(TopK):
    """Deep Gradient Compression (Lin et al., ICLR'18): a sampled top-k whose share warms up.

    Its momentum correction, momentum factor masking and local clipping are `momentum` and `clip`.
    """

    name = "dgc"
    sample: Share | None = field(default=0.01, kw_only=True)
    warm_up_steps: Steps = field(default=1000, kw_only=True)


class Threshold(Sparsifier):
    """The elements of magnitude `value` or more, for a `value` above 0 (Strom, Interspeech'15, unquantized).

    Each element that it leaves out is below `value`: an absolute bound, and no contraction.
    """

    name = "threshold"
    value: Level = 0.01

    def choose(self, tensor: Floats, state: TensorState) -> Positions:
        return np.flatnonzero(np.abs(tensor, out=buffers.empty(tensor.size, np.float32)) >= self.value)


class RandomK(Ratio):
    """Random elements, by `seed`: rand_k(x) of Stich et al. (NeurIPS'18, section 2).

    With `seeds="shared"` all workers choose the same elements, so that their values add up without an index.
    With "own" every worker chooses for itself, so the sum has more non-zeros: those of all workers.
    Contraction, in the mean: E |x - rand_k(x)|^2 = (1 - k/n) |x|^2.
    """

    name = "random-k"
    seeds: Literal["shared", "own"] = "shared"
    seed: Seed = 0

    @property
    def choice(self) -> Choice:
        """Whether the choice is the same on all workers."""
        return self.seeds

    def choose(self, tensor: Floats, state: TensorState) -> Positions:
        generator = state.generator(self.seed, per_worker=self.seeds == "own")
        count = self.count(tensor.size, state.step)
        return generator.choice(tensor.size, count, replace=False, shuffle=False)


class Elected(Ratio, abstract=True):
    """The base class of AR-Topk (Tyagi and Swany, arXiv 2312.02493): one worker's top-k is sent by all.

    All workers send their values at the k positions of the elected worker, so the values add up in an
    all_reduce or a switch. Only the elected worker writes the index, which is ORed or broadcast.
    """

    #: Whether the worker with the largest merit is elected, not the worker whose turn it is.
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
        """Return this worker's merit, at least 0. The first worker with the largest merit is elected."""
        raise NotImplementedError

    def encode(self, tensor: Floats, state: TensorState) -> Words:
        """Return the positions of this worker's top-k as words: a list, or a bitmap if that is shorter."""
        positions, words = self.top_k(tensor, state), self.words(state)
        if words < index_words(state.elements):
            return positions.astype(np.uint32)
        bitmap = np.zeros(words, np.uint32)
        np.bitwise_or.at(bitmap, positions // 32, np.uint32(1) << (positions % 32).astype(np.uint32))
        return bitmap

    def decode(self, words: Words, state: TensorState) -> Positions:
        """Return int64[k], ascending: the positions that `encode` encoded."""
        if len(words) < index_words(state.elements):
            return words.astype(np.int64)
        return HOST.positions(words, state.elements)

    def words(self, state: TensorState) -> int:
        """Return the number of words of an index, the same on all workers."""
        return min(self.count(state.elements, state.step), index_words(state.elements))

    def top_k(self, tensor: Floats, state: TensorState) -> Positions:
        """Return the positions of this worker's top-k, ascending."""
        if "top_k" not in state.scratch:
            state.scratch["top_k"] = self._choose_sorted(tensor, state)
        positions: Positions = state.scratch["top_k"]
        return positions


class StarTopK(Elected):
    """STAR-Topk: the workers take turns; in a step, the top-k of worker (step mod workers) is sent.

    An element waits up to `workers` steps for the turn of a worker that ranks it high.
    """

    name = "star"


class VarTopK(Elected):
    """VAR-Topk: the top-k of the worker whose k largest elements have the largest variance is sent.

    The variances are compared as float32 numbers, rounded up.
    """

    name = "var"
    by_merit = True

    def merit(self, tensor: Floats, state: TensorState) -> float:
        """Return the variance of this worker's top-k values; its sums are rounded once."""
        values = tensor[self.top_k(tensor, state)].astype(np.float64)
        if not values.size:
            return 0.0
        mean = math.fsum(values) / values.size
        return math.fsum((values - mean) ** 2) / values.size
