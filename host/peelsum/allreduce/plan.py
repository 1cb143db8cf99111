"""The plan of a step: which tensors are summed and how, and the digest with which workers agree on it.

A plan contains configuration and values that all workers share, and no measurement of a single worker.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, get_args

import numpy as np

from peelsum.allreduce.errors import InvalidRequestError, PlanMismatchError
from peelsum.allreduce.indexes import Index
from peelsum.codec import ROW
from peelsum.codec.segments import Segment, SegmentTable
from peelsum.summation import Part, Words
from peelsum.wire import packet_bytes

#: How a tensor's values are sent: all, those at the index's positions, or a sketch of the latter.
Form = Literal["dense", "compact", "sketch"]
FORMS: tuple[Form, ...] = get_args(Form)
#: The dtypes that can be summed. A plan may contain others, so that all workers reject them together.
SUPPORTED_DTYPES = ("float32", "float16", "bfloat16")
#: Their elements' sizes in bytes.
_SIZES = dict(zip(SUPPORTED_DTYPES, (4, 2, 2), strict=True))
#: A digest and its complement, as 32-bit words.
AGREEMENT_WORDS = 4
#: Raise it when the words of a plan, or their order, change: workers of both versions then refuse each other.
_WORDS_VERSION = 8
#: How many tensors a message names.
NAMES_SHOWN = 6


@dataclass(frozen=True)
class Choice:
    """How a tensor is sent in one step."""

    form: Form
    index: Index | None = None
    """The index of its part of the sparse vector; None for the dense form."""
    scale_block: int = ROW
    """Elements in each block that has a scale of its own."""


@dataclass(frozen=True)
class TensorPlan:
    """One tensor of a step."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Name of the dtype; supported or not."""
    choice: Choice

    @cached_property
    def elements(self) -> int:
        """Number of elements; 1 for a tensor without dimensions."""
        return math.prod(self.shape)

    @cached_property
    def key(self) -> tuple[str, int]:
        """Name and number of elements: the key of the tensor's statistics in `History`."""
        return self.name, self.elements

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype}{list(self.shape)} {self.choice.form}"


@dataclass(frozen=True)
class PlanSettings:
    """The settings that are the same in every step."""

    seed: int = 0
    """Seed of every layout."""
    average: bool = False
    """Whether results are divided by the number of workers."""
    cells_per_candidate: float | None = None
    """Size of sketches; None for as many cells as `enough_cells` returns."""
    choices: str = ""
    """The settings of the form chooser as text, which differs if they do."""


@dataclass(frozen=True)
class IndexPart:
    """A part of the sparse vector: the segments that share an index."""

    index: Index
    keys: tuple[tuple[str, int], ...]
    """The keys of its tensors."""
    segments: slice
    """The range of its segments."""
    words: slice
    """Its words in the bitmap of the sparse vector."""
    sent: slice
    """The words of its index in the header."""

    @cached_property
    def elements(self) -> int:
        """Number of elements, with the padding of rows."""
        return ROW * int(self.words.stop - self.words.start)


class Layout:
    """Where the tensors of a plan lie: the table of their segments, and the parts of the sparse vector."""

    def __init__(self, tensors: Sequence[TensorPlan]) -> None:
        dense: list[int] = []
        parts: dict[Index, list[int]] = {}
        for number, tensor in enumerate(tensors):
            index = tensor.choice.index
            if tensor.elements:
                (dense if index is None else parts.setdefault(index, [])).append(number)
        #: The numbers of the tensors in the order of their segments. A tensor without elements has none.
        self.order = [*dense, *chain.from_iterable(parts.values())]
        ordered = [tensors[number] for number in self.order]
        #: The segment of each tensor, or -1 without elements: int64[tensors].
        self.segments = np.full(len(tensors), -1)
        self.segments[self.order] = np.arange(len(self.order))
        #: The names and the keys of the tensors, in the order of their segments.
        self.names = tuple(tensor.name for tensor in ordered)
        self.keys = tuple(tensor.key for tensor in ordered)
        choices = [(tensor.elements, tensor.choice) for tensor in ordered]
        self.table = SegmentTable(
            [Segment(elements, choice.index is not None, choice.scale_block) for elements, choice in choices]
        )
        self.parts: list[IndexPart] = []
        segment, sent = 0, self.table.scale_words
        for index, numbers in parts.items():
            first, end = (int(self.table.first_words[at]) for at in (segment, segment + len(numbers)))
            words = index.words(ROW * (end - first))
            keys = tuple(tensors[number].key for number in numbers)
            begin = self.table.dense + segment
            segments = slice(begin, begin + len(numbers))
            self.parts.append(IndexPart(index, keys, segments, slice(first, end), slice(sent, sent + words)))
            segment, sent = segment + len(numbers), sent + words
        #: Number of words of the header: of scales, and of indexes.
        self.header_words = sent
        #: Number of words of each part's index.
        self.index_words = [part.sent.stop - part.sent.start for part in self.parts]
        #: The words of the header that are the bitmap of the whole sparse vector; None with other indexes.
        self.bitmap_in_header: slice | None = None
        if [index.form for index in parts] in ([], ["bitmap"]):
            self.bitmap_in_header = slice(self.table.scale_words, sent)


@dataclass(frozen=True)
class Plan:
    """Everything that must be the same on all workers before they exchange values."""

    tensors: tuple[TensorPlan, ...]
    workers: int
    lanes: int
    settings: PlanSettings
    one_round: bool = False
    """Whether the step is done in one round, as predicted from earlier steps."""

    @cached_property
    def digest(self) -> int:
        """64-bit hash of the plan: different plans have equal digests with probability 2**-64."""
        return digest_of(f"{_WORDS_VERSION} {self!r}")

    @cached_property
    def layout(self) -> Layout:
        """Where the tensors lie."""
        return Layout(self.tensors)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The tensors' names."""
        return tuple(tensor.name for tensor in self.tensors)

    @cached_property
    def keys(self) -> tuple[tuple[str, int], ...]:
        """The tensors' keys."""
        return tuple(tensor.key for tensor in self.tensors)

    @cached_property
    def dense_bytes(self) -> int:
        """Bytes of UDP payload in which all elements would be sent as they are."""
        size = sum(tensor.elements * _SIZES[tensor.dtype] for tensor in self.tensors)
        return -(-size // (4 * self.lanes)) * self.packet_bytes

    @cached_property
    def packet_bytes(self) -> int:
        """Bytes of UDP payload of a packet."""
        return packet_bytes(self.lanes)

    @cached_property
    def label(self) -> str:
        """The tensors' names for messages: the first few, and how many more there are."""
        more = [f"{len(self.names) - NAMES_SHOWN} more"] if len(self.names) > NAMES_SHOWN else []
        return " and ".join([", ".join(map(repr, self.names[:NAMES_SHOWN])), *more])

    @cached_property
    def request(self) -> int:
        """64-bit hash of the plan without its choices, which follow from these fields and the history."""
        tensors = [(tensor.name, tensor.shape, tensor.dtype) for tensor in self.tensors]
        return digest_of(repr((tensors, self.workers, self.lanes, self.settings)))

    def __str__(self) -> str:
        named = [str(tensor) for tensor in self.tensors[:NAMES_SHOWN]]
        if len(self.tensors) > NAMES_SHOWN:
            named.append(f"and {len(self.tensors) - NAMES_SHOWN} more")
        what = "average" if self.settings.average else "sum"
        return (
            f"{self.digest:#018x} ({what} over {self.workers} workers of {', '.join(named) or 'no tensors'})"
        )


def digest_of(text: str) -> int:
    """Return a hash of a text, 0 to 2**64 - 1, the same on all workers."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def agreement_words(digest: int) -> Words:
    """Return a digest and its complement: uint32[AGREEMENT_WORDS], to be OR-ed over workers."""
    words = digest & 0xFFFFFFFF, digest >> 32
    return np.array([*words, words[0] ^ 0xFFFFFFFF, words[1] ^ 0xFFFFFFFF], np.uint32)


def agreed(words: Words) -> bool:
    """Return whether all digests in OR-ed `agreement_words` are equal.

    If digests differ, some bit is set in both halves. If nobody contributed, no bit is set in either.
    """
    low, high, not_low, not_high = words[:AGREEMENT_WORDS].tolist()
    return bool(low ^ not_low == high ^ not_high == 0xFFFFFFFF)


def agreement_part(digest: int, error_message: Callable[[], str]) -> Part:
    """Return a part whose sum raises PlanMismatchError, on every worker, unless all have the same digest."""

    def check(words: Words) -> None:
        if not agreed(words):
            raise PlanMismatchError(error_message())

    return Part(agreement_words(digest), "or", check)


def unsupported_dtype(name: str, dtype: str) -> InvalidRequestError:
    """Return the error for a tensor whose dtype is not supported."""
    supported = ", ".join(SUPPORTED_DTYPES)
    return InvalidRequestError(
        f"dtype: {name!r} is {dtype}; convert it to one of {supported} on every worker"
    )
