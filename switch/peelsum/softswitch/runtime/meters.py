"""Meters of a running switch: the two-rate three-colour marker of RFC 2698, and its configuration.

A packet is red if the peak bucket has too few tokens, else yellow if the committed bucket has, else green. As
in BMv2, all packets arrive green, and a meter that is not configured leaves them green.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.compiler.extern_layout import (
    METER_BURST,
    METER_COMMITTED,
    METER_CONFIGURED,
    METER_PEAK,
    METER_RATE,
    METER_TIME,
    METER_TOKENS,
    METER_WORDS,
)
from peelsum.softswitch.errors import InvalidEntry
from peelsum.softswitch.runtime.state import FairLock

GREEN, YELLOW, RED = 0, 1, 2
_ZERO, _TWO, _MILLION = 0, 2, 1_000_000
_BUCKET_WORDS = METER_PEAK - METER_COMMITTED
#: Largest burst, in units: more would not fit 64 bits as millionths.
_MOST_BURST = ((1 << 64) - 1) // 1_000_000


def meter_colour(memory: MutableSequence[int], cell: int, now: int, amount: int) -> int:
    """Return the colour of a packet of `amount` units at time `now`, in microseconds; take its tokens."""
    if memory[cell + METER_CONFIGURED] == _ZERO:
        return GREEN
    before = memory[cell + METER_TIME]
    elapsed = now - before if now > before else _ZERO  # no tokens if the clock went back
    memory[cell + METER_TIME] = now
    for number in range(_TWO):
        bucket = cell + METER_COMMITTED + number * _BUCKET_WORDS
        rate, burst, tokens = (
            memory[bucket + METER_RATE],
            memory[bucket + METER_BURST],
            memory[bucket + METER_TOKENS],
        )
        # Divided first, because the product of rate and time could exceed 64 bits.
        if rate != _ZERO and elapsed > (burst - tokens) // rate:
            memory[bucket + METER_TOKENS] = burst
        else:
            memory[bucket + METER_TOKENS] = tokens + elapsed * rate
    cost = amount * _MILLION
    if memory[cell + METER_PEAK + METER_TOKENS] < cost:
        return RED
    memory[cell + METER_PEAK + METER_TOKENS] = memory[cell + METER_PEAK + METER_TOKENS] - cost
    if memory[cell + METER_COMMITTED + METER_TOKENS] < cost:
        return YELLOW
    memory[cell + METER_COMMITTED + METER_TOKENS] = memory[cell + METER_COMMITTED + METER_TOKENS] - cost
    return GREEN


class Rates(NamedTuple):
    """A meter's rates in units (packets or bytes) per second, and its bursts in units."""

    committed: int
    committed_burst: int
    peak: int
    peak_burst: int

    def check(self, meter: str) -> None:
        """Raise InvalidEntry, which names the meter, if it cannot have these rates."""
        if min(self) < 0 or self.peak < self.committed:
            raise InvalidEntry(
                f"meter {meter}: {tuple(self)}: rates must not be negative, nor the peak below the "
                "committed rate"
            )


def _rates(words: list[int]) -> Rates | None:
    """Return the rates in a cell's words; None if it is not configured."""
    if not words[METER_CONFIGURED]:
        return None
    committed, peak = words[METER_COMMITTED:METER_PEAK], words[METER_PEAK:]
    bursts = (bucket[METER_BURST] // _MILLION for bucket in (committed, peak))
    return Rates(committed[METER_RATE], next(bursts), peak[METER_RATE], next(bursts))


class MeterCells:
    """The cells of one meter, by index; of a direct meter, by the number of the entry."""

    def __init__(self, name: str, size: int, base: int, memory: NDArray[np.uint64], lock: FairLock) -> None:
        self.name, self.size = name, size
        self._cells = memory[base : base + size * METER_WORDS].reshape(size, METER_WORDS)
        self._lock = lock

    def read(self, index: int) -> Rates | None:
        """Return the rates of a cell; None if it is not configured."""
        with self._lock:
            return _rates(self._cells[index].tolist())

    def values(self) -> list[Rates | None]:
        """Return the rates of all cells."""
        with self._lock:
            return [_rates(words) for words in self._cells.tolist()]

    def write(self, index: int, rates: Rates | None) -> None:
        """Configure a cell, with full buckets, or make it unconfigured. Raises InvalidEntry."""
        words = [0] * METER_WORDS
        if rates is not None:
            rates.check(self.name)
            bursts = [
                _MILLION * min(burst, _MOST_BURST) for burst in (rates.committed_burst, rates.peak_burst)
            ]
            words = [1, 0, rates.committed, bursts[0], bursts[0], rates.peak, bursts[1], bursts[1]]
        with self._lock:
            self._cells[index] = words
