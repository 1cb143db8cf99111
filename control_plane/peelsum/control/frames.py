"""Build the frames that free slots, and read the ones that acknowledge it."""

from __future__ import annotations

import numpy as np

from peelsum.wire import FRAME_HEADER_BYTES, Kind, WireError, encapsulation, pack, packet_bytes, unpack


def reset_frames(slots: list[int], lanes: int, request: int = 0) -> list[bytes]:
    """Return a RESET frame for each slot.

    lanes: 32-bit values per packet in the running pipeline.
    request: 32 bits that the acknowledgements repeat, as a switch leaves a RESET's bitmap alone.
    """
    batch = pack(
        np.zeros((len(slots), lanes), np.uint32),
        kind=Kind.RESET,
        chunk_id=np.array(slots, np.int64),
        bitmap=request,
    )
    header = encapsulation(packet_bytes(lanes))
    return [header + packet.tobytes() for packet in batch]


def acknowledged_slot(frame: bytes, lanes: int, request: int = 0) -> int | None:
    """Return the slot that a frame from the switch acknowledges as free; None for any other frame.

    request: as for `reset_frames`; acknowledgements of other requests are other frames.
    """
    payload = frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + packet_bytes(lanes)]
    if len(payload) != packet_bytes(lanes):
        return None
    try:
        packet = unpack(payload, lanes)[0]
    except WireError:
        return None
    wanted = packet["kind"] == Kind.RESET and packet["bitmap"] == request
    return int(packet["chunk_id"]) if wanted else None
