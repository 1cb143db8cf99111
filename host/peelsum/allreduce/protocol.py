"""What both protocols of a sum share: header, index, refinement, and what is left when the rounds have ended.

Theory of operation. A step sums two vectors: the dense tensors end to end, and the sparse tensors end to end.
There are two protocols for it, `two_rounds` and `one_round`. The rounds of both come from generators: these
yield requests for sums of words, and receive the sums. All workers go through the same rounds, because every
decision follows from sums. These are the parts of a sum, in both:

    part         op   words
    header       OR   scales of blocks; indexes of the sparse vector
    refinement   OR   the candidates' own bits, where an index lets too many zeros pass
    numbers      ADD  the dense numbers; the candidates', or their sketch
    left-over    ADD  numbers that peeling did not recover, and those that were not as expected
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.allreduce import level_loops
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.costs import TOLERANCE, too_many
from peelsum.allreduce.indexes import BloomIndex
from peelsum.allreduce.plan import IndexPart, Plan
from peelsum.codec import Device, fixed_point
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


class SumProtocol(ABC):
    """A protocol for one step of a plan. After its last round, its attributes hold the sums.

    codec: the step's segments, on the device. seed: of the step's indexes and sketches.
    """

    def __init__(
        self, plan: Plan, chooser: Chooser, device: Device, codec: SegmentCodec, seed: int = 0
    ) -> None:
        self.plan, self.chooser, self.layout, self.codec = plan, chooser, plan.layout, codec
        self._device, self._seed = device, seed
        #: A block's scale is this number less its exponent field.
        self._highest = fixed_point(0, plan.workers).scale
        nothing = device.integers(0)
        #: int32[k]: this worker's numbers that were sent, of the dense vector and of the candidates.
        self.own_dense: Integers = nothing
        self.own_sparse: Integers = nothing
        #: int32[k]: the sums of the dense vector's numbers, and of the candidates'.
        self.dense: Integers = nothing
        self.sparse: Integers = nothing
        #: The bitmaps of this worker's non-zeros, and of the candidates.
        self._own = self.union = device.words(0)
        #: Words that were sent for each part's index, for the candidates' values, and for no segment alone.
        self.index_words: list[int] = []
        self.value_words = self.beside_words = 0
        #: Cells of the candidates' sketch, and candidates that peeling left over.
        self.cells = self.left_over = 0
        #: int32[blocks]: the scales by which sums are bounded.
        self.bounds: Integers = nothing
        #: int32[blocks]: exponent fields of the blocks, 0 for those without numbers; after the first round.
        self.levels: Integers = nothing
        self.wide: Wide | None = None

    @abstractmethod
    def rounds(self) -> Rounds:
        """Yield every round; send each round's sums back into the generator."""

    def again(self, wide: int) -> int | None:
        """Return how many words were sent again as expected scales did not fit; None if none were expected.

        wide: elements in `wide` whose sum is not 0, and its dense elements.
        """
        return None

    def _write_header(self, ored: Words, added: Words) -> None:
        self._own = self.codec.write_scales(ored[: self.layout.table.scale_words])
        for part in self.layout.parts:
            own, out = self._own[part.words], ored[part.sent]
            part.index.encode(self._device, own, part.elements, self._seed, out)

    def _read_scales(self, words: Words) -> None:
        """Read words of scales, and find the blocks' levels."""
        codec, table, highest = self.codec, self.layout.table, self._highest
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

    def _refinements(self, sums: Sums) -> list[Refinement]:
        """Return the parts whose candidates are to be refined."""
        refinements = (self._refinement(number, sums.near) for number in range(len(self.layout.parts)))
        return [refinement for refinement in refinements if refinement is not None]

    def _decoded(self, part: IndexPart, sums: Sums) -> Words:
        """Return a part's candidates."""
        index, seed = part.index, self._seed
        bitmap = index.decode(self._device, sums.ored[part.sent], part.elements, seed)
        # Of a bitmap, too: another worker's broken words may have bits where there is no element.
        bitmap &= self._device.placed(self.layout.valid[part.words])
        return bitmap

    def _refinement(self, number: int, words: Words) -> Refinement | None:
        """Return a part's refinement, if it is planned or too many candidates are zeros.

        words: the OR of all workers' header words.
        """
        part, network = self.layout.parts[number], self.chooser.network
        candidates, index, counted = int(self.codec.sent[part.segments].sum()), part.index, False
        if not candidates:
            return None
        non_zeros = min(self.chooser.history.filled(part.keys), candidates)
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

    def _exchanged(self, numbers: Sequence[Integers]) -> Generator[Round, Sums, list[Integers]]:
        """Exchange arrays of this worker's numbers, end to end; return the sums of each."""
        ends = np.cumsum([0, *map(len, numbers)]).tolist()

        def write(ored: Words, added: Words) -> None:
            out = self._device.signed(added)
            for part, begin in zip(numbers, ends, strict=False):
                out[begin : begin + len(part)] = part

        sums = yield Round(0, ends[-1], write)
        return [self._device.signed(sums.added)[begin:end] for begin, end in pairwise(ends)]
