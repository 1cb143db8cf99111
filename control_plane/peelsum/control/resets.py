"""Freeing slots in-band: RESET packets through PacketOut, each acknowledged by coming back as PacketIn.

BMv2 cannot write registers over P4Runtime, so this is how every target does it.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from finsy.p4entity import P4RegisterEntry

from peelsum.control.errors import SwitchError, UnsupportedError
from peelsum.control.frames import acknowledged_slot, reset_frames
from peelsum.control.session import Session
from peelsum.wire import RESERVED_JOB_ID
from peelsum.wire.clock import FREED_TICKS

#: Requests on the way at once: BMv2 queues 64 packets at a port and drops the rest.
_WINDOW = 64
_ATTEMPTS = 20
_ATTEMPT_S = 0.25
_JOB_OF_TAG = 0xFF
_WORD = 0xFFFFFFFF
#: A freed slot looks live when its stamp is FREED_TICKS older. It is freed again in time: after nine hours.
_STALE_AFTER = FREED_TICKS // 2
#: Ticks that may pass between freeing a slot and reading the others' stamps: an hour.
_CLOCK_MOVES = 1 << 26


def slot_owners(session: Session) -> dict[int, int] | None:
    """Slots that hold something, and the job it is of; None where the switch lets no registers be read."""
    try:
        tags = _register(session, "owner_tag")
    except UnsupportedError:
        return None
    owners = {slot: tag & _JOB_OF_TAG for slot, tag in tags.items()}
    return {slot: job_id for slot, job_id in owners.items() if job_id != RESERVED_JOB_ID}


def _register(session: Session, name: str) -> dict[int, int]:
    """A register's values by index."""
    cells = [entity.register_entry for entity in session.read(P4RegisterEntry(name))]
    return {cell.index.index: int.from_bytes(cell.data.bitstring, "big") for cell in cells}


def slots_to_reset(session: Session, job_id: int, slots: int) -> list[int]:
    """The slots that may hold something of a job: all of them where the switch does not say."""
    owners = slot_owners(session)
    return [slot for slot in range(slots) if owners is None or owners.get(slot) == job_id]


def stale_slots(session: Session, slots: int, lanes: int) -> list[int]:
    """The slots that nobody has used for so long that they look live, or soon will: nobody could claim them.

    One free slot is freed once more to learn what the slots' clock says. Empty where registers cannot be
    read: there every slot is reset anyway.
    """
    owners = slot_owners(session)
    probe = next((slot for slot in range(slots) if slot not in owners), None) if owners is not None else None
    if probe is None:
        return []
    reset(session, [probe], lanes)
    stamps = _register(session, "owner_stamp")
    # Stamps in use are up to FREED_TICKS later than the probe's, those of slots freed lately a bit earlier.
    earliest = stamps[probe] - _STALE_AFTER
    return [
        slot
        for slot, stamp in stamps.items()
        if (stamp - earliest) & _WORD > _STALE_AFTER + FREED_TICKS + _CLOCK_MOVES
    ]


def reset(session: Session, slots: Iterable[int], lanes: int) -> None:
    """Free slots and wait until the switch says so, asking again for what got lost.

    Raises SwitchError naming how many were not acknowledged in the end.
    """
    wanted = sorted(set(slots))
    for start in range(0, len(wanted), _WINDOW):
        _reset_window(session, wanted[start : start + _WINDOW], lanes)


def _reset_window(session: Session, wanted: list[int], lanes: int) -> None:
    missing = set(wanted)
    for _ in range(_ATTEMPTS):
        for frame in reset_frames(sorted(missing), lanes):
            session.send_packet(frame)
        deadline = monotonic() + _ATTEMPT_S
        while missing and (answer := session.next_packet(deadline)) is not None:
            slot = acknowledged_slot(answer, lanes)
            if slot is not None:
                missing.discard(slot)
        if not missing:
            return
    raise SwitchError(
        f"switch: {session.address} did not acknowledge freeing {len(missing)} of {len(wanted)} slots "
        f"(first: {min(missing)}); does it run with its CPU port enabled?"
    )
