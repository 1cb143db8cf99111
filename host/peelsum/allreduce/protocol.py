"""What both protocols of a sum share: header, index, refinement, and the attributes that hold the sums.

Theory of operation. A step sums two vectors: the dense tensors end to end, and the sparse tensors end to end.
There are two protocols for it, `two_rounds` and `one_round`. Each is a generator, which yields requests for
sums of words, and receives the sums. All workers go through the same rounds, because every decision depends
on sums only. These are the parts of a sum, in both:

    part         op   words
    header       OR   scales of blocks; indexes of the sparse vector
    refinement   OR   the candidates' own bits, where an index lets too many zeros pass
    numbers      ADD  the dense numbers; the candidates', or their sketch
    left-over    ADD  numbers that peeling did not recover, and those of mispredicted blocks
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import history_loops
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.costs import TOLERANCE, too_many
from peelsum.allreduce.indexes import BloomIndex
from peelsum.allreduce.plan import Plan
from peelsum.codec import CodecDevice, fixed_point
from peelsum.codec.arrays import Integers
from peelsum.codec.cpu.segments import SegmentCodec
from peelsum.codec.segments import ElementLocations
from peelsum.summation import Words


class Overflow(NamedTuple):
    """Elements whose sums may need more than 32 bits."""

    locations: ElementLocations
    """The elements, k of them."""
    sums: NDArray[np.int64]
    """int64[k]: their sums."""
    local: NDArray[np.int64]
    """int64[k]: this worker's numbers."""


class Round(NamedTuple):
    """A request for sums over all workers."""

    or_words: int
    """Number of words to be OR-ed."""
    add_words: int
    """Number of words to be added."""
    write: Callable[[Words, Integers], None]
    """Writes all of this worker's words, into uint32[or_words] and int32[add_words]."""
    complete: Callable[[Words, Integers], None] | None = None
    """Changes these words where they are sent from: in the host's memory, unless the device is `direct`."""
    staged: Words | None = None
    """The words to be added where they are sent from, if they are there already, instead of `write`."""


class Sums(NamedTuple):
    """The result of a round over all workers."""

    ored: Words
    """uint32[or_words]."""
    added: Integers
    """int32[add_words]."""
    or_on_host: Words
    """The content of `ored` on the host, or `ored`."""


Rounds = Generator[Round, Sums, None]


class Refinement(NamedTuple):
    """A part of the sparse vector whose candidates' own bits are sent, as many zeros pass its index."""

    part: int
    """The part's place in `Layout.parts`."""
    candidates: int
    """How many elements pass the index."""
    non_zeros: float
    """How many of them are not zero, estimated."""
    counted: bool
    """Whether `non_zeros` was estimated from the words of a Bloom filter, and not from earlier steps."""


class SumProtocol(ABC):
    """A protocol for one step of a plan. After its last round, its attributes hold the sums.

    codec: encodes and decodes the step's tensors on `device`. seed: of the step's indexes and sketches.
    """

    local_dense: Integers
    """int32[k]: this worker's numbers that were sent, of the dense vector."""
    local_sparse: Integers
    """int32[k]: the same of the candidates."""
    dense: Integers
    """int32[k]: the sums of the dense vector's numbers."""
    sparse: Integers
    """int32[k]: the sums of the candidates' numbers."""
    union: Words
    """The bitmap of the candidates."""
    bounds: Integers
    """int32[blocks]: the scales from which error bounds are computed."""
    exponents: Integers
    """int32[blocks], after the first round: exponent fields of the blocks, 0 for those without numbers."""
    _local_bitmap: Words
    """The bitmap of this worker's non-zeros."""

    def __init__(
        self, plan: Plan, chooser: Chooser, device: CodecDevice, codec: SegmentCodec, seed: int = 0
    ) -> None:
        self.plan, self.chooser, self.layout, self.codec = plan, chooser, plan.layout, codec
        self._device, self._seed = device, seed
        #: A block's scale is this number less its exponent field.
        self._highest = fixed_point(0, plan.workers).scale
        #: Words that were sent for each part's index, for the candidates' values, and for all segments.
        self.index_words: list[int] = []
        self.value_words = self.common_words = 0
        #: Cells of the candidates' sketch, and candidates that peeling left over.
        self.cells = self.left_over = 0
        self.overflow: Overflow | None = None

    @abstractmethod
    def rounds(self) -> Rounds:
        """Yield each round's request, and receive its sums."""

    def resent_words(self, overflow: int) -> int | None:
        """Return how many words were sent again as predicted scales did not fit; None without prediction.

        overflow: how many elements overflowed, without sparse ones whose sum is 0.
        """
        return None

    def _write_header(self, ored: Words, added: Integers) -> None:
        """Write this worker's header into `ored`: its words of scales, then the index of each part."""
        words = ored[: self.layout.table.scale_words]
        self._local_bitmap = self.codec.write_scales(words, self._bitmap_room(ored))
        if self.layout.bitmap_in_header is None:
            self._write_indexes(ored)

    def _bitmap_room(self, ored: Words) -> Words:
        """Return where this worker's bitmap is written: in the header, if that is the only index."""
        sent = self.layout.bitmap_in_header
        return self._device.words(self.layout.table.words) if sent is None else ored[sent]

    def _write_indexes(self, ored: Words) -> None:
        """Write the index of each part of this worker's bitmap into the header `ored`."""
        for part in self.layout.parts:
            bitmap, out = self._local_bitmap[part.words], ored[part.sent]
            part.index.encode(self._device, bitmap, part.elements, self._seed, out)

    def _read_scales(self, words: Words) -> None:
        """Set the codec's scales and the blocks' `exponents` from words of scales, on the host."""
        codec = self.codec
        codec.read_scales(words)
        self.bounds = codec.scales
        self.exponents = np.empty(len(codec.scales), np.int32)
        history_loops.write_exponents(
            words[len(codec.fields) :], self.layout.table.blocks, codec.fields, codec.scales, self._highest,
            self.exponents,
        )  # fmt: skip

    def _set_union(self, sums: Sums) -> None:
        """Set `union` to the bitmap of the candidates, from the OR of all workers' indexes."""
        parts, self.index_words = self.layout.parts, [*self.layout.index_words]
        if self.layout.bitmap_in_header is not None:
            self.union = sums.ored[self.layout.bitmap_in_header]
            return
        decoded = [
            part.index.decode(self._device, sums.ored[part.sent], part.elements, self._seed) for part in parts
        ]
        self.union = decoded[0] if len(parts) == 1 else self._device.words(self.layout.table.words)
        for part, bitmap in zip(parts, decoded, strict=True) if len(parts) > 1 else ():
            self.union[part.words] = bitmap

    def _refinements(self, words: Words) -> list[Refinement]:
        """Return the refinements of parts where that is planned, or where too many candidates are zeros.

        words: the OR of all workers' header words, on the host.
        """
        network, refinements = self.chooser.network, []
        for number, part in enumerate(self.layout.parts):
            index, counted = part.index, False
            if index.form == "bitmap":
                continue  # it lets no zeros pass
            candidates = int(np.add.reduce(self.codec.sent[part.segments]))
            if not candidates:
                continue
            non_zeros = min(self.chooser.history.filled(part.keys), candidates)
            if isinstance(index, BloomIndex):
                elements, full = index.estimate(self._device.count(words[part.sent]))
                counted = not full
                non_zeros = min(elements if counted else max(elements, non_zeros), candidates)
            refined_s = network.seconds(non_zeros + candidates / 32, 1)
            wasteful = candidates > (1 + TOLERANCE) * non_zeros
            wasteful &= too_many(candidates, non_zeros) or network.seconds(candidates, 0) > refined_s
            if index.refined or wasteful:
                refinements.append(Refinement(number, candidates, non_zeros, counted))
        return refinements

    def _exchange_refinements(
        self, refinements: Sequence[Refinement], cells: int = 0, add: Callable[[Integers], object] = len
    ) -> Generator[Round, Sums, Integers]:
        """Exchange the candidates' own bits in some parts, and remove zeros from `union`.

        In the same round, sum `cells` words that `add` writes; return their sum.
        """
        parts = [self.layout.parts[refinement.part] for refinement in refinements]
        ends = np.cumsum([0, *(-(-refinement.candidates // 32) for refinement in refinements)]).tolist()
        spans = [slice(a, b) for a, b in pairwise(ends)]
        scans: list[Any] = []

        def write(ored: Words, added: Integers) -> None:
            for part, span in zip(parts, spans, strict=True):
                bits, mask = self._local_bitmap[part.words], self.union[part.words]
                scans.append(self._device.gather_bits(bits, mask, ored[span]))
            add(added)

        sums = yield Round(ends[-1], cells, write)
        for part, span, scan, refinement in zip(parts, spans, scans, refinements, strict=True):
            mask = self.union[part.words]
            non_zeros = self._device.words(len(mask))
            self._device.scatter_bits(sums.ored[span], mask, non_zeros, scan)
            mask[:] = non_zeros
            self.index_words[refinement.part] += span.stop - span.start
        return sums.added

    def _exchange_numbers(self, numbers: Sequence[Integers]) -> Generator[Round, Sums, list[Integers]]:
        """Exchange arrays of this worker's numbers, end to end; return the sums of each array."""
        ends = np.cumsum([0, *map(len, numbers)]).tolist()
        parts = [slice(begin, end) for begin, end in pairwise(ends)]

        def write(ored: Words, added: Integers) -> None:
            for part, values in zip(parts, numbers, strict=True):
                added[part] = values

        sums = yield Round(0, ends[-1], write)
        return [sums.added[part] for part in parts]
