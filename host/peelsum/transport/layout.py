"""Packets as rows of big-endian 32-bit words, for compiled loops.

The places of the header fields in a row are derived from the wire format.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.compiling import compiled
from peelsum.wire import ALL_FLAGS, FIELDS, HEADER_BYTES, RESERVED_JOB_ID, Batch, Kind
from peelsum.wire import VERSION as WIRE_VERSION

Words = NDArray[np.uint32]
#: A field's word in the row, its shift in that word, and its mask after shifting.
Place = tuple[int, int, int]

HEADER_WORDS = HEADER_BYTES // 4
#: Added to the first chunk id: no position is ever negative.
SERIAL_BASE = 1 << 32


def _place(name: str) -> Place:
    offset = 0
    for item in FIELDS:
        if item.name == name:
            word, first_bit = divmod(offset, 32)
            return word, 32 - first_bit - item.bits, (1 << item.bits) - 1
        offset += item.bits
    raise KeyError(name)


VERSION = _place("version")
KIND = _place("kind")
FLAGS = _place("flags")
JOB_ID = _place("job_id")
GENERATION = _place("generation")
SENDER = _place("sender")
CHUNK_ID = _place("chunk_id")
BITMAP = _place("bitmap")
_ALL_FLAGS, _RESET = int(ALL_FLAGS), int(Kind.RESET)
_FIRST_KIND, _LAST_KIND = int(min(Kind)), int(max(Kind))


def rows_of(batch: Batch) -> Words:
    """Return a batch uint8[n, packet_bytes] as raw words uint32[n, packet_bytes / 4], sharing memory."""
    rows = np.ascontiguousarray(batch).view(np.uint32)
    return rows if rows.flags.aligned else rows.copy()


@compiled
def copy(source: Words, target: Words) -> None:
    """Copy words. An assignment of slices would allow for overlaps, in memory that Numba allocates."""
    for i in range(target.shape[0]):
        target[i] = source[i]


@compiled
def swap(word: np.uint32) -> np.uint32:
    """Return a 32-bit word with its bytes reversed."""
    native = np.uint32(word)
    return np.uint32((native << 24) | ((native & 0xFF00) << 8) | ((native >> 8) & 0xFF00) | (native >> 24))


@compiled
def get(row: Words, place: Place) -> int:
    """Return a field of one packet, row uint32[words], as int64."""
    return int((np.int64(swap(row[place[0]])) >> place[1]) & place[2])


@compiled
def put(row: Words, place: Place, value: int) -> None:
    """Set a field of one packet, row uint32[words]."""
    kept = np.int64(swap(row[place[0]])) & ~(place[2] << place[1])
    row[place[0]] = swap(np.uint32(kept | (value << place[1])))


@compiled
def well_formed(packet: Words) -> bool:
    """Return whether `wire.malformed` accepts a packet: its version, flags, kind and job."""
    kind = get(packet, KIND)
    valid = get(packet, VERSION) == WIRE_VERSION and get(packet, FLAGS) & ~_ALL_FLAGS == 0
    valid = valid and _FIRST_KIND <= kind <= _LAST_KIND
    return valid and (get(packet, JOB_ID) != RESERVED_JOB_ID or kind == _RESET)


@compiled
def unwrap(chunk_id: int, near: int) -> int:
    """Return the position closest to `near` with this 32-bit chunk id (serial numbers, RFC 1982).

    Positions are int64 and equal their chunk id modulo 2**32, so they order chunks across the wrap.
    """
    ahead = (chunk_id - near) & 0xFFFFFFFF
    return near + (ahead if ahead < 0x80000000 else ahead - 0x100000000)


def run_start(joined: int, number: int, window: int) -> int:
    """Return the position of a run's first chunk.

    joined: the first position after the chunks of the joining sum. number: 32 random bits.
    The result is less than 2**31 ahead: chunk ids then unwrap correctly. It is a multiple of 2 * window
    ahead: the joining chunks keep their rows while a worker may need them.
    """
    ring = 2 * window
    return joined + ring * (1 + number % ((1 << 31) // ring - 2))
