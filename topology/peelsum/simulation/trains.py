"""Packets with the times at which they arrive or leave, as hosts, switches and links pass them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class SimulationError(Exception):
    """A scenario that cannot be simulated, or one that does not end. One line names field and remedy."""


#: Times are whole picoseconds, which add up exactly: a byte takes 80 of them at 100 Gbit/s.
PS_PER_S = 10**12
#: Later than everything: about 106 days.
NEVER = (1 << 63) - 1

Times = NDArray[np.int64]


def ps(seconds: float) -> int:
    """Convert seconds to whole picoseconds."""
    return round(seconds * PS_PER_S)


@dataclass(frozen=True)
class Train:
    """Packets in order of time, at one port."""

    times: Times
    """Picoseconds, int64[n], ascending."""
    sizes: NDArray[np.int32]
    """Bytes of each frame on the wire, int32[n]."""
    data: NDArray[np.uint8]
    """Headers, and words if the model has them, uint8[n, any]. Byte 1 is the kind, byte 2 the flags."""

    def __len__(self) -> int:
        return len(self.times)

    def rows(self, chosen: slice | NDArray[np.intp] | NDArray[np.bool_]) -> Train:
        """Return some of the packets."""
        return Train(self.times[chosen], self.sizes[chosen], self.data[chosen])

    def split(self, until: int) -> tuple[Train, Train]:
        """Return the packets before a time, and the others."""
        count = int(np.searchsorted(self.times, until))
        return self.rows(slice(count)), self.rows(slice(count, None))


@dataclass(frozen=True)
class Arrivals:
    """Packets at all ports of one node, in order of time; at equal times, in order of ports."""

    train: Train
    """The packets."""
    ports: NDArray[np.int32]
    """Port of each packet, int32[n]."""

    def __len__(self) -> int:
        return len(self.ports)


def merged(trains: Sequence[tuple[int, Train]]) -> Arrivals:
    """Merge trains, each with its port, in the order of ports. The result depends on times and ports only."""
    ports = np.concatenate([np.full(len(train), port, np.int32) for port, train in trains])
    if len(trains) == 1:
        return Arrivals(trains[0][1], ports)
    whole = joined([train for _, train in trains])
    order = np.argsort(whole.times, kind="stable")
    return Arrivals(whole.rows(order), ports[order])


def joined(trains: Sequence[Train]) -> Train:
    """Concatenate trains."""
    if len(trains) == 1:
        return trains[0]
    return Train(
        np.concatenate([train.times for train in trains]),
        np.concatenate([train.sizes for train in trains]),
        np.concatenate([train.data for train in trains]),
    )
