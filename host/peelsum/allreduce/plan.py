"""The plan of a step: which tensors are summed and how, and the digest by which workers agree on it.

A plan is made of configuration and of values that all workers share; nothing that one worker measures.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from peelsum.allreduce.indexes import Index
from peelsum.allreduce.summation import Words
from peelsum.codec import CELLS_PER_CANDIDATE

#: How a tensor's values travel: all of them, those at the index's positions, or a sketch of those.
Form = Literal["dense", "compact", "sketch"]
FORMS: tuple[Form, ...] = ("dense", "compact", "sketch")
#: The types that are summed; others are part of a plan so that all workers can refuse them together.
SUPPORTED_DTYPES = ("float32", "float16", "bfloat16")
#: A digest and its complement, as 32-bit words.
AGREEMENT_WORDS = 4
#: A predicted exponent may be this much too large: bits of precision that a step can lose.
SLACK = 4
_DIGEST_BYTES = 8
#: How many tensors a message names.
NAMED = 6


@dataclass(frozen=True)
class Prediction:
    """What a tensor's values can be sent by before the workers have agreed, from the step before.

    exponent_field: if some value's is larger, all are sent again. candidates: what a sketch is sized for.
    """

    exponent_field: int
    candidates: int

    def holds(self, exponent_field: int) -> bool:
        """Whether the exponent that all workers agreed on is near enough below the predicted one."""
        return 0 <= self.exponent_field - exponent_field <= SLACK


@dataclass(frozen=True)
class Choice:
    """How a tensor travels in one step.

    `index` is None for a dense one. `lanes` of a sketch: None for as many as a chunk has.
    """

    form: Form
    index: Index | None = None
    prediction: Prediction | None = None
    lanes: int | None = None


@dataclass(frozen=True)
class TensorPlan:
    """One tensor of a step."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    choice: Choice

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a tensor without dimensions."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype}{list(self.shape)} {self.choice.form}"


@dataclass(frozen=True)
class Settings:
    """What is the same in every step.

    limbs: int32 words per value, 1 or 2. estimate: for experiments, what peeling leaves over is estimated and
    not exchanged. choices: how forms are chosen, in any words that differ when it does.
    """

    seed: int = 0
    average: bool = False
    cells_per_candidate: float = CELLS_PER_CANDIDATE
    limbs: int = 1
    estimate: bool = False
    choices: str = ""


@dataclass(frozen=True)
class Plan:
    """All that workers must have in common before they exchange values."""

    tensors: tuple[TensorPlan, ...]
    workers: int
    lanes: int
    settings: Settings

    @cached_property
    def digest(self) -> int:
        """64 bits that differ, but for a chance of 2**-64, when anything in the plan does."""
        return _digest(repr(self))

    @cached_property
    def request(self) -> int:
        """`digest` without the choices, which follow from this and from steps that workers agreed on."""
        tensors = [(tensor.name, tensor.shape, tensor.dtype) for tensor in self.tensors]
        return _digest(repr((tensors, self.workers, self.lanes, self.settings)))

    def digest_at(self, step: int) -> int:
        """`digest` for one step of a worker: 64 bits that differ when the plan or the step does."""
        return _digest(f"{self.digest}/{step}")

    def __str__(self) -> str:
        named = [str(tensor) for tensor in self.tensors[:NAMED]]
        if len(self.tensors) > NAMED:
            named.append(f"and {len(self.tensors) - NAMED} more")
        what = "average" if self.settings.average else "sum"
        return (
            f"{self.digest:#018x} ({what} over {self.workers} workers of {', '.join(named) or 'no tensors'})"
        )


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest())


def agreement_words(digest: int) -> Words:
    """A digest and its complement: uint32[AGREEMENT_WORDS], to be OR-ed over workers."""
    halves = [digest & 0xFFFFFFFF, digest >> 32]
    return np.array([*halves, *(half ^ 0xFFFFFFFF for half in halves)], np.uint32)


def agreed(words: Words) -> bool:
    """Whether all digests in OR-ed `agreement_words` are equal: else some bit is set both ways, or, if there
    is none at all, neither way.
    """
    half = AGREEMENT_WORDS // 2
    return bool((words[:half] ^ words[half:AGREEMENT_WORDS] == 0xFFFFFFFF).all())


def unsupported(tensors: Sequence[TensorPlan]) -> TensorPlan | None:
    """The first tensor of a type that is not summed, if any."""
    return next((tensor for tensor in tensors if tensor.dtype not in SUPPORTED_DTYPES), None)
