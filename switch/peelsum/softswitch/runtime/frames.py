"""Batches of frames as arrays: a switch's input and output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Most bytes of the frames of a batch: more would leave the processor's cache before they are sent.
_BATCH_BYTES = 1_200_000


def frames_per_batch(most: int, stride: int) -> int:
    """Return how many frames of up to `stride` bytes to receive at once; `most` if they are short."""
    return max(1, min(most, _BATCH_BYTES // stride))


@dataclass(frozen=True, slots=True)
class Frames:
    """A batch of n frames."""

    data: NDArray[np.uint8]
    """uint8[n, stride]: row i starts with the bytes of frame i."""
    length: NDArray[np.int32]
    """int32[n]: how many bytes of each row belong to its frame."""
    port: NDArray[np.int32]
    """int32[n]: the port by which each frame arrived or leaves."""
    leave: NDArray[np.uint64] | None = None
    """uint64[n]: when the last bit of each outgoing frame leaves its port's queue, in ticks."""

    def __len__(self) -> int:
        return len(self.length)

    def at(self, selection: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Frames:
        """Return the frames that `selection` has: a copy, or for a slice a view."""
        leave = None if self.leave is None else self.leave[selection]
        return Frames(self.data[selection], self.length[selection], self.port[selection], leave)

    @classmethod
    def of(cls, frames: Sequence[tuple[int, bytes]]) -> Frames:
        """Return the frames of (port, bytes) pairs."""
        stride = max((len(frame) for _, frame in frames), default=0)
        data = np.zeros((len(frames), stride), np.uint8)
        for row, (_, frame) in zip(data, frames, strict=True):
            row[: len(frame)] = np.frombuffer(frame, np.uint8)
        lengths = np.array([len(frame) for _, frame in frames], np.int32)
        return cls(data, lengths, np.array([port for port, _ in frames], np.int32))

    @classmethod
    def joined(cls, batches: list[Frames]) -> list[Frames]:
        """Return the frames of several batches as one batch, without the times when they leave."""
        if len(batches) < 2:
            return batches
        data = np.empty((sum(map(len, batches)), max(batch.data.shape[1] for batch in batches)), np.uint8)
        first = 0
        for batch in batches:
            data[first : first + len(batch), : batch.data.shape[1]] = batch.data
            first += len(batch)
        length, port = (
            np.concatenate([getattr(batch, name) for batch in batches]) for name in ("length", "port")
        )
        return [cls(data, length, port)]

    def pairs(self) -> list[tuple[int, bytes]]:
        """Return the frames as (port, bytes) pairs."""
        return [
            (int(port), row[:length].tobytes())
            for row, length, port in zip(self.data, self.length, self.port, strict=True)
        ]
