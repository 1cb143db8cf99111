"""Encode which elements of a tensor are not zero: all, by gaps, or as a bitmap, whichever is shortest.

A gap is the number of zeros before a non-zero, in seven bits a byte, the lowest first; the top bit is set in
all bytes of a gap but the last (LEB128).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class TraceError(ValueError):
    """A trace that cannot be read or written. The message names file, fault and remedy in one line."""


Bytes = NDArray[np.uint8]
ALL, GAPS, BITMAP = 0, 1, 2
_MOST_BYTES = 6


def encode(positions: NDArray[np.int64], elements: int) -> tuple[int, Bytes]:
    """Return the form and the bytes of positions int64[k], ascending, of a tensor with so many elements."""
    if positions.size == elements:
        return ALL, np.empty(0, np.uint8)
    gaps = _gaps(positions)
    if gaps.size <= -(-elements // 8):
        return GAPS, gaps
    bits = np.zeros(elements, bool)
    bits[positions] = True
    return BITMAP, np.packbits(bits)


def decode(form: int, data: Bytes, count: int, elements: int) -> NDArray[np.int64]:
    """Return the positions int64[count]. Raises TraceError if the bytes are not of such a support."""
    if form == ALL:
        found, right = np.arange(elements), data.size == 0
    elif form == GAPS:
        found, right = _positions(data), True
    elif form == BITMAP:
        right = data.size == -(-elements // 8)
        found = np.flatnonzero(np.unpackbits(data)) if right else np.empty(0, np.int64)
    else:
        raise TraceError(f"support: form {form} is unknown; record the trace again")
    if not right or found.size != count or (count and found[-1] >= elements):
        raise TraceError(f"support: is not of {count} among {elements} elements; record the trace again")
    return found.astype(np.int64)


def _gaps(positions: NDArray[np.int64]) -> Bytes:
    gaps = np.diff(positions, prepend=-1) - 1
    sizes = np.maximum(1, sum((gaps >= 1 << 7 * part).astype(np.int64) for part in range(_MOST_BYTES)))
    ends = np.cumsum(sizes)
    out = np.empty(int(ends[-1]) if ends.size else 0, np.uint8)
    for part in range(_MOST_BYTES):
        here = np.flatnonzero(sizes > part)
        more = (sizes[here] > part + 1) * 0x80
        out[ends[here] - sizes[here] + part] = (gaps[here] >> 7 * part) & 0x7F | more
    return out


def _positions(data: Bytes) -> NDArray[np.int64]:
    ends = np.flatnonzero(data < 0x80)
    if data.size and (not ends.size or ends[-1] != data.size - 1):
        raise TraceError("support: ends within a gap; record the trace again")
    begins = np.concatenate(([0], ends[:-1] + 1)) if ends.size else ends
    sizes = ends - begins + 1
    if sizes.size and sizes.max() > _MOST_BYTES:
        raise TraceError("support: has a gap of more than 42 bits; record the trace again")
    gaps = np.zeros(ends.size, np.int64)
    for part in range(int(sizes.max()) if sizes.size else 0):
        here = np.flatnonzero(sizes > part)
        gaps[here] |= (data[begins[here] + part].astype(np.int64) & 0x7F) << 7 * part
    return np.cumsum(gaps + 1) - 1
