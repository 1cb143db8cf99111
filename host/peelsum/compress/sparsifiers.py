"""Sparsifiers, which choose the elements of a gradient to send now: top-k, random-k, or above a threshold.

A sparsifier takes magnitudes and returns positions; a memory keeps the other elements. The sum of what is
sent is exact.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from peelsum import kept_pages
from peelsum.compress import loops
from peelsum.compress.arithmetic import fixed_values, fixed_words
from peelsum.compress.compressor import (
    Compressor,
    Floats,
    Kind,
    Payload,
    Positions,
    Scope,
    TensorState,
    Values,
    require_choice,
    require_integer,
    require_number,
    require_scope,
)

Magnitudes = NDArray[np.floating[Any]]
#: Whether the random choice of elements is the same on all workers, or each worker's own.
Seeds = Literal["shared", "own"]
#: A sampled threshold may let this many times too many through before it is corrected.
_TOO_MANY = 2


class Chooser(Protocol):
    """A choice of elements to send, which `Indexed` makes a compressor of."""

    @property
    def per(self) -> Scope:
        """Whether elements compete within a tensor or within all tensors of a bucket."""

    def choose(self, magnitudes: Magnitudes, step: int, seed: int) -> Positions:
        """Return int64[k]: distinct positions in magnitudes[n]. `seed` is the same on all workers."""


@dataclass(frozen=True, repr=False)
class Indexed(Compressor):
    """Any choice of elements, also of a class that is not a `Compressor`, summed through an index.

    Workers that choose alike still exchange the index. Choosers of other classes than dataclasses are
    compared over workers by their class only.
    """

    chooser: Chooser

    def __repr__(self) -> str:
        named = repr(self.chooser) if is_dataclass(self.chooser) else type(self.chooser).__qualname__
        return f"Indexed({named})"

    @property
    def per(self) -> Scope:
        """The chooser's."""
        return self.chooser.per

    @property
    def kind(self) -> Kind:
        """Indexed."""
        return "indexed"

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        positions = np.sort(self.chooser.choose(_magnitudes(tensor), state.step, state.seed))
        return Payload("indexed", tensor[positions], positions)

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        assert payload.positions is not None
        return spread(payload.data, payload.positions, state.elements)


class Sparsifier(Compressor):
    """A choice of elements to send. Subclasses implement `choose`, and have a field `per`."""

    @property
    def kind(self) -> Kind:
        """Indexed: each worker chooses on its own."""
        return "indexed"

    @abstractmethod
    def choose(self, magnitudes: Magnitudes, step: int, seed: int) -> Positions:
        """Return int64[k]: distinct positions in magnitudes[n]. `seed` is the same on all workers."""

    def positions(self, tensor: Floats, state: TensorState) -> Positions:
        """Return int64[k]: the positions that this worker sends, ascending."""
        return np.sort(self.choose(_magnitudes(tensor), state.step, state.seed))

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        positions = self.positions(tensor, state)
        return Payload("indexed", tensor[positions], positions)

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        return Indexed(self).decompress(payload, state)


@dataclass(frozen=True)
class _Share(Sparsifier):
    """A share `ratio` of the elements, at least one, reached over `warm_up_steps` from `warm_up_from`.

    It is a share of each tensor, or, with `per="bucket"`, of all tensors that are summed together.
    The exponential warm-up is that of Deep Gradient Compression (Lin et al., ICLR'18).
    """

    ratio: float
    per: Scope = "tensor"
    warm_up_steps: int = 0
    warm_up_from: float = 0.25

    def __post_init__(self) -> None:
        require_share("ratio", self.ratio)
        require_share("warm_up_from", self.warm_up_from)
        require_scope(self.per)
        require_integer("warm_up_steps", self.warm_up_steps, 0, "a number of steps")
        if self.warm_up_steps:
            require_number(
                "warm_up_from",
                self.warm_up_from,
                lambda one: one >= self.ratio,
                f"is below the ratio, {self.ratio}; give at least the ratio",
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


@dataclass(frozen=True)
class TopK(_Share):
    """The largest elements: exactly, or by a threshold estimated from a share `sample` of all elements.

    It is top_k(x) of Aji and Heafield (EMNLP'17) and of Stich et al. (NeurIPS'18, section 2): x_i where |x_i|
    is among the k largest, else 0. Of equal elements, the first are taken. Contraction: |x - top_k(x)|^2 <=
    (1 - k/n) |x|^2. The sample is that of Lin et al. (ICLR'18). An estimated threshold may pass up to twice
    as many elements; if it passes more, the largest are taken.
    """

    sample: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample is not None:
            require_share("sample", self.sample)

    def positions(self, tensor: Floats, state: TensorState) -> Positions:
        """See `Sparsifier.positions`; `largest` needs no array of magnitudes."""
        if self.sample is None:
            return largest(tensor, self.count(tensor.size, state.step))
        return super().positions(tensor, state)

    def choose(self, magnitudes: Magnitudes, step: int, seed: int) -> Positions:
        """See `Sparsifier.choose`."""
        count = self.count(magnitudes.size, step)
        if self.sample is None:
            return largest(magnitudes, count)
        some = randomly(magnitudes.size, math.ceil(self.sample * magnitudes.size), seed)
        few = max(1, round(some.size * count / max(magnitudes.size, 1)))
        if some.size == 0:
            return some
        passed = np.flatnonzero(magnitudes >= np.partition(magnitudes[some], -few)[-few])
        return passed[largest(magnitudes[passed], count)] if passed.size > _TOO_MANY * count else passed


@dataclass(frozen=True)
class DGC(TopK):
    """Deep Gradient Compression (Lin et al., ICLR'18): a sampled top-k whose share warms up.

    Its momentum correction, momentum factor masking and local clipping are those of a
    memory: `Memory(momentum=0.9, clip=...)`.
    """

    sample: float | None = 0.01
    warm_up_steps: int = 1000


@dataclass(frozen=True)
class RandomK(_Share):
    """Elements at random: rand_k(x) of Stich et al. (NeurIPS'18, section 2).

    With `seeds="shared"` all workers choose the same elements, so that their values add up without an index.
    With "own" every worker chooses for itself, and n/k as many elements are non-zero in the sum. Contraction,
    in the mean: E |x - rand_k(x)|^2 = (1 - k/n) |x|^2.
    """

    seeds: Seeds = "shared"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("seeds", self.seeds, ("shared", "own"))

    @property
    def kind(self) -> Kind:
        """Additive if the seeds are shared, else indexed."""
        return "additive" if self.seeds == "shared" else "indexed"

    def choose(self, magnitudes: Magnitudes, step: int, seed: int) -> Positions:
        """See `Sparsifier.choose`."""
        return randomly(magnitudes.size, self.count(magnitudes.size, step), seed)

    def positions(self, tensor: Floats, state: TensorState) -> Positions:
        """See `Sparsifier.positions`."""
        own = state.worker_id + 1 if self.seeds == "own" else 0
        seed = [state.seed, own] if own else state.seed
        return np.sort(randomly(state.elements, self.count(state.elements, state.step), seed))

    def announced(self, tensor: Floats, state: TensorState) -> float:
        """See `Compressor.announced`: the largest of the values that are sent."""
        state.positions = self.positions(tensor, state)
        return super().announced(tensor[state.positions], state)

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        if self.kind == "indexed":
            return super().compress(tensor, state)
        assert state.positions is not None
        return Payload("additive", fixed_words(tensor[state.positions], state.bound, state.workers))

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        if self.kind == "indexed":
            return super().decompress(payload, state)
        assert state.positions is not None
        values = fixed_values(payload.data, state.bound, state.workers)
        return spread(values, state.positions, state.elements)


@dataclass(frozen=True)
class Threshold(Sparsifier):
    """The elements of at least magnitude `value`, above 0 (Strom, Interspeech'15; here without quantizing).

    What it leaves out is below `value` in each element: an absolute bound, and no contraction.
    """

    value: float
    per: Scope = "tensor"

    def __post_init__(self) -> None:
        require_number(
            "value", self.value, lambda one: 0 < one < math.inf, "is not a threshold; give a number above 0"
        )
        require_scope(self.per)

    def choose(self, magnitudes: Magnitudes, step: int, seed: int) -> Positions:
        """See `Sparsifier.choose`."""
        return np.flatnonzero(magnitudes >= self.value)


def spreads(compressor: Compressor) -> bool:
    """Return whether `decompress` of an indexed payload writes its values as they are to its positions."""
    ways = (Indexed.decompress, Sparsifier.decompress, RandomK.decompress)
    return type(compressor).decompress in ways


def spread(values: NDArray[Any], positions: Positions, elements: int) -> Values:
    """Return float64[elements]: `values` at `positions`, and zero elsewhere."""
    out = np.zeros(elements)
    out[positions] = values
    return out


def largest(values: Magnitudes, count: int) -> Positions:
    """Return int64[count]: the positions of the largest magnitudes, ascending; of equal ones the first.

    NaN is never among them, so that there may be fewer.
    """
    if values.dtype != np.float32:
        order = np.argsort(-np.abs(values), kind="stable")[:count]
        return np.sort(order[~np.isnan(values[order])])
    positions, space = np.empty(count, np.int64), kept_pages.empty(values.size + loops.COUNTS, np.int64)
    above, counts = space[: values.size], space[values.size :]
    return positions[: loops.largest(values.view(np.uint32), above, counts, positions)]


def randomly(elements: int, count: int, seed: int | list[int]) -> Positions:
    """Return int64[count]: distinct positions below `elements`, by `seed`."""
    return np.random.default_rng(seed).choice(elements, count, replace=False, shuffle=False)


def _magnitudes(tensor: Floats) -> Floats:
    return np.abs(tensor, out=kept_pages.empty(tensor.size, np.float32))


def require_share(field: str, share: object) -> None:
    """Raise CompressConfigError unless `share` is above 0, up to 1."""
    require_number(field, share, lambda one: 0 < one <= 1, "is not a share; give a number above 0, up to 1")
