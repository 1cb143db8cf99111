"""The sum in two rounds: first the scales and the index that all workers must agree on, then the numbers.

Theory of operation. It is used when nothing is known of the tensors yet, or where a round trip takes less
time than the words that wrong predictions cost.

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

from typing import Any

from peelsum.allreduce.protocol import RoundWords, SumProtocol
from peelsum.codec import SketchLayout


class TwoRounds(SumProtocol):
    """Sums a step's tensors by scales and an index that all workers have agreed on in a first round."""

    def run(self) -> None:
        """Go through the header's round, then through those of refinement, values and left-over as needed."""
        header = self.exchanges.room(self.layout.header_words, 0)
        self._write_header(header.ored)
        sums = self.exchanges.sum(header)
        self._read_scales(self._device.to_host(sums.or_on_host[: self.layout.table.scale_words]))
        self._set_union(sums)
        if self._device.ahead:
            codec: Any = self.codec
            codec.use_words(sums.ored[: self.layout.table.scale_words])
        dense, candidates, staged = self._set_candidates()
        refinements = self._refinements(sums.or_on_host)
        if refinements:
            self._exchange_refinements(refinements)
            dense, candidates, staged = self._set_candidates()
        if candidates and self.chooser.sparse_form == "sketch":
            self._exchange_sketch(dense, candidates)
        elif not dense + candidates:
            self.local_dense = self.local_sparse = self.dense = self.sparse = self._device.integers(0)
        else:
            if staged is None:
                staged = self.exchanges.room(0, dense + candidates)
                self.local_dense, self.local_sparse = staged.added[:dense], staged.added[dense:]
                self.codec.write_dense(self.local_dense)
                self.codec.gather(self.local_sparse)
            sums = self.exchanges.sum(staged)
            self.dense, self.sparse, self.value_words = sums.added[:dense], sums.added[dense:], candidates

    def _set_candidates(self) -> tuple[int, int, RoundWords | None]:
        """Set the codec's candidates; return how many dense and sparse numbers are sent.

        If the numbers are sent as they are, a device that works ahead writes them before the host knows how
        many there are. Return also the words to be sent then, or None.
        """
        if not self._device.ahead or self.chooser.sparse_form == "sketch":
            return *self.codec.set_candidates(self.union), None
        codec: Any = self.codec
        device, segments = self._device, len(codec.fields)
        while True:
            words = codec.write_numbers(self.union)
            staged = device.fetch(words)
            dense, candidates = codec.read_counts(device.to_host(staged[-segments:]))
            end = dense + candidates
            if end <= words.shape[0] - segments:
                break
        self.local_dense, self.local_sparse = words[:dense], words[dense:end]
        return dense, candidates, RoundWords(staged[:end], staged[:0], words[:end], staged=True)

    def _exchange_sketch(self, dense: int, candidates: int) -> None:
        """Exchange the dense numbers and a sketch of the candidates'; peel it, and exchange the left-over."""
        device = self._device
        layout = SketchLayout.sized(candidates, self._seed, self.plan.settings.cells_per_candidate)
        sent = self.exchanges.room(0, dense + layout.cells)
        self.local_dense, self.local_sparse = sent.added[:dense], device.integers(candidates)
        self.codec.write_dense(self.local_dense)
        self.codec.gather(self.local_sparse)
        device.sketch_encode(layout, self.codec.positions(), self.local_sparse, sent.added[dense:])
        sums = self.exchanges.sum(sent)
        self.dense, self.sparse = sums.added[:dense], device.integers(candidates)
        unpeeled = device.sketch_decode(layout, sums.added[dense:], self.codec.positions(), self.sparse)
        self.cells, self.left_over = layout.cells, len(unpeeled)
        self.value_words = layout.cells + len(unpeeled)
        if len(unpeeled):
            (self.sparse[unpeeled],) = self._exchange_numbers([self.local_sparse[unpeeled]])
