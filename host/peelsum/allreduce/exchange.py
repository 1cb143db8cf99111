"""The exchange of a step's two vectors, as a generator: it yields rounds of words and receives their sums.

All workers go through the same rounds, because every decision follows from sums.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.allreduce import level_loops
from peelsum.allreduce.costs import TOLERANCE, NetworkModel, too_many
from peelsum.allreduce.indexes import BloomIndex
from peelsum.allreduce.plan import Form, IndexPart, Layout, Settings, by_form
from peelsum.codec import Device, SketchLayout
from peelsum.codec.arrays import Integers
from peelsum.codec.segments import Located, SegmentCodec
from peelsum.summation import Words


class Wide(NamedTuple):
    """Elements whose sums may need more than 32 bits."""

    at: Located
    """The elements, k of them."""
    totals: NDArray[np.int64]
    """int64[k]: sums."""
    own: NDArray[np.int64]
    """int64[k]: this worker's numbers."""


class Round(NamedTuple):
    """A request for sums."""

    or_words: int
    """Number of words to be OR-ed."""
    add_words: int
    """Number of words to be added."""
    write: Callable[[Words, Words], None]
    """Writes all of this worker's words, into uint32[or_words] and uint32[add_words]."""


class Sums(NamedTuple):
    """The result of a round over all workers."""

    ored: Words
    """uint32[or_words]."""
    added: Words
    """uint32[add_words]."""
    near: Words
    """The content of `ored` on the host, or `ored`."""


Rounds = Generator[Round, Sums, None]


class Refinement(NamedTuple):
    """A part of the sparse vector whose candidates' own bits are sent, as its index lets many zeros pass."""

    part: int
    """The part's place in `Layout.parts`."""
    candidates: int
    """Elements that the index lets pass."""
    non_zeros: float
    """How many of them are probably not zero."""
    counted: bool
    """Whether `non_zeros` was estimated from a filter's words, and not from earlier steps."""


@dataclass(frozen=True)
class Setting:
    """The parameters of one step's exchange."""

    device: Device
    settings: Settings
    network: NetworkModel
    seed: int
    """Seed of the step's indexes and sketch."""
    form: Form
    """How the numbers of the sparse vector are sent."""
    likely: Callable[[tuple[tuple[str, int], ...]], float]
    """Returns the number of non-zeros to assume in tensors of these keys, if their index does not tell."""
    highest: int
    """A block's scale is this number less its exponent field."""


class Exchange:
    """The exchange of a step's segments. After its last round, its attributes hold the outcome."""

    def __init__(self, layout: Layout, codec: SegmentCodec, setting: Setting) -> None:
        self.layout, self.codec, self._setting = layout, codec, setting
        self._device = setting.device
        nothing = self._device.integers(0)
        #: int32[k]: this worker's numbers that were sent, of the dense vector and of the candidates.
        self.own_dense: Integers = nothing
        self.own_sparse: Integers = nothing
        #: int32[k]: the sums of the dense vector's numbers, and of the candidates'.
        self.dense: Integers = nothing
        self.sparse: Integers = nothing
        #: The candidates' bitmap.
        self.union = self._device.words(0)
        #: Words that were sent for each part's index, and for the candidates' values.
        self.index_words: list[int] = []
        self.value_words = 0
        #: Cells of the candidates' sketch, and candidates that peeling left over.
        self.cells = self.left_over = 0
        #: Words that were sent for no segment alone.
        self.beside_words = 0
        #: int32[blocks]: the scales by which sums are bounded.
        self.bounds: Integers = nothing
        #: int32[blocks]: exponent fields of the blocks, 0 for those without numbers; after the first round.
        self.levels: Integers = nothing
        self.wide: Wide | None = None

    def rounds(self) -> Rounds:
        """Yield every round of the exchange; send each round's sums back into the generator."""
        layout, device = self.layout, self._device
        self._own = device.words(0)
        sums = yield Round(layout.header_words, 0, self._write_header)
        self._read_scales(device.on_host(sums.near[: layout.table.scale_words]))
        dense, candidates = yield from self._index(sums)
        if not dense + candidates:
            return
        send = _NUMBERS[self._setting.form if candidates else "dense"]
        yield from send(self, dense, candidates)

    def again(self, wide: int) -> int | None:
        """Return how many words were sent again as expected scales did not fit; None if none were expected.

        wide: elements in `wide` whose sum is not 0, and its dense elements.
        """
        return None

    def _write_header(self, ored: Words, added: Words) -> None:
        self._own = self.codec.write_scales(ored[: self.layout.table.scale_words])
        for part in self.layout.parts:
            own, out = self._own[part.words], ored[part.sent]
            part.index.encode(self._device, own, part.elements, self._setting.seed, out)

    def _read_scales(self, words: Words) -> None:
        """Read words of scales, and find the blocks' levels."""
        codec, table, highest = self.codec, self.layout.table, self._setting.highest
        codec.read_scales(words)
        self.bounds = codec.scales
        self.levels = buffers.empty(len(codec.scales), np.int32)
        of_blocks = buffers.frozen(words[len(table) :])
        level_loops.levels_of(of_blocks, table.blocks, codec.fields, codec.scales, highest, self.levels)

    def _unite(self, sums: Sums) -> None:
        """Set `union` to the candidates, from the OR of all workers' indexes."""
        parts = self.layout.parts
        decoded = [self._decoded(part, sums) for part in parts]
        self.index_words = [part.sent.stop - part.sent.start for part in parts]
        if len(parts) == 1:
            self.union = decoded[0]
        elif parts:
            self.union = self._device.words(self.layout.table.words)
            for part, bitmap in zip(parts, decoded, strict=True):
                self.union[part.words] = bitmap

    def _index(self, sums: Sums) -> Generator[Round, Sums, tuple[int, int]]:
        """Set `union` to the candidates; refine it where that pays. Return what `SegmentCodec.place` does."""
        self._unite(sums)
        placed = self.codec.place(self.union)
        refinements = self._refinements(sums)
        if refinements:
            yield from self._refine(refinements)
            placed = self.codec.place(self.union)
        return placed

    def _refinements(self, sums: Sums) -> list[Refinement]:
        """Return the parts whose candidates are to be refined."""
        refinements = (self._refinement(number, sums.near) for number in range(len(self.layout.parts)))
        return [refinement for refinement in refinements if refinement is not None]

    def _decoded(self, part: IndexPart, sums: Sums) -> Words:
        """Return a part's candidates."""
        index, seed = part.index, self._setting.seed
        bitmap = index.decode(self._device, sums.ored[part.sent], part.elements, seed)
        # Of a bitmap, too: another worker's broken words may have bits where there is no element.
        bitmap &= self._device.placed(self.layout.valid[part.words])
        return bitmap

    def _refinement(self, number: int, words: Words) -> Refinement | None:
        """Return a part's refinement, if it is planned or too many candidates are zeros.

        words: the OR of all workers' header words.
        """
        part, network = self.layout.parts[number], self._setting.network
        candidates, index, counted = int(self.codec.sent[part.segments].sum()), part.index, False
        if not candidates:
            return None
        non_zeros = min(self._setting.likely(part.keys), candidates)
        if isinstance(index, BloomIndex):
            sent = words[part.sent]
            estimate = index.estimate(self._device.count(sent))
            counted = not estimate.full
            at_least = estimate.elements if counted else max(estimate.elements, non_zeros)
            non_zeros = min(at_least, candidates)
        refined_s = network.seconds(non_zeros + candidates / 32, 1)
        wasteful = candidates > (1 + TOLERANCE) * non_zeros and index.form != "bitmap"
        wasteful &= too_many(candidates, non_zeros) or network.seconds(candidates, 0) > refined_s
        return Refinement(number, candidates, non_zeros, counted) if index.refined or wasteful else None

    def _refine(
        self, refinements: Sequence[Refinement], cells: int = 0, add: Callable[[Words], object] = len
    ) -> Generator[Round, Sums, Words]:
        """Exchange the candidates' own bits in some parts; return the sum of `cells` that `add` writes."""
        parts = [self.layout.parts[refinement.part] for refinement in refinements]
        ends = np.cumsum([0, *(-(-refinement.candidates // 32) for refinement in refinements)]).tolist()
        spans = [slice(a, b) for a, b in pairwise(ends)]
        scans: list[Any] = []

        def write(ored: Words, added: Words) -> None:
            for part, span in zip(parts, spans, strict=True):
                scans.append(
                    self._device.gather_bits(self._own[part.words], self.union[part.words], ored[span])
                )
            add(added)

        sums = yield Round(ends[-1], cells, write)
        for part, span, scan, refinement in zip(parts, spans, scans, refinements, strict=True):
            mask = self.union[part.words]
            chosen = self._device.words(len(mask))
            self._device.scatter_bits(sums.ored[span], mask, chosen, scan)
            mask[:] = chosen
            self.index_words[refinement.part] += span.stop - span.start
        return sums.added

    def _write_numbers(self, dense: int, ored: Words, added: Words) -> None:
        numbers = self._device.signed(added)
        self.own_dense, self.own_sparse = numbers[:dense], numbers[dense:]
        self.codec.write_dense(self.own_dense)
        self.codec.gather(self.own_sparse)

    def _as_they_are(self, dense: int, candidates: int) -> Rounds:
        sums = yield Round(0, dense + candidates, partial(self._write_numbers, dense))
        total = self._device.signed(sums.added)
        self.dense, self.sparse, self.value_words = total[:dense], total[dense:], candidates

    def _sketched(self, dense: int, candidates: int) -> Rounds:
        """Send the candidates' numbers as a sketch, peel its sum, and exchange the left-over."""
        device = self._device
        positions = device.positions(self.union, 32 * len(self.union), count=candidates)
        cells = self._setting.settings.cells(candidates)
        layout = SketchLayout.sized(candidates, self._setting.seed, cells)

        def write(ored: Words, added: Words) -> None:
            self.own_dense, self.own_sparse = device.signed(added)[:dense], device.integers(candidates)
            self.codec.write_dense(self.own_dense)
            self.codec.gather(self.own_sparse)
            device.sketch_encode(layout, positions, self.own_sparse, added[dense:])

        sums = yield Round(0, dense + layout.cells, write)
        self.dense = device.signed(sums.added[:dense])
        self.sparse = device.integers(candidates)
        left = device.sketch_decode(layout, sums.added[dense:], positions, self.sparse)
        self.cells, self.left_over = layout.cells, len(left)
        self.value_words = layout.cells + len(left)
        if not len(left):
            return

        def write_left(ored: Words, added: Words) -> None:
            device.signed(added)[:] = self.own_sparse[left]

        sums = yield Round(0, len(left), write_left)
        self.sparse[left] = device.signed(sums.added)


#: The rounds of the numbers of all segments, by the form of the sparse ones.
_NUMBERS: dict[Form, Callable[[Exchange, int, int], Rounds]] = by_form(
    "exchange",
    {"dense": Exchange._as_they_are, "compact": Exchange._as_they_are, "sketch": Exchange._sketched},
)
