"""Agree on the rows of tables of which each worker has a few, to sum these rows only.

Theory of operation. Every worker has ascending row numbers, and a value of fixed size for each. These are the
exchanges of a sum:

    exchange   words                                              when
    rows       gathered: a digest, counts, the packed row numbers always; once more beyond one packet
    scales     OR: scales of blocks of the shared rows' floats    if rows are shared
    values     ADD: the shared rows' numbers                      likewise
    unshared   gathered: rows that a single worker has            if there are such rows

After the first exchange all workers know which worker has which rows. A row that a single worker has needs no
sum: it is sent as it is. Memory and time depend on the workers' rows, not on the length of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.errors import PlanMismatchError
from peelsum.allreduce.plan import digest_of
from peelsum.codec import HOST
from peelsum.codec.segments import Segment, SegmentTable
from peelsum.summation import Part, Summation, Words

Rows = NDArray[np.int64]
Floats = NDArray[np.float32]
#: Words before the message in its first packet: its length and a digest. Fewest words of that packet.
_HEAD_WORDS, _FEWEST_WORDS = 3, 32
_WORD_BITS = 32


class GatheringSummation(Summation, Protocol):
    """A backend that also gathers words."""

    def all_gather(self, words: Words) -> Words:
        """Return the words of all workers: uint32[workers * k] of uint32[k]."""


class RowUnion(NamedTuple):
    """The union of all workers' rows of a table."""

    rows: Rows
    """int64[u], ascending."""
    places: Sequence[Rows]
    """For each worker, int64[n]: the indices of its rows in `rows`."""
    shared: NDArray[np.bool_]
    """bool[u]: whether several workers have the row."""

    def unshared(self, worker: int) -> Rows:
        """Return the indices in `rows` of the rows that only this worker has: int64[k]."""
        indices = self.places[worker]
        return indices[~self.shared[indices]]


def pack_rows(rows: Rows, length: int) -> Words:
    """Return the Elias-Fano code of ascending, distinct numbers below `length`: uint32[`packed_words`].

    Of n numbers, it has the lower log2(length / n) bits of each, then the upper bits in unary, which take 2
    to 3 bits a number.
    """
    low = _low_bits(rows.size, length)
    bits = np.zeros(_WORD_BITS * packed_words(rows.size, length), np.uint8)
    lower = bits[: rows.size * low].reshape(rows.size, low)
    for bit in range(low):
        lower[:, bit] = rows >> bit & 1
    bits[rows.size * low + (rows >> low) + np.arange(rows.size)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def unpack_rows(words: Words, count: int, length: int) -> Rows:
    """Return the int64[count] that `pack_rows` packed. Raises ValueError if the words hold another count."""
    low = _low_bits(count, length)
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")
    rows = np.flatnonzero(bits[count * low :])
    if rows.size != count:
        raise ValueError(
            f"rows: {rows.size} in words for {count}; use the count and length they were packed with"
        )
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
    """Return how many low bits of each number are packed as they are."""
    return max(length // max(count, 1), 1).bit_length() - 1


def unite_rows(
    summation: GatheringSummation, tables: Sequence[tuple[Rows, int]], what: str
) -> list[RowUnion]:
    """Return the union of all workers' rows in each table.

    tables: for each, this worker's rows, int64[n], ascending and distinct, and the table's length.
    what: a description of the tables. Raises PlanMismatchError if it is not the same on all workers.
    """
    counts = np.array([rows.size for rows, _ in tables], np.uint32)
    message = np.concatenate([counts, *(pack_rows(*table) for table in tables)])
    messages = _gather_messages(summation, message, what)
    #: For each table, the rows of each worker.
    by_table: list[list[Rows]] = [[] for _ in tables]
    for message in messages:
        begin = len(tables)
        for count, (_, length), by_worker in zip(message[:begin].tolist(), tables, by_table, strict=True):
            words = packed_words(count, length)
            by_worker.append(unpack_rows(message[begin : begin + words], count, length))
            begin += words
    unions = []
    for by_worker in by_table:
        rows, owners = np.unique(np.concatenate(by_worker), return_counts=True)
        unions.append(RowUnion(rows, [np.searchsorted(rows, local) for local in by_worker], owners > 1))
    return unions


def _gather_messages(summation: GatheringSummation, message: Words, what: str) -> list[Words]:
    """Return all workers' messages, which may have different lengths, in the order of the workers.

    A first exchange gathers the first packet of each message; a second one the rest, padded to the longest.
    Raises PlanMismatchError if `what` is not the same on all workers.
    """
    digest = digest_of(what)
    first = np.zeros(max(summation.lanes, _FEWEST_WORDS), np.uint32)
    start = message[: first.size - _HEAD_WORDS]
    first[:_HEAD_WORDS] = message.size, digest & 0xFFFFFFFF, digest >> 32
    first[_HEAD_WORDS:][: start.size] = start
    packets = summation.all_gather(first).reshape(summation.workers, first.size)
    if (packets[:, 1:_HEAD_WORDS] != first[1:_HEAD_WORDS]).any():
        raise PlanMismatchError(
            f"sum of rows: workers gave other tensors than worker {summation.worker_id}, which has {what}; "
            "give sparse tensors of the same shapes, dtypes and dimensions, in the same order, on all"
        )
    lengths = packets[:, 0].tolist()
    rest = np.zeros(max(0, max(lengths) - (first.size - _HEAD_WORDS)), np.uint32)
    rest[: message.size - start.size] = message[start.size :]
    rests = [rest] * summation.workers
    if rest.size:
        rests = list(summation.all_gather(rest).reshape(summation.workers, -1))
    pairs = zip(packets[:, _HEAD_WORDS:], rests, lengths, strict=True)
    return [np.concatenate([packet, rest])[:length] for packet, rest, length in pairs]


def sum_floats(summation: Summation, tensors: Sequence[Floats], *, average: bool) -> list[tuple[Floats, int]]:
    """Sum float32[n] tensors over workers in fixed point, as the dense form of `Allreduce` does.

    Return each tensor's sum or average, float32[n], which is NaN if it was not finite on some worker; and the
    smallest scale of its blocks, 0 for an empty tensor.
    Tensors may be empty. The caller ensures that their number and sizes are the same on all workers.
    """
    no_numbers = np.empty(0, np.int32)
    filled = [tensor for tensor in tensors if tensor.size]
    if not filled:
        return [(tensor, 0) for tensor in tensors]
    table = SegmentTable([Segment(tensor.size, sparse=False) for tensor in filled])
    codec = HOST.segments(table, filled, [None] * len(filled), summation.workers)
    header = np.zeros(table.scale_words, np.uint32)
    codec.write_scales(header)
    (united,) = summation.sum_words([Part(header, "or")])
    codec.read_scales(united)
    count, _ = codec.set_candidates(np.empty(0, np.uint32))
    numbers = np.empty(count, np.int32)
    codec.write_dense(numbers)
    if count:
        (total,) = summation.sum_words([Part(numbers.view(np.uint32), "add")])
        numbers = total.view(np.int32)
    sums = iter(codec.decode(numbers, no_numbers, summation.workers if average else 1))
    lowest = iter(np.minimum.reduceat(codec.scales, table.blocks[:-1]).tolist())
    return [(next(sums), next(lowest)) if tensor.size else (tensor, 0) for tensor in tensors]
