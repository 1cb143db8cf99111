"""The sum in two rounds: first what all workers have to know, then the numbers.

Theory of operation. It is used when nothing is known of the tensors yet, or where a round trip takes less
time than the words that guesses cost.

    round        op   words                                               when
    header       OR   scales of blocks; indexes of the sparse vector      always
    refinement   OR   the candidates' own bits                            if an index lets many zeros pass
    values       ADD  the dense numbers; the candidates', in order        unless all are zero or not finite
    left-over    ADD  numbers that peeling did not recover                if there are any

After the header, all workers know the largest exponent of every block, and so the scale by which they convert
it to integers, and where any worker has a non-zero. The candidates' numbers are sent as they are. Where a
user asks for `values="sketch"`, they are sent as a sketch, whose layout has room for exactly so many.
"""

from __future__ import annotations

from collections.abc import Generator

from peelsum.allreduce.protocol import Round, Rounds, SumProtocol, Sums
from peelsum.codec import SketchLayout
from peelsum.summation import Words


class TwoRounds(SumProtocol):
    """See `SumProtocol`."""

    def rounds(self) -> Rounds:
        """See `SumProtocol.rounds`."""
        sums = yield Round(self.layout.header_words, 0, self._write_header)
        self._read_scales(self._device.on_host(sums.near[: self.layout.table.scale_words]))
        dense, candidates = yield from self._index(sums)
        if candidates and self.chooser.sparse_form == "sketch":
            yield from self._sketched(dense, candidates)
        elif dense + candidates:
            yield from self._as_they_are(dense, candidates)

    def _index(self, sums: Sums) -> Generator[Round, Sums, tuple[int, int]]:
        """Set `union` to the candidates; refine it where that pays. Return what `SegmentCodec.place` does."""
        self._unite(sums)
        placed = self.codec.place(self.union)
        refinements = self._refinements(sums)
        if refinements:
            yield from self._refine(refinements)
            placed = self.codec.place(self.union)
        return placed

    def _as_they_are(self, dense: int, candidates: int) -> Rounds:
        def write(ored: Words, added: Words) -> None:
            numbers = self._device.signed(added)
            self.own_dense, self.own_sparse = numbers[:dense], numbers[dense:]
            self.codec.write_dense(self.own_dense)
            self.codec.gather(self.own_sparse)

        sums = yield Round(0, dense + candidates, write)
        total = self._device.signed(sums.added)
        self.dense, self.sparse, self.value_words = total[:dense], total[dense:], candidates

    def _sketched(self, dense: int, candidates: int) -> Rounds:
        """Send the candidates' numbers as a sketch, peel its sum, and exchange the left-over."""
        device = self._device
        positions = device.positions(self.union, 32 * len(self.union), count=candidates)
        layout = SketchLayout.sized(candidates, self._seed, self.plan.settings.cells(candidates))

        def write(ored: Words, added: Words) -> None:
            self.own_dense, self.own_sparse = device.signed(added)[:dense], device.integers(candidates)
            self.codec.write_dense(self.own_dense)
            self.codec.gather(self.own_sparse)
            device.sketch_encode(layout, positions, self.own_sparse, added[dense:])

        sums = yield Round(0, dense + layout.cells, write)
        self.dense, self.sparse = device.signed(sums.added[:dense]), device.integers(candidates)
        left = device.sketch_decode(layout, sums.added[dense:], positions, self.sparse)
        self.cells, self.left_over = layout.cells, len(left)
        self.value_words = layout.cells + len(left)
        if len(left):
            (self.sparse[left],) = yield from self._exchanged([self.own_sparse[left]])
