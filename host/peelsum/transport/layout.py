"""Packets as rows of big-endian 32-bit words, for compiled loops: where each header field lies, derived from
the wire format, and how to read and write it. Knows nothing of what the fields mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from peelsum.wire import FIELDS, HEADER_BYTES, Batch, pack
from peelsum.wire import format as wire_format

Words = NDArray[np.uint32]
#: A field's word in the row, its shift in that word, and its mask after shifting.
Place = tuple[int, int, int]

HEADER_WORDS = HEADER_BYTES // 4
#: Positions are chunk ids plus this or more, so that none is ever negative.
SERIAL_BASE = 1 << 32

Function = TypeVar("Function", bound=Callable[..., Any])


def _fingerprint() -> str:
    """A hash of all that compiled loops take constants and functions from, besides their own module."""
    here = Path(__file__).parent
    shared = sorted([*here.glob("*_state.py"), *here.glob("*_rows.py")])
    sources = [Path(wire_format.__file__), Path(__file__), *shared]
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()[:16]


_FINGERPRINT = _fingerprint()


def _named_by_sources(function: Function) -> Function:
    """The function under a name of these sources: Numba's cache goes by it, and by the function's own file.

    What is compiled has other modules' constants in it, a header field's place for example, and Numba would
    take it from the cache when only those have changed.
    """
    function.__qualname__ += f"_{_FINGERPRINT}"
    return function


def compiled(function: Function) -> Function:
    """The function, compiled by Numba on its first call, cached on disk, run without Python's lock."""
    return cast(Function, njit(cache=True, nogil=True)(_named_by_sources(function)))


def inlined(function: Function) -> Function:
    """As `compiled`, but made part of what calls it, for what runs per packet with many arrays.

    Numba counts references to each array that is passed, which can cost more than the work.
    """
    return cast(Function, njit(cache=True, nogil=True, inline="always")(_named_by_sources(function)))


def _place(name: str) -> Place:
    offset = 0
    for item in FIELDS:
        if item.name == name:
            word, first_bit = divmod(offset, 32)
            return word, 32 - first_bit - item.bits, (1 << item.bits) - 1
        offset += item.bits
    raise KeyError(name)


KIND = _place("kind")
FLAGS = _place("flags")
JOB_ID = _place("job_id")
GENERATION = _place("generation")
SENDER = _place("sender")
CHUNK_ID = _place("chunk_id")
BITMAP = _place("bitmap")


def rows_of(batch: Batch) -> Words:
    """The batch uint8[n, packet_bytes] as rows of raw words, uint32[n, packet_bytes / 4], sharing memory."""
    rows = np.ascontiguousarray(batch).view(np.uint32)
    return rows if rows.flags.aligned else rows.copy()


def header_row(**fields: Any) -> Words:
    """The raw header words of a packet with these fields, uint32[HEADER_WORDS]."""
    row: Words = pack(np.zeros((1, 0), np.uint32), **fields).view(np.uint32)[0]
    return row


@compiled
def swap(word: np.uint32) -> np.uint32:
    """One 32-bit word with its bytes in the opposite order."""
    native = np.uint32(word)
    return np.uint32((native << 24) | ((native & 0xFF00) << 8) | ((native >> 8) & 0xFF00) | (native >> 24))


@compiled
def get(row: Words, place: Place) -> int:
    """A field of one packet, row uint32[words], as int64."""
    return int((np.int64(swap(row[place[0]])) >> place[1]) & place[2])


@compiled
def put(row: Words, place: Place, value: int) -> None:
    """Set a field of one packet, row uint32[words]."""
    kept = np.int64(swap(row[place[0]])) & ~(place[2] << place[1])
    row[place[0]] = swap(np.uint32(kept | (value << place[1])))


@compiled
def unwrap(chunk_id: int, near: int) -> int:
    """The position closest to `near` that has this 32-bit chunk id: serial-number arithmetic (RFC 1982).

    Positions are int64 and equal their chunk id modulo 2**32, so they order chunks across the wrap.
    """
    ahead = (chunk_id - near) & 0xFFFFFFFF
    return near + (ahead if ahead < 0x80000000 else ahead - 0x100000000)


def run_start(joined: int, number: int, window: int) -> int:
    """The position of a run's first chunk; joining took all before `joined`, `number` is 32 random bits.

    Less than 2**31 ahead, so that it unwraps near there; whole rings of 2 * window rows ahead, so that what
    joining took keeps its rows for as long as somebody may need it.
    """
    ring = 2 * window
    return joined + ring * (1 + number % ((1 << 31) // ring - 2))
