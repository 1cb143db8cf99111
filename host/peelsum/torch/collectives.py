"""The collectives of a bucket's compressed sum: torch's own, or those that a switch's words make."""

from __future__ import annotations

from collections.abc import Sequence

from peelsum.compress import Collectives, SummationCollectives
from peelsum.compress.collectives import Bytes
from peelsum.summation import Part, Words
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.sum_queue import QueuedSummation


def collectives_of(summation: QueuedSummation, group: ProcessGroupSummation | None) -> Collectives:
    """Return the collectives of `summation`; `group` gathers, and broadcasts if it is the backend."""
    return SummationCollectives(summation) if group is None else _GroupCollectives(summation, group)


class _GroupCollectives(SummationCollectives):
    """Words over a queued backend; gathers, and over a process group broadcasts, by the group's own."""

    def __init__(self, summation: QueuedSummation, group: ProcessGroupSummation) -> None:
        super().__init__(summation)
        self._queued, self._group = summation, group

    def broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part] = ()
    ) -> tuple[list[Words], list[Words]]:
        """See `Collectives.broadcast`; over a process group, one broadcast for each source."""
        if self._queued.backend is not self._group:
            return super().broadcast(pieces, sources, ahead)
        results = self.sum_words(ahead) if ahead else []
        return results, self._queued.in_turn(lambda: self._group.broadcast(pieces, sources))

    def gather(self, data: Bytes) -> list[Bytes]:
        """See `Collectives.gather`."""
        return self._queued.in_turn(lambda: self._group.gather(data))
