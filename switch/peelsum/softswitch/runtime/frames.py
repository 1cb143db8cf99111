"""Frames in bulk: what goes into a switch and what comes out, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Frames:
    """`n` frames: row i of `data` (uint8[n, stride]) holds `length[i]` bytes of port `port[i]` (int32[n]).

    leave: of frames on their way out, when each will have left a port that has a queue, in ticks (uint64[n]).
    """

    data: NDArray[np.uint8]
    length: NDArray[np.int32]
    port: NDArray[np.int32]
    leave: NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return len(self.length)

    def at(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> Frames:
        """Some of the frames, copied."""
        leave = None if self.leave is None else self.leave[which]
        return Frames(self.data[which], self.length[which], self.port[which], leave)

    @classmethod
    def of(cls, frames: Sequence[tuple[int, bytes]]) -> Frames:
        """Frames from (port, bytes) pairs; handy where there are few."""
        stride = max((len(frame) for _, frame in frames), default=0)
        data = np.zeros((len(frames), stride), np.uint8)
        for row, (_, frame) in zip(data, frames, strict=True):
            row[: len(frame)] = np.frombuffer(frame, np.uint8)
        lengths = np.array([len(frame) for _, frame in frames], np.int32)
        return cls(data, lengths, np.array([port for port, _ in frames], np.int32))

    def pairs(self) -> list[tuple[int, bytes]]:
        """The frames as (port, bytes) pairs, copied."""
        return [
            (int(port), row[:length].tobytes())
            for row, length, port in zip(self.data, self.length, self.port, strict=True)
        ]
