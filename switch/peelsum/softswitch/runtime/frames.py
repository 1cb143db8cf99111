"""Frames in bulk, as arrays: a switch's input and output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Most bytes of the frames of a turn: more would leave the processor's cache before they are sent.
_TURN_BYTES = 1_200_000


def frames_of_a_turn(most: int, stride: int) -> int:
    """Return how many frames of `stride` bytes to receive in a turn, `most` if they are short."""
    return max(1, min(most, _TURN_BYTES // stride))


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
    """uint64[n]: the time at which each outgoing frame will have left its port's queue, in ticks."""

    def __len__(self) -> int:
        return len(self.length)

    def at(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> Frames:
        """Return a copy of some of the frames."""
        leave = None if self.leave is None else self.leave[which]
        return Frames(self.data[which], self.length[which], self.port[which], leave)

    @classmethod
    def of(cls, frames: Sequence[tuple[int, bytes]]) -> Frames:
        """Return the frames of (port, bytes) pairs."""
        stride = max((len(frame) for _, frame in frames), default=0)
        data = np.zeros((len(frames), stride), np.uint8)
        for row, (_, frame) in zip(data, frames, strict=True):
            row[: len(frame)] = np.frombuffer(frame, np.uint8)
        lengths = np.array([len(frame) for _, frame in frames], np.int32)
        return cls(data, lengths, np.array([port for port, _ in frames], np.int32))

    def pairs(self) -> list[tuple[int, bytes]]:
        """Return the frames as (port, bytes) pairs."""
        return [
            (int(port), row[:length].tobytes())
            for row, length, port in zip(self.data, self.length, self.port, strict=True)
        ]
