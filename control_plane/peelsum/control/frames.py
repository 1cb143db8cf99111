"""Frames that a controller sends through PacketOut, and what it finds in the ones that come back."""

from __future__ import annotations

import numpy as np

from peelsum.wire import FRAME_HEADER_BYTES, Kind, WireError, encapsulation, pack, packet_bytes, unpack


def reset_frames(slots: list[int], lanes: int) -> list[bytes]:
    """One frame per slot that asks the switch to free it."""
    batch = pack(
        np.zeros((len(slots), lanes), np.uint32), kind=Kind.RESET, chunk_id=np.array(slots, np.int64)
    )
    header = encapsulation(packet_bytes(lanes))
    return [header + packet.tobytes() for packet in batch]


def acknowledged_slot(frame: bytes, lanes: int) -> int | None:
    """The slot that a frame from the switch says is free; None if it says anything else."""
    payload = frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + packet_bytes(lanes)]
    if len(payload) != packet_bytes(lanes):
        return None
    try:
        packet = unpack(payload, lanes)[0]
    except WireError:
        return None
    return int(packet["chunk_id"]) if packet["kind"] == Kind.RESET else None
