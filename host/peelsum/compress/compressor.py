"""The interface of a gradient compressor, which makes a payload of a tensor, and values of payloads.

A compressor has no state: `TensorState` has all on which it may depend, and `peelsum.compress.Memory` has the
residuals. The values that `decompress` returns are exact in float64, so residuals are exact, too.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, dataclass_transform, get_type_hints

import numpy as np
from numpy.typing import NDArray

from peelsum.compress.arguments import Argument, CompressConfigError
from peelsum.summation import Words

#: One tensor's or bucket's gradient, flat: float32[n], finite.
Floats = NDArray[np.float32]
#: The values that payloads represent: float64[n], exact.
Values = NDArray[np.float64]
Positions = NDArray[np.int64]
#: A worker's data of one tensor: uint32[w] of kind "additive", float32[k] "indexed", uint8[b] "gather".
Payload = NDArray[Any]
#: How the payloads of several workers are summed. A switch or an all_reduce adds additive payloads, which
#: have equal length, word by word, modulo 2**32. The exact all-reduce adds indexed payloads, which are values
#: at `TensorState.positions`. Gathered payloads are bytes that every worker receives from all others.
Kind = Literal["additive", "indexed", "gather"]
#: Whether elements are compressed within their tensor or within their whole bucket.
Scope = Literal["tensor", "bucket"]


@dataclass(eq=False)
class TensorState:
    """The values on which a compressor may depend, for a tensor in a step.

    Only `worker_id` differs between workers. `CompressedSum` makes it, and sets the values that workers have
    exchanged.
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
    positions: Positions | None = None
    """int64[k]: the positions of the elements to send, once they have been chosen."""
    summed: Words | None = None
    """The sum of the previous round's payloads."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """Values that a compressor computes once and uses again within the step."""
    kept: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays that a compressor keeps for the tensor's next step; they are part of checkpoints."""

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    def generator(self, seed: int, *, per_worker: bool) -> np.random.Generator:
        """Return a generator for this tensor, step and round.

        per_worker: whether each worker gets a different one.
        """
        return np.random.default_rng([self.seed, seed, self.round, 1 + self.worker_id if per_worker else 0])

    def random(self, count: int, seed: int, *, per_worker: bool = True) -> Words:
        """Return uint32[count]: random words. per_worker: whether each worker gets different ones."""
        return self.generator(seed, per_worker=per_worker).integers(0, 2**32, count, np.uint32)


_registered: dict[str, type[Compressor]] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True, repr=False)
class Compressor(ABC):
    """The base class of methods of gradient compression.

    A subclass becomes a frozen dataclass, whose fields are the arguments, with allowed values in their types.
    Unless it is `abstract`, it is registered by its `name`. In every round of an additive compressor, workers
    call `announced`, set `TensorState.bound` to the largest result of all workers, share an index if there is
    one, call `compress`, and sum. Of other compressors, they call only `compress`. Workers check that the
    compressor's `repr` is the same on all of them.
    """

    #: Whether elements are compressed within a tensor or within all tensors of a bucket.
    per: Scope = field(default="tensor", kw_only=True)

    #: The name on command lines.
    name: ClassVar[str]
    #: The arguments, positional ones first.
    arguments: ClassVar[Mapping[str, Argument]]
    rounds: ClassVar[int] = 1
    #: Whether the expected value of the sent values is the tensor.
    unbiased: ClassVar[bool] = False
    #: Whether convergence needs error feedback, which is then the default.
    needs_feedback: ClassVar[bool] = True

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        """Make the class a dataclass, and register it. Raises CompressConfigError for missing attributes."""
        documented = bool(vars(cls).get("__doc__"))  # before a dataclass writes one
        dataclass(frozen=True, repr=False)(cls)
        if abstract:
            return
        where, name = cls.__qualname__, vars(cls).get("name")
        if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            raise CompressConfigError(f"{where}: name is {name!r}; write name = 'my-own', or abstract=True")
        missing = [
            attribute
            for attribute in dir(cls)
            if getattr(getattr(cls, attribute, None), "__isabstractmethod__", False)
        ]
        missing += [argument.name for argument in fields(cls) if argument.default is MISSING]
        if missing or not documented:
            raise CompressConfigError(
                f"{where}: {missing[0] if missing else 'docstring'} is missing; "
                "declare kind and docstring, and a default for every argument"
            )
        other = _registered.get(name)
        if other and (other.__module__, other.__qualname__) != (cls.__module__, where):
            raise CompressConfigError(f"{where}: {name!r} is the name of {other.__qualname__}; give another")
        hints = get_type_hints(cls, include_extras=True)
        ordered = sorted(fields(cls), key=lambda argument: bool(argument.kw_only))
        cls.arguments = {item.name: Argument.of(item.name, hints[item.name]) for item in ordered if item.init}
        _registered[name] = cls

    def __post_init__(self) -> None:
        """Raise CompressConfigError for an argument that is not allowed."""
        for name, argument in self.arguments.items():
            argument.check(getattr(self, name))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.arguments)
        return f"{type(self).__name__}({arguments})"

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """How its payloads are summed."""

    @property
    def momentum(self) -> float:
        """The momentum of error feedback; 0 for none."""
        return 0.0

    @property
    def clip(self) -> float | None:
        """The limit of a gradient's 2-norm, times the square root of the number of workers; None for none."""
        return None

    @property
    def within_bound(self) -> bool:
        """Whether no number of a payload is larger than the tensor's largest."""
        return True

    def check(self, workers: int) -> None:  # noqa: B027  # most take any number
        """Raise CompressConfigError if the sum over `workers` workers would not fit."""

    def announced(self, tensor: Floats, state: TensorState) -> float:
        """Return a bound on the magnitudes of the numbers in this worker's next payload."""
        return float(np.abs(tensor).max(initial=0.0))

    @abstractmethod
    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """Return the payload of a finite tensor; the tensor is not modified."""

    @abstractmethod
    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        """Return float64[n]: the values of a payload, or of the sum of `added` workers' additive payloads."""


def registered() -> Mapping[str, type[Compressor]]:
    """Return all compressors by their names, in the order in which they were defined."""
    return MappingProxyType(_registered)
