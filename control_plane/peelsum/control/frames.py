"""Build the frames that free slots, and read the ones that acknowledge it."""

from __future__ import annotations

import numpy as np

from peelsum.wire import FRAME_HEADER_BYTES, Kind, WireError, encapsulation, pack, packet_bytes, unpack


def reset_frames(slots: list[int], lanes: int) -> list[bytes]:
    """Return a RESET frame for each slot.

    lanes: 32-bit values per packet in the running pipeline.
    """
    batch = pack(
        np.zeros((len(slots), lanes), np.uint32), kind=Kind.RESET, chunk_id=np.array(slots, np.int64)
    )
    header = encapsulation(packet_bytes(lanes))
    return [header + packet.tobytes() for packet in batch]


def acknowledged_slot(frame: bytes, lanes: int) -> int | None:
    """Return the slot that a frame from the switch acknowledges as free; None for any other frame."""
    payload = frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + packet_bytes(lanes)]
    if len(payload) != packet_bytes(lanes):
        return None
    try:
        packet = unpack(payload, lanes)[0]
    except WireError:
        return None
    return int(packet["chunk_id"]) if packet["kind"] == Kind.RESET else None
