"""Measurements on which all workers agree: ordered codes in words that any backend can OR.

A value is a level on a logarithmic scale, sent as one bit. The highest bit of the OR is the largest level of
any worker, or the smallest value if levels descend. So every decision follows from the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from peelsum.flexible.collectives import FlexibleConfigError
from peelsum.flexible.methods import Carrier
from peelsum.summation import Words

_LEVELS, _WORD_BITS = 512, 32
_WORDS = _LEVELS // _WORD_BITS


@dataclass(frozen=True)
class _Scale:
    """A logarithmic scale from `least` on, of which level 0 stands for anything smaller, 0 included."""

    least: float
    per_octave: int
    smallest_wins: bool

    def bit(self, value: float) -> int:
        level = 0
        if value >= self.least:
            level = min(1 + round(self.per_octave * math.log2(value / self.least)), _LEVELS - 1)
        return _LEVELS - 1 - level if self.smallest_wins else level

    def value(self, bits: int) -> float:
        bit = bits.bit_length() - 1
        level = _LEVELS - 1 - bit if self.smallest_wins else bit
        return self.least * 2 ** ((level - 1) / self.per_octave) if level else 0.0


# A worker that comes late to an exchange sees the network's own time; the others have waited for it, too.
_NETWORK_S = _Scale(1e-6, 16, smallest_wins=True)
_WORKER_S = _Scale(1e-6, 16, smallest_wins=False)
_GAIN = _Scale(2.0**-15, 32, smallest_wins=True)


@dataclass(frozen=True)
class Measurement:
    """A worker's measurements of a step, or those that all agree on. Times are seconds, 0 if not measured.

    Agreed times are within 2.5 % of a worker's, from a microsecond to an hour; agreed gains within 1.5 %.
    """

    group_small_s: float = 0.0
    """Time of an exchange of a few words over the process group."""
    switch_small_s: float = 0.0
    """Time of an exchange of a few words through the switch."""
    group_probe_s: float = 0.0
    """Time of the probe of the process group, if one was asked for."""
    switch_probe_s: float = 0.0
    """Time of the probe of the switch, if one was asked for."""
    exchange_s: float = 0.0
    """Time of the step's collectives."""
    compress_s: float = 0.0
    """Time of selecting the elements to send."""
    compute_s: float = 0.0
    """The rest of the step's time."""
    gain: float = 0.0
    """Compression gain: the energy of the sent elements over the gradient's, 0 to 1."""

    def small_s(self, carrier: Carrier) -> float:
        """Return the time of an exchange of a few words over `carrier`."""
        return self.group_small_s if carrier == "group" else self.switch_small_s

    def probe_s(self, carrier: Carrier) -> float:
        """Return the time of the probe of `carrier`."""
        return self.group_probe_s if carrier == "group" else self.switch_probe_s

    def words(self) -> Words:
        """Return this as uint32[128], whose OR over all workers `agreed` takes."""
        words = np.zeros(_WORDS * len(_SCALES), np.uint32)
        for part, (name, scale) in enumerate(_SCALES.items()):
            word, bit = divmod(scale.bit(getattr(self, name)), _WORD_BITS)
            words[part * _WORDS + word] = 1 << bit
        return words

    @classmethod
    def agreed(cls, words: Words) -> Measurement:
        """Return the agreed measurements: of the network and the gain the least, of work the most.

        words: uint32[128], the OR of all workers' `words`. Raises FlexibleConfigError for another shape.
        """
        if words.shape != (_WORDS * len(_SCALES),):
            raise FlexibleConfigError(f"words: {words.shape} is not the shape of a measurement's words")
        data, size = words.astype("<u4").tobytes(), 4 * _WORDS
        parts = (int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size))
        return cls(*(scale.value(part) for scale, part in zip(_SCALES.values(), parts, strict=True)))


#: The scale of each field, in the order of fields.
_SCALES = {
    "group_small_s": _NETWORK_S,
    "switch_small_s": _NETWORK_S,
    "group_probe_s": _NETWORK_S,
    "switch_probe_s": _NETWORK_S,
    "exchange_s": _NETWORK_S,
    "compress_s": _WORKER_S,
    "compute_s": _WORKER_S,
    "gain": _GAIN,
}
