"""Free slots by RESET packets through PacketOut, each acknowledged by coming back as PacketIn.

BMv2 cannot write registers over P4Runtime, so slots are freed in this way on every switch.
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

#: Requests in flight: BMv2 queues 64 packets at a port and drops the rest.
_WINDOW = 64
_ATTEMPTS = 20
_ATTEMPT_S = 0.25
_JOB_OF_TAG = 0xFF
_WORD = 0xFFFFFFFF
#: A freed slot looks live once its stamp is FREED_TICKS old. It is freed again at half of that: nine hours.
_STALE_AFTER = FREED_TICKS // 2
#: Ticks that may pass between freeing the probe and reading the other slots' stamps: an hour.
_CLOCK_MOVES = 1 << 26


def free_slots(session: Session, job_id: int, slots: int, lanes: int) -> None:
    """Free the slots of a job's earlier generations, and stale ones.

    slots, lanes: the running pipeline's. A newly committed pipeline needs this, too: its slots are empty, but
    their stamps are 0, and the switch's clock may have run for days. Raises SwitchError as `reset`.
    """
    reset(session, slots_to_reset(session, job_id, slots), lanes)
    reset(session, stale_slots(session, slots, lanes), lanes)


def slot_owners(session: Session) -> dict[int, int] | None:
    """Return the job that holds each slot in use; None if the switch does not let registers be read."""
    try:
        tags = _register(session, "owner_tag")
    except UnsupportedError:
        return None
    owners = {slot: tag & _JOB_OF_TAG for slot, tag in tags.items()}
    return {slot: job_id for slot, job_id in owners.items() if job_id != RESERVED_JOB_ID}


def _register(session: Session, name: str) -> dict[int, int]:
    """Read a register's values, by index."""
    cells = [entity.register_entry for entity in session.read(P4RegisterEntry(name))]
    return {cell.index.index: int.from_bytes(cell.data.bitstring, "big") for cell in cells}


def slots_to_reset(session: Session, job_id: int, slots: int) -> list[int]:
    """Return the slots that may hold a chunk of a job: all slots if registers cannot be read."""
    owners = slot_owners(session)
    return [slot for slot in range(slots) if owners is None or owners.get(slot) == job_id]


def stale_slots(session: Session, slots: int, lanes: int) -> list[int]:
    """Return the slots with a stamp so old that they look live, or soon will. No packet could claim these.

    Frees one free slot as a probe, to learn the current time of the slots' clock. Returns nothing if
    registers cannot be read, as every slot is then reset anyway.
    """
    owners = slot_owners(session)
    probe = next((slot for slot in range(slots) if slot not in owners), None) if owners is not None else None
    if probe is None:
        return []
    reset(session, [probe], lanes)
    stamps = _register(session, "owner_stamp")
    # A slot in use has a stamp up to FREED_TICKS after the probe's; a slot just freed, slightly before it.
    earliest = stamps[probe] - _STALE_AFTER
    return [
        slot
        for slot, stamp in stamps.items()
        if (stamp - earliest) & _WORD > _STALE_AFTER + FREED_TICKS + _CLOCK_MOVES
    ]


def reset(session: Session, slots: Iterable[int], lanes: int) -> None:
    """Free slots, and wait until the switch has acknowledged each. Lost requests are retransmitted.

    Raises SwitchError saying how many slots were never acknowledged.
    """
    wanted = sorted(set(slots))
    for start in range(0, len(wanted), _WINDOW):
        _reset_window(session, wanted[start : start + _WINDOW], lanes)


def _reset_window(session: Session, wanted: list[int], lanes: int) -> None:
    missing, stream = set(wanted), session.stream
    for _ in range(_ATTEMPTS):
        for frame in reset_frames(sorted(missing), lanes):
            stream.send_packet(frame)
        deadline = monotonic() + _ATTEMPT_S
        while missing and (response := stream.next_packet(deadline)) is not None:
            slot = acknowledged_slot(response, lanes)
            if slot is not None:
                missing.discard(slot)
        if not missing:
            return
    raise SwitchError(
        f"switch: {session.address} did not acknowledge freeing {len(missing)} of {len(wanted)} slots "
        f"(first: {min(missing)}); does it run with its CPU port enabled?"
    )
