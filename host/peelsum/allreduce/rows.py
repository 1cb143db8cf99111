"""Sum rows of tables of which each worker has a few: agree on the rows, then send only these.

Theory of operation. Every worker has ascending row numbers, and a value of fixed size for each. These are the
exchanges:

    exchange   words                                              when
    rows       gathered: a digest, counts, the packed row numbers always; once more beyond one packet
    scales     OR: scales of blocks of the shared rows' floats    if rows are shared
    values     ADD: the shared rows' numbers                      likewise
    alone      gathered: rows that a single worker has            if there are such rows

All workers know then who has which row. What a single worker has needs no sum: it travels as it is. No step
takes memory or time by the length of a table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.errors import PlanMismatchError
from peelsum.codec import segment_codec
from peelsum.codec.segments import Segment, Table
from peelsum.summation import Part, Summation, Words

Rows = NDArray[np.int64]
Floats = NDArray[np.float32]
#: The first packet of a message: its length and a digest, then words of it; at least so many words in all.
_HEAD_WORDS, _FEWEST_WORDS = 3, 32
_WORD_BITS = 32


class GatheringSummation(Summation, Protocol):
    """A backend that also gathers words."""

    def all_gather(self, words: Words) -> Words:
        """See `PieceSummation.all_gather`."""


class RowUnion(NamedTuple):
    """The rows that any worker has of a table."""

    rows: Rows
    """int64[u], ascending."""
    places: Sequence[Rows]
    """Of each worker, int64[n]: where its rows are among them."""
    shared: NDArray[np.bool_]
    """bool[u]: whether several workers have the row."""

    def alone(self, worker: int) -> Rows:
        """Return where the rows are that only this worker has: int64[k]."""
        places = self.places[worker]
        return places[~self.shared[places]]


def pack_rows(rows: Rows, length: int) -> Words:
    """Return words for ascending, distinct numbers below `length`, as Elias and Fano code them.

    Of n numbers, the lower log2(length / n) bits of each, then the upper bits in unary: 2 to 3 bits a number
    more. `packed_words` says how many words.
    """
    low = _low_bits(rows.size, length)
    bits = np.zeros(_WORD_BITS * packed_words(rows.size, length), np.uint8)
    lower = bits[: rows.size * low].reshape(rows.size, low)
    for bit in range(low):
        lower[:, bit] = rows >> bit & 1
    bits[rows.size * low + (rows >> low) + np.arange(rows.size)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def unpack_rows(words: Words, count: int, length: int) -> Rows:
    """Return the int64[count] of which `pack_rows` made words. Raises ValueError for other words."""
    low = _low_bits(count, length)
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")
    rows = np.flatnonzero(bits[count * low :])
    if rows.size != count:
        raise ValueError(f"rows: {rows.size} in the words of {count}")
    rows = (rows - np.arange(count)) << low
    lower = bits[: count * low].reshape(count, low)
    for bit in range(low):
        rows |= lower[:, bit].astype(np.int64) << bit
    return rows


def packed_words(count: int, length: int) -> int:
    """Return how many words `pack_rows` makes of `count` numbers below `length`."""
    if not count:
        return 0
    low = _low_bits(count, length)
    return -(-(count * (low + 1) + (length - 1 >> low) + 1) // _WORD_BITS)


def _low_bits(count: int, length: int) -> int:
    return max(length // max(count, 1), 1).bit_length() - 1


def unite_rows(
    summation: GatheringSummation, tables: Sequence[tuple[Rows, int]], what: str
) -> list[RowUnion]:
    """Return the union of all workers' rows in each table.

    tables: this worker's rows, ascending and distinct, and the table's length.
    what: describes the tables. Raises PlanMismatchError if it is not the same on all workers.
    """
    counts = np.array([rows.size for rows, _ in tables], np.uint32)
    message = np.concatenate([counts, *(pack_rows(*table) for table in tables)])
    messages = _gathered(summation, message, what)
    of_workers = [_rows_of(one, [length for _, length in tables]) for one in messages]
    return [_united(of_table) for of_table in zip(*of_workers, strict=True)]


def _gathered(summation: GatheringSummation, message: Words, what: str) -> list[Words]:
    """Return all workers' messages, of any lengths: the first packet of each, then the longest rest."""
    digest = int.from_bytes(hashlib.blake2b(what.encode(), digest_size=8).digest())
    first = np.zeros(max(summation.lanes, _FEWEST_WORDS), np.uint32)
    begin = message[: first.size - _HEAD_WORDS]
    first[:_HEAD_WORDS] = message.size, digest & 0xFFFFFFFF, digest >> 32
    first[_HEAD_WORDS:][: begin.size] = begin
    packets = summation.all_gather(first).reshape(summation.workers, first.size)
    if (packets[:, 1:_HEAD_WORDS] != first[1:_HEAD_WORDS]).any():
        raise PlanMismatchError(
            f"sum of rows: workers gave other tensors than worker {summation.worker_id}, which has {what}; "
            "give sparse tensors of the same shapes, dtypes and dimensions, in the same order, on all"
        )
    lengths = packets[:, 0].tolist()
    rest = np.zeros(max(0, max(lengths) - (first.size - _HEAD_WORDS)), np.uint32)
    rest[: message.size - begin.size] = message[begin.size :]
    rests = [rest] * summation.workers
    if rest.size:
        rests = list(summation.all_gather(rest).reshape(summation.workers, -1))
    pairs = zip(packets[:, _HEAD_WORDS:], rests, lengths, strict=True)
    return [np.concatenate([packet, rest])[:length] for packet, rest, length in pairs]


def _rows_of(message: Words, lengths: Sequence[int]) -> list[Rows]:
    counts = message[: len(lengths)].tolist()
    sizes = [packed_words(count, length) for count, length in zip(counts, lengths, strict=True)]
    ends = np.cumsum([len(lengths), *sizes]).tolist()
    pieces = [message[a:b] for a, b in pairwise(ends)]
    return [unpack_rows(*one) for one in zip(pieces, counts, lengths, strict=True)]


def _united(of_workers: Sequence[Rows]) -> RowUnion:
    rows, counts = np.unique(np.concatenate(of_workers), return_counts=True)
    return RowUnion(rows, [np.searchsorted(rows, one) for one in of_workers], counts > 1)


class RowSums(NamedTuple):
    """Sums of floats, and how exact they are."""

    values: Sequence[Floats]
    """Each tensor's sum or average, float32[n]; NaN if it was not finite on some worker."""
    scales: Sequence[int]
    """Of each tensor, the smallest scale of a block."""


def sum_floats(summation: Summation, tensors: Sequence[Floats], *, average: bool) -> RowSums:
    """Sum float32[n] tensors over workers in fixed point, as the dense form of `Allreduce` does.

    All workers must know that their tensors are alike: nothing is compared. A tensor may be empty.
    """
    codecs, nothing = segment_codec("cpu"), np.empty(0, np.int32)
    given = [one for one in tensors if one.size]
    if not given:
        return RowSums(list(tensors), [0] * len(tensors))
    table = Table([Segment(one.size, sparse=False) for one in given])
    codec = codecs(table, given, [None] * len(given), summation.workers)
    header = np.zeros(table.scale_words, np.uint32)
    codec.write_scales(header)
    (united,) = summation.sum_words([Part(header, "or")])
    codec.read_scales(united)
    count, _ = codec.place(np.empty(0, np.uint32))
    numbers = np.empty(count, np.int32)
    codec.write_dense(numbers)
    if count:
        (total,) = summation.sum_words([Part(numbers.view(np.uint32), "add")])
        numbers = total.view(np.int32)
    sums = iter(codec.read(numbers, nothing, summation.workers if average else 1))
    lowest = iter(np.minimum.reduceat(codec.scales, table.blocks[:-1]).tolist())
    pairs = [(next(sums), next(lowest)) if one.size else (one, 0) for one in tensors]
    return RowSums(*map(list, zip(*pairs, strict=True)))
