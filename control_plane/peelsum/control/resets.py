"""Free slots by RESET packets through PacketOut, each acknowledged by coming back as PacketIn.

BMv2 cannot write registers over P4Runtime, so slots are freed in this way wherever P4Runtime is spoken.
"""

from __future__ import annotations

from collections.abc import Iterable
from secrets import randbits
from time import monotonic

import numpy as np

from peelsum.control.errors import SwitchError
from peelsum.control.session import Session
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


#: Requests in flight: BMv2 queues 64 packets at a port and drops the rest.
_WINDOW = 64
_ATTEMPTS = 20
_ATTEMPT_S = 0.25


def reset(session: Session, slots: Iterable[int], lanes: int) -> None:
    """Free slots, and wait until the switch has acknowledged each. Lost requests are retransmitted.

    A late acknowledgement of an earlier request, perhaps of another controller, does not count.
    Raises SwitchError saying how many slots were never acknowledged.
    """
    wanted, request = sorted(set(slots)), randbits(32)
    for start in range(0, len(wanted), _WINDOW):
        _reset_window(session, wanted[start : start + _WINDOW], lanes, request)


def _reset_window(session: Session, wanted: list[int], lanes: int, request: int) -> None:
    missing, stream = set(wanted), session.stream
    for _ in range(_ATTEMPTS):
        for frame in reset_frames(sorted(missing), lanes, request):
            stream.send_packet(frame)
        deadline = monotonic() + _ATTEMPT_S
        while missing and (response := stream.next_packet(deadline)) is not None:
            slot = acknowledged_slot(response, lanes, request)
            if slot is not None:
                missing.discard(slot)
        if not missing:
            return
    raise SwitchError(
        f"switch: {session.address} did not acknowledge freeing {len(missing)} of {len(wanted)} slots "
        f"(first: {min(missing)}); does it run with its CPU port enabled?"
    )
