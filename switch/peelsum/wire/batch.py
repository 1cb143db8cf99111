"""Batches of packets as NumPy arrays: packing, unpacking, and a view without copying.

A batch is `uint8[n, packet_bytes(lanes)]`, C-contiguous: what a socket sends and receives in one call.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.wire.format import ALL_FLAGS, FIELDS, RESERVED_JOB_ID, VERSION, Kind, packet_bytes


class WireError(ValueError):
    """Bytes are not a peelsum packet, or a value does not fit its field. Names field, value and remedy."""


Batch = NDArray[np.uint8]


@cache
def packet_dtype(lanes: int) -> np.dtype[Any]:
    """Return the structured dtype of a packet: the header's fields, then `lanes` (big-endian uint32)."""
    names: list[Any] = [(field.name, f">u{field.bits // 8}") for field in FIELDS]
    return np.dtype([*names, ("lanes", ">u4", (lanes,))])


def empty(count: int, lanes: int) -> Batch:
    """Return a batch of `count` packets, zero except for the version."""
    batch = np.zeros((count, packet_bytes(lanes)), np.uint8)
    batch[:, 0] = VERSION
    return batch


def packet_fields(batch: Batch, lanes: int) -> NDArray[Any]:
    """Return the packets of a batch as a structured array [n] that shares its memory, unchecked."""
    return batch.view(packet_dtype(lanes))[:, 0]


def pack(lanes_per_packet: NDArray[np.uint32], **fields: Any) -> Batch:
    """Return a batch of packets with these values.

    `lanes_per_packet` is uint32[n, lanes]; every other field is a scalar or an array [n], 0 by default
    (`version` is set). Raises WireError, which names the first field and value that do not fit.
    """
    count, lanes = lanes_per_packet.shape
    batch = empty(count, lanes)
    packets = packet_fields(batch, lanes)
    packets["lanes"] = lanes_per_packet
    widths = dict(FIELDS)
    for name, values in fields.items():
        if name not in widths:
            raise WireError(f"{name}: no such field; the header has {', '.join(widths)}")
        numbers = np.atleast_1d(np.asarray(values))
        too_large = (numbers < 0) | (numbers >> widths[name] != 0)
        if too_large.any():
            raise WireError(f"{name}: {numbers[too_large][0]} does not fit {widths[name]} bits")
        packets[name] = values
    return batch


def malformed(batch: Batch, lanes: int) -> NDArray[np.bool_]:
    """Return bool[n], which marks packets of another version, an unknown kind, a reserved flag or job 0."""
    packets = packet_fields(batch, lanes)
    is_malformed = (packets["version"] != VERSION) | (packets["flags"] & ~np.uint8(ALL_FLAGS) != 0)
    is_malformed |= (packets["kind"] < min(Kind)) | (packets["kind"] > max(Kind))
    is_malformed |= (packets["job_id"] == RESERVED_JOB_ID) & (packets["kind"] != Kind.RESET)
    return np.asarray(is_malformed, np.bool_)


def unpack(data: bytes | bytearray | memoryview | Batch, lanes: int) -> NDArray[Any]:
    """Return the consecutive packets in `data` as an array [n] of `packet_dtype(lanes)`.

    The array shares memory with `data`. Raises WireError if the bytes are not whole, well-formed packets.
    """
    flat = (
        np.ascontiguousarray(data).reshape(-1)
        if isinstance(data, np.ndarray)
        else np.frombuffer(data, np.uint8)
    )
    size = packet_bytes(lanes)
    if flat.size % size:
        raise WireError(
            f"length: {flat.size} bytes are not a multiple of {size}, the packet of {lanes} lanes; "
            "check that the switch runs a pipeline with as many lanes"
        )
    batch = flat.reshape(-1, size)
    malformed_rows = np.flatnonzero(malformed(batch, lanes))
    if malformed_rows.size:
        raise WireError(
            _validation_error(packet_fields(batch, lanes)[malformed_rows[0]], int(malformed_rows[0]))
        )
    return packet_fields(batch, lanes)


def _validation_error(packet: Any, position: int) -> str:
    """Return the error text of a malformed packet."""
    where = f"packet {position}"
    if packet["version"] != VERSION:
        return f"{where}: version: {packet['version']}, expected {VERSION}; upgrade the older side"
    if packet["flags"] & ~np.uint8(ALL_FLAGS):
        return f"{where}: flags: {packet['flags']:#04x} sets reserved bits; use only {int(ALL_FLAGS):#04x}"
    if not min(Kind) <= packet["kind"] <= max(Kind):
        return (
            f"{where}: kind: {packet['kind']} is none of {', '.join(f'{k.value} ({k.name})' for k in Kind)}"
        )
    return f"{where}: job_id: {packet['job_id']} is reserved; jobs are numbered from 1"
