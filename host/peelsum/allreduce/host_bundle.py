"""Run the exchanges of all tensors of a step on the host, in one compiled call for each phase.

A bundle sends the same words as single exchanges, in the same order, so that workers with and without bundles
can sum together. The compiled loops do not know predictions, sketches, refined indexes, and dense tensors
that turn out sparse. Such a tensor keeps its own `TensorExchange`; its words take their place among the
others'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import assert_never, cast

import numpy as np
from numpy.typing import NDArray

from peelsum import kept_pages
from peelsum.allreduce.costs import Seen
from peelsum.allreduce.exchange import DENSE, DENSE_SAMPLE, Numbers, TensorExchange
from peelsum.allreduce.indexes import BitmapIndex, BloomIndex, Index
from peelsum.allreduce.plan import Choice, Form, TensorPlan, labeled
from peelsum.allreduce.refinement import Refinement
from peelsum.allreduce.result import TensorTally
from peelsum.allreduce.staging import Round, Rounds, Sums
from peelsum.codec import (
    BLOCK_SIZES,
    EXPONENT_WORDS,
    NON_FINITE,
    SAMPLE,
    SAMPLE_WORDS,
    FixedPoint,
    HostMemory,
    Selection,
    fixed_point,
    index_words,
    kernels,
)
from peelsum.codec import cpu_bundle_loops as loops
from peelsum.codec.cpu import frozen, occupied, positions
from peelsum.codec.cpu_index_loops import address
from peelsum.codec.threads import PER_CORE
from peelsum.summation import Words

Floats = NDArray[np.float32]
_Table = NDArray[np.int64]
_OPS, _MEMORY = kernels("cpu"), HostMemory()
#: Tensors of as many elements are processed on several cores, one at a time.
_LARGE = 2 * PER_CORE
# Reading a member of an enum takes 0.2 us in Python 3.11: a quarter of the time of a step of small tensors.
Column = cast("type[loops.Column]", SimpleNamespace(**{one.name: int(one) for one in loops.Column}))
Kind = cast("type[loops.Kind]", SimpleNamespace(**{one.name: int(one) for one in loops.Kind}))


@dataclass(frozen=True, eq=False)
class Layout:
    """What is the same in all steps of a plan. Bundles only read it."""

    tensors: tuple[TensorPlan, ...]
    """The tensors in the order of their words."""
    names: tuple[str, ...]
    """Their names."""
    numbers: Mapping[str, int]
    """Each one's place among them, by name."""
    table: _Table
    """The loops' table, without what differs in each step."""
    header_words: Mapping[str, int]
    """Words of each tensor's header, by name; 0 if the loops do not know it."""
    factors: int
    """Number of factors of all tensors."""
    bitmaps: int
    """Words of all bitmaps that are not sent as they are."""
    seeded: tuple[int, ...]
    """The tensors whose words depend on the step's seed."""
    others: tuple[int, ...]
    """The tensors that the loops do not know."""

    @cached_property
    def label(self) -> str:
        """The tensors' names, for messages."""
        return labeled(self.names)

    @classmethod
    def of(cls, tensors: Sequence[TensorPlan], wants: Callable[[str], bool]) -> Layout:
        """Return the layout of tensors; wants: whether a tensor's non-zeros are counted, by name."""
        table, factors, bitmaps = np.zeros((len(tensors), len(loops.Column)), np.int64), 0, 0
        for row, tensor in zip(table, tensors, strict=True):
            choice, elements = tensor.choice, tensor.elements
            row[Column.KIND], row[Column.ELEMENTS] = kind_of(tensor), elements
            row[Column.FACTORS], row[Column.BITMAP] = factors, bitmaps
            row[Column.WANTED] = wants(tensor.name)
            if row[Column.KIND] == Kind.OTHER:
                continue
            if choice.scale_block:
                row[Column.BLOCK], row[Column.BLOCKS] = choice.scale_block, -(-elements // choice.scale_block)
            row[Column.SAMPLED] = choice.sampled
            words = SAMPLE_WORDS if choice.sampled else choice.index.words(elements) if choice.index else 0
            row[Column.OR_WORDS] = EXPONENT_WORDS + row[Column.BLOCKS] + words
            factors += max(int(row[Column.BLOCKS]), 1)
            if isinstance(choice.index, BloomIndex):
                row[Column.HASHES], row[Column.ROWS] = choice.index.hashes, choice.index.rows
                bitmaps += 2 * index_words(elements)
        seeded = (table[:, Column.KIND] == Kind.BLOOM) | (table[:, Column.SAMPLED] != 0)
        others = np.flatnonzero(table[:, Column.KIND] == Kind.OTHER).tolist()
        names = tuple(tensor.name for tensor in tensors)
        words_by_name = dict(zip(names, table[:, Column.OR_WORDS].tolist(), strict=True))
        numbers = {name: m for m, name in enumerate(names)}
        rest = factors, bitmaps, tuple(np.flatnonzero(seeded).tolist()), tuple(others)
        return cls(tuple(tensors), names, numbers, table, words_by_name, *rest)


def kind_of(tensor: TensorPlan) -> loops.Kind:
    """Return how the loops send a tensor. Every form has a case, or its words would be read as another's."""
    choice = tensor.choice
    match choice.form:
        case "dense":
            kind = Kind.DENSE
        case "compact" if isinstance(choice.index, BitmapIndex):
            kind = Kind.BITMAP
        case "compact":
            kind = Kind.BLOOM if choice.index and not choice.index.refined else Kind.OTHER
        case "sketch":
            kind = Kind.OTHER
        case unknown:
            assert_never(unknown)
    return Kind.OTHER if choice.prediction or tensor.elements >= _LARGE else kind


class HostBundle:
    """The exchanges of the tensors of a layout, float32[n] each.

    values: the tensors, in the layout's order. out: where results are written, by name; it may be the
    tensor itself. make: returns the exchange of a tensor of which it gets the number. seed, refinement:
    return those of a tensor in this step, by name.
    """

    def __init__(
        self,
        layout: Layout,
        values: Sequence[Floats],
        out: Mapping[str, Floats],
        workers: int,
        *,
        make: Callable[[int], TensorExchange],
        seed: Callable[[str], int],
        refinement: Callable[[str], Refinement],
    ) -> None:
        self._layout, self._values, self._make, self._refinement = layout, values, make, refinement
        self._results = [out.get(tensor.name) for tensor in layout.tensors]
        self._table = table = layout.table.copy()
        table[:, Column.VALUES] = table[:, Column.OUT] = [address(own) for own in values]
        table[:, Column.OVER] = [result is own for result, own in zip(self._results, values, strict=True)]
        for m, result in enumerate(self._results):
            if result is not None and result is not values[m]:
                table[m, Column.OUT], table[m, Column.CLEAR] = address(result), True
        for m in layout.seeded:
            table[m, Column.SEED] = np.uint64(seed(layout.tensors[m].name)).view(np.int64)
        self._bitmaps = kept_pages.empty(layout.bitmaps, np.uint32)
        # A scale is this number less the exponent field.
        self._highest = fixed_point(0, workers).scale
        self._octaves = np.empty(layout.factors, np.int32)
        self._factors, self._inverse = np.empty(layout.factors), np.empty(layout.factors)
        self._ends = np.zeros(2, np.int64)
        #: The OR of all headers.
        self._headers: Words = np.empty(0, np.uint32)
        self._quantized = self._total = np.empty(0, np.int32)
        self._running: dict[int, _Running] = {}
        #: The exchanges of tensors that the loops left to them, by name. These tensors are not members.
        self.others: dict[str, TensorExchange] = {}
        #: The rows of the members, by name, after `decode`.
        self._rows: dict[str, list[int]] = {}
        self.words_sent, self.label = 0, layout.label

    def rounds(self) -> Rounds:
        """Yield every round of the exchanges; send each round's sums back into the generator."""
        table, layout = self._table, self._layout
        for m in layout.others:
            self._start(m)
        sums = yield from self._round(table, self._write_headers)
        places = table[:, Column.OR_PLACE].tolist()
        self._headers = frozen(sums.ored)
        formats = self._octaves, self._factors, self._inverse
        loops.read_headers(table, self._headers, self._highest, self._bitmaps, *formats)
        for m in layout.seeded:
            place = places[m]
            header = sums.ored[place : place + int(layout.table[m, Column.OR_WORDS])]
            if self._differs(m, header):
                self._turn(m, header)
        if not (self._running or table[:, Column.ADD_WORDS].any()):
            return
        sums = yield from self._round(table, self._write_values)
        self._total = sums.added.view(np.int32)
        if self._running:
            rest = table.copy()
            rest[:, [Column.OR_WORDS, Column.ADD_WORDS]] = 0
            while self._running:
                yield from self._round(rest, None)

    def decode(self, divisor: int) -> None:
        """Write the members' sums, divided by `divisor`, after the last round."""
        table = self._table
        for m, (result, kind) in enumerate(zip(self._results, table[:, Column.KIND].tolist(), strict=True)):
            if result is None and kind != Kind.OTHER:
                own, table[m, Column.CLEAR] = _MEMORY.result(len(self._values[m]))
                self._results[m], table[m, Column.OUT] = own, address(own)
        self._occupied = np.empty((len(table), BLOCK_SIZES), np.int64)
        sums = frozen(self._total), self._headers, frozen(self._bitmaps)
        loops.read_values(table, *sums, self._inverse, float(divisor), self._occupied)
        self._rows = dict(zip(self._layout.names, table.tolist(), strict=True))
        for name in self.others:
            del self._rows[name]
        # A caller may keep the results for long, and them alone.
        del self._values, self._make

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self._rows)

    @property
    def words_sent_by_name(self) -> dict[str, int]:
        """The words that this worker has sent for each member."""
        headers = self._layout.header_words
        return {name: headers[name] + row[Column.ADD_WORDS] for name, row in self._rows.items()}

    def member(self, name: str) -> Member:
        """Return a member's outcome."""
        row, m = self._rows[name], self._layout.numbers[name]
        choice, result, fixed = self._layout.tensors[m].choice, self._results[m], None
        assert result is not None
        field, blocks, sent = row[Column.FIELD], row[Column.BLOCKS], row[Column.ADD_WORDS]
        if field not in (loops.ZERO, NON_FINITE):
            octaves, scale = self._octaves[row[Column.FACTORS] :][:blocks], self._highest - field
            fixed = FixedPoint(scale, octaves, row[Column.BLOCK]) if blocks else FixedPoint(scale)
        place = slice(row[Column.ADD_PLACE], row[Column.ADD_PLACE] + sent)
        return Member(
            form=choice.form,
            index=choice.index,
            finite=field != NON_FINITE,
            fixed=fixed,
            selection=self._selection(row) if choice.index else None,
            quantized=self._quantized[place],
            total=self._total[place],
            words_sent=self._layout.header_words[name] + sent,
            values=result,
        )

    def _selection(self, row: list[int]) -> Selection:
        elements, sent = row[Column.ELEMENTS], row[Column.ADD_WORDS]
        if not sent:
            return Selection(0, lambda: np.empty(0, np.int64))
        words = self._headers if row[Column.KIND] == Kind.BITMAP else self._bitmaps
        union = words[row[Column.UNION] :][: index_words(elements)]
        return Selection(sent, partial(positions, union, elements, count=sent), union)

    def seen(self) -> dict[str, tuple[int, Seen | None]]:
        """Return, of each finite member, its elements and its union over workers; None if that is empty."""
        return {
            name: (row[Column.ELEMENTS], None if row[Column.FIELD] == loops.ZERO else self._union(m, row))
            for m, (name, row) in enumerate(zip(self._layout.names, self._table.tolist(), strict=True))
            if row[Column.KIND] != Kind.OTHER and row[Column.FIELD] != NON_FINITE
        }

    def tallies(self, fan_in: int, divisor: int) -> Tallies:
        """Return what is told of the members, without arrays of the step."""
        return Tallies(self._layout.tensors, self._rows, self._highest, fan_in, divisor)

    def _union(self, m: int, row: list[int]) -> Seen:
        field, elements, dense = row[Column.FIELD], row[Column.ELEMENTS], row[Column.KIND] == Kind.DENSE
        density = 1.0
        if not dense:
            density = row[Column.PASSED] / elements
        elif row[Column.WANTED]:
            share = row[Column.PASSED] / SAMPLE if row[Column.SAMPLED] else 0.0
            density = max(row[Column.TOTAL] / elements, share)
        if density > DENSE or not row[Column.WANTED]:
            return Seen.uniform(elements, density, field)
        counts = self._occupied[m]
        if dense:
            counts = occupied(np.flatnonzero(self._total[row[Column.ADD_PLACE] :][:elements]))
        return Seen(field, tuple(counts.tolist()))

    def _write_headers(self, ored: Words, added: Words) -> None:
        loops.write_headers(self._table, self._bitmaps, ored)

    def _write_values(self, ored: Words, added: Words) -> None:
        self._quantized = added.view(np.int32)
        bitmaps = self._headers, frozen(self._bitmaps)
        loops.write_values(self._table, *bitmaps, self._factors, self._quantized)

    def _round(
        self, table: _Table, write: Callable[[Words, Words], None] | None
    ) -> Generator[Round, Sums, Sums]:
        """Run one round of all tensors; advance the exchanges that are left to themselves."""
        for m, one in self._running.items():
            table[m, Column.OR_WORDS], table[m, Column.ADD_WORDS] = one.asked.or_words, one.asked.add_words
        loops.lay_out(table, self._ends)

        def write_all(ored: Words, added: Words) -> None:
            if write is not None:
                write(ored, added)
            for m, one in self._running.items():
                one.write(*_parts(table[m], ored, added))

        sums = yield Round(int(self._ends[0]), int(self._ends[1]), write_all)
        for m, one in list(self._running.items()):
            if not one.advance(*_parts(table[m], sums.ored, sums.added)):
                del self._running[m]
                table[m, [Column.OR_WORDS, Column.ADD_WORDS]] = 0
        return sums

    def _start(self, m: int) -> None:
        """Leave a tensor to its own exchange."""
        self.others[self._layout.names[m]] = exchange = self._make(m)
        self._running[m] = _Running(exchange)

    def _differs(self, m: int, header: Words) -> bool:
        """Return whether a tensor has too many false positives, or is dense in the plan only."""
        row, tensor = self._table[m], self._layout.tensors[m]
        if not row[Column.ADD_WORDS]:
            return False
        passed, index = int(row[Column.PASSED]), tensor.choice.index
        if index is None:
            return passed / SAMPLE < DENSE_SAMPLE
        words = header[EXPONENT_WORDS + int(row[Column.BLOCKS]) :]
        filled = _OPS.count(words, 32 * len(words))
        return self._refinement(tensor.name).after(index, filled, passed, 1, 0) is not None

    def _turn(self, m: int, header: Words) -> None:
        """Leave a tensor to its own exchange, after the sum of its header.

        The exchange writes the header again, so that it goes on from there; these words are not sent.
        """
        self._start(m)
        self._table[m, Column.KIND] = Kind.OTHER
        nothing = np.empty(0, np.uint32)
        self._running[m].write(np.empty_like(header), nothing)
        self._running[m].advance(header, nothing)


class _Running:
    """A tensor's own exchange, and its next round."""

    def __init__(self, exchange: TensorExchange) -> None:
        self._exchange, self._rounds = exchange, exchange.rounds()
        self.asked = next(self._rounds)

    def write(self, ored: Words, added: Words) -> None:
        """Write the words of the round."""
        self._exchange.words_sent += len(ored) + len(added)
        self.asked.write(ored, added)

    def advance(self, ored: Words, added: Words) -> bool:
        """Go on with the sums of the round; return whether there is another."""
        try:
            self.asked = self._rounds.send(Sums(ored, added))
        except StopIteration:
            return False
        return True


def _parts(row: NDArray[np.int64], ored: Words, added: Words) -> tuple[Words, Words]:
    """Return a tensor's words, of those of all tensors."""
    or_place, add_place = int(row[Column.OR_PLACE]), int(row[Column.ADD_PLACE])
    or_words, add_words = int(row[Column.OR_WORDS]), int(row[Column.ADD_WORDS])
    return ored[or_place : or_place + or_words], added[add_place : add_place + add_words]


@dataclass(frozen=True, eq=False)
class Tallies:
    """What is told of a bundle's members."""

    tensors: tuple[TensorPlan, ...]
    """The bundle's tensors."""
    rows: Mapping[str, list[int]]
    """The members' rows of the loops' table, by name."""
    highest: int
    """Scale of a tensor whose exponent field is 0."""
    fan_in: int
    """Number of workers."""
    divisor: int
    """Number by which sums are divided."""

    def by_name(self) -> dict[str, TensorTally]:
        """Return each member's tally, by name."""
        return {
            one.name: self._of(one.choice, self.rows[one.name])
            for one in self.tensors
            if one.name in self.rows
        }

    def _of(self, choice: Choice, row: list[int]) -> TensorTally:
        bound = share = own = 0.0
        elements, field = row[Column.ELEMENTS], row[Column.FIELD]
        if field == NON_FINITE:
            bound, share, own = math.inf, math.nan, math.nan
        elif field != loops.ZERO:
            bound = FixedPoint(self.highest - field).error_bound(self.fan_in, self.divisor)
            found = row[Column.PASSED] if choice.index else row[Column.TOTAL]
            share, own = found / elements, row[Column.OWN] / elements
        block = row[Column.BLOCK] if row[Column.ADD_WORDS] and row[Column.BLOCKS] else None
        form = None if choice.index is None else choice.index.form
        return TensorTally(elements, choice.form, form, share, own, bound, block)


@dataclass(frozen=True, eq=False)
class Member:
    """One tensor of a bundle, with the attributes of a `TensorExchange` of which a result is made."""

    form: Form
    """How the values were sent."""
    index: Index | None
    """The index; None for a dense tensor."""
    finite: bool
    """Whether every worker's values are finite."""
    fixed: FixedPoint | None
    """Fixed-point format; None if all values are zero or some are not finite."""
    selection: Selection | None
    """The elements to which `quantized` and `total` belong; None means all."""
    quantized: Numbers
    """int32[k]: what this worker contributed."""
    total: Numbers
    """int32[k]: the sum over workers."""
    words_sent: int
    """Words that this worker has sent for the tensor."""
    values: Floats
    """The result."""

    near_quantized = near_total = None

    def floats(self, divisor: int) -> Floats:
        """Return the result, which has been divided."""
        return self.values
