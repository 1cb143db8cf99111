"""The interface of a gradient compressor: a tensor becomes a payload, and payloads become values.

A compressor keeps nothing itself: `TensorState` holds what it may depend on, `peelsum.compress.Memory` the
residuals. What `decompress` returns is exact in float64, so residuals are exact, too.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from peelsum.compress.errors import CompressConfigError
from peelsum.summation import Words

#: One tensor's or bucket's gradient, flat: float32[n], finite.
Floats = NDArray[np.float32]
#: The values that payloads represent: float64[n], exact.
Values = NDArray[np.float64]
Positions = NDArray[np.int64]
#: How payloads of several workers become a sum; see `Payload`.
Kind = Literal["additive", "indexed", "gather"]
#: Whether elements are compressed within their tensor or within their whole bucket.
Scope = Literal["tensor", "bucket"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


@dataclass(frozen=True, eq=False)
class Payload:
    """One worker's data of one tensor, or the sum of several workers' data.

    There are three kinds of sum. Additive payloads of equal length are added up word by word, modulo 2**32,
    by a switch or an all_reduce. Indexed payloads are values and their positions, which add up once the
    workers share an index, as in the exact all-reduce. Gather payloads are bytes that every worker needs
    from all.
    """

    kind: Kind
    """How it is summed."""

    data: NDArray[Any]
    """Additive: uint32[w]; indexed: float32[k]; gather: uint8[b]."""

    positions: Positions | None = None
    """int64[k]: the positions of indexed values; else None."""

    added: int = 1
    """How many workers' additive payloads it is the sum of."""

    @property
    def nbytes(self) -> int:
        """Bytes of the data, and four for each position of indexed values."""
        return int(self.data.nbytes) + (0 if self.positions is None else 4 * len(self.positions))

    def total(self, words: Words, workers: int) -> Payload:
        """Return the additive payload with the sum over `workers` workers as its words."""
        return replace(self, data=words, added=workers)


@dataclass(eq=False)
class TensorState:
    """What a compressor may depend on, for one tensor in one step.

    Only `worker_id` differs between workers. The sum's driver makes it, and fills in what workers agree on.
    """

    shape: tuple[int, ...]
    """The tensor's shape before it was made flat."""

    seed: int = 0
    """The seed of this tensor and step, 0 to 2**64 - 1."""

    step: int = 0
    """Number of the step, from 0."""

    worker_id: int = 0
    """This worker's number."""

    workers: int = 1
    """Number of workers."""

    round: int = 0
    """Number of the round, for compressors with several `rounds`."""

    bound: float = 0.0
    """The largest magnitude that any worker announced in this round."""

    elected: int = 0
    """The worker that decides a shared index."""

    positions: Positions | None = None
    """int64[k]: the positions that all workers send, if they share them."""

    summed: Payload | None = None
    """The sum of the previous round's payloads."""

    scratch: dict[str, Any] = field(default_factory=dict)
    """What a compressor computes once and uses again within the step."""

    kept: dict[str, NDArray[Any]] = field(default_factory=dict)
    """What a compressor keeps for the tensor's next step; it is part of checkpoints."""

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    def random(self, count: int) -> Words:
        """Return uint32[count]: random words of this worker, tensor and step."""
        generator = np.random.default_rng([self.seed, self.round, 1 + self.worker_id])
        return generator.integers(0, 2**32, count, np.uint32)

    def shared_random(self, count: int) -> Words:
        """Return uint32[count]: random words of this tensor and step, the same on all workers."""
        return np.random.default_rng([self.seed, self.round, 0]).integers(0, 2**32, count, np.uint32)


class SharedIndex(Protocol):
    """The positions of a tensor's elements that all workers send, which one worker decides."""

    def turn(self, state: TensorState) -> int | None:
        """Return the worker that decides in this step, or None if the largest `merit` does."""

    def merit(self, tensor: Floats, state: TensorState) -> float:
        """Return a number, at least 0; the first of the workers with the largest decides."""

    def words(self, state: TensorState) -> int:
        """Return the number of words of an index, the same on all workers."""

    def encode(self, tensor: Floats, state: TensorState) -> Words:
        """Return uint32[words(state)]: the positions that this worker would decide."""

    def decode(self, words: Words, state: TensorState) -> Positions:
        """Return int64[k], ascending: the positions in a worker's words."""


class Compressor(ABC):
    """A method of gradient compression.

    In every round of an additive compressor, workers call `announced` and set `TensorState.bound` to the
    largest over workers, share an `index` if there is one, call `compress`, and sum. Of the other
    compressors, they call only `compress`.
    Compressors are frozen dataclasses, whose text is part of what workers agree on.
    """

    rounds: ClassVar[int] = 1
    #: Whether the mean of what is sent is the tensor.
    unbiased: ClassVar[bool] = False
    #: Whether convergence needs error feedback, which is then the default.
    needs_feedback: ClassVar[bool] = True

    @property
    @abstractmethod
    def per(self) -> Scope:
        """Whether elements are compressed within a tensor or within all tensors of a bucket."""

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """How its payloads are summed."""

    @property
    def index(self) -> SharedIndex | None:
        """The index that one worker decides for all in every step; None if there is none."""
        return None

    def check(self, workers: int) -> None:  # noqa: B027  # most take any number
        """Raise CompressConfigError if the sum over `workers` workers would not fit."""

    def announced(self, tensor: Floats, state: TensorState) -> float:
        """Return a bound on the magnitudes of the numbers in this worker's next payload."""
        return float(np.abs(tensor).max(initial=0.0))

    @abstractmethod
    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """Return the payload of a finite tensor; the tensor is not modified."""

    @abstractmethod
    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """Return float64[n]: the values that a payload, or the sum of additive payloads, represents."""


def seed_of(seed: int, step: int, name: str) -> int:
    """Return the seed of a tensor in a step, 0 to 2**64 - 1."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}/{name}".encode(), digest_size=8).digest())


def require_number(field: str, value: object, allowed: Callable[[float], bool], remedy: str) -> None:
    """Raise CompressConfigError unless `value` is a real number and allowed."""
    if isinstance(value, bool) or not isinstance(value, Real) or not allowed(float(value)):
        raise CompressConfigError(f"{field}: {value!r} {remedy}")


def require_integer(field: str, value: object, least: int, what: str) -> None:
    """Raise CompressConfigError unless `value` is an integer from `least` on."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise CompressConfigError(f"{field}: {value!r} is not {what}; give an integer from {least} on")


def require_scope(scope: object) -> None:
    """Raise CompressConfigError unless `scope` is a `Scope`."""
    if scope not in SCOPES:
        raise CompressConfigError(f"per: {scope!r} is unknown; use 'tensor' or 'bucket'")


def require_choice(field: str, value: object, choices: tuple[Any, ...]) -> None:
    """Raise CompressConfigError unless `value` is one of `choices`."""
    if not any(type(value) is type(one) and value == one for one in choices):
        raise CompressConfigError(f"{field}: {value!r} is unknown; use {', '.join(map(repr, choices))}")
