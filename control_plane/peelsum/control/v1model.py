"""The driver for v1model switches, i.e. BMv2 and the softswitch: limits, freeing of slots, ports' secrets.

BMv2 does not support writing registers over P4Runtime. So slots are freed by RESET packets, which are sent by
PacketOut, and acknowledged by PacketIn. Secrets are for ports that are UDP sockets, which only the softswitch
has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from secrets import randbits
from time import monotonic
from typing import Any

import numpy as np
from finsy.p4entity import P4RegisterEntry, P4TableAction, P4TableEntry
from finsy.proto import p4r
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.wrappers_pb2 import BytesValue

from peelsum.control.description import SwitchPlan
from peelsum.control.errors import SwitchError, UnsupportedError
from peelsum.control.sections import TofinoSection
from peelsum.control.session import Session, lanes_and_slots
from peelsum.wire import (
    FRAME_HEADER_BYTES,
    RESERVED_JOB_ID,
    RESULT_KEPT,
    SECRETS_EXTERN,
    Kind,
    WireError,
    encapsulation,
    pack,
    packet_bytes,
    unpack,
)
from peelsum.wire.clock import FREED_TICKS, NEVER_TICKS, TICK_US

_JOB_OF_TAG = 0xFF
_WORD = 0xFFFFFFFF
#: The clock wraps: a freed slot looks as if it were in use once its stamp is FREED_TICKS old. So slots are
#: freed again at half of that age, nine hours.
_STALE_TICKS = FREED_TICKS // 2
#: The most ticks that may pass between freeing the probe slot and reading the stamps: an hour.
_CLOCK_TOLERANCE = 1 << 26
#: The most RESET packets in flight: BMv2 queues 64 packets at a port, and drops further ones.
_MAX_IN_FLIGHT = 64
_ATTEMPTS = 20
_ATTEMPT_S = 0.25


class V1Model:
    """A switch that runs the v1model program."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def check(self, plan: SwitchPlan) -> None:
        """Do nothing: these switches have no limits other than the pipeline's."""

    def bring_up(self, described: TofinoSection | None, section: str) -> None:
        """Do nothing: the ports of these switches are up when they start."""

    def limit_updates(self, age_limit_ms: float | None, queue_depth: int | None) -> list[Any]:
        """Return the updates that set limits. None does not change a limit."""
        updates: list[Any] = []
        if age_limit_ms is not None:
            ticks = round(min(age_limit_ms * 1000 / TICK_US, NEVER_TICKS))
            action = P4TableAction("set_age_limit", ticks=ticks)
            updates.append(~P4TableEntry("limits", action=action, is_default_action=True))
        if queue_depth is not None:
            action = P4TableAction("mark_from", depth=queue_depth)
            updates.append(~P4TableEntry("congestion", action=action, is_default_action=True))
        return updates

    def free_slots(self, plan: SwitchPlan) -> None:
        """Free the slots of a job's earlier generations, and slots with old stamps (`stale_slots`).

        A new pipeline needs this, too: its slots are free, but with stamp 0, and the switch's clock may have
        run for days. Raises SwitchError if the switch does not acknowledge.
        """
        width, size = lanes_and_slots(self._session)
        reset_slots(self._session, slots_to_reset(self._session, plan.job_id, size), width)
        reset_slots(self._session, stale_slots(self._session, size, width), width)

    def free_stale_slots(self) -> None:
        """Free slots with old stamps (`stale_slots`), if the switch can read registers.

        Raises SwitchError if the switch does not acknowledge.
        """
        width, size = lanes_and_slots(self._session)
        reset_slots(self._session, stale_slots(self._session, size, width), width)

    def secret_ports(self) -> set[int] | None:
        """Return the ports with a secret; None if the switch's ports are not UDP sockets."""
        wildcard = p4r.Entity(extern_entry=p4r.ExternEntry(extern_type_id=SECRETS_EXTERN))
        try:
            return {entity.extern_entry.extern_id for entity in self._session.read(wildcard)}
        except UnsupportedError:
            return None

    def secret_updates(self, secrets: Mapping[int, str], known: Collection[int] | None) -> list[Any]:
        """Return the updates that set ports' secrets.

        secrets: the new secret of each port, in hexadecimal; an empty one removes the port's secret.
        known: what `secret_ports` returned; None if the switch's ports are not UDP sockets.
        """
        updates: list[Any] = []
        if known is None:
            return updates
        for port, secret in secrets.items():
            if secret or port in known:
                value = AnyMessage()
                value.Pack(BytesValue(value=bytes.fromhex(secret)))
                entry = p4r.ExternEntry(extern_type_id=SECRETS_EXTERN, extern_id=port, entry=value)
                kind = p4r.Update.MODIFY if port in known else p4r.Update.INSERT
                kind = kind if secret else p4r.Update.DELETE
                updates.append(p4r.Update(type=kind, entity=p4r.Entity(extern_entry=entry)))
        return updates

    def slots_in_use(self) -> dict[int, int] | None:
        """Return the number of slots in use by each job; None if the switch cannot read registers."""
        owners = slot_owners(self._session)
        if owners is None:
            return None
        marks = _register(self._session, "slot_marks")
        return dict(Counter(job_id for slot, job_id in owners.items() if not marks[slot] & RESULT_KEPT))


def slot_owners(session: Session) -> dict[int, int] | None:
    """Return the number of the job whose sum or result each slot has.

    None if the switch does not support reading registers.
    """
    try:
        tags = _register(session, "owner_tag")
    except UnsupportedError:
        return None
    owners = {slot: tag & _JOB_OF_TAG for slot, tag in tags.items()}
    return {slot: job_id for slot, job_id in owners.items() if job_id != RESERVED_JOB_ID}


def slots_to_reset(session: Session, job_id: int, slots: int) -> list[int]:
    """Return the slots that may be in use by a job: all slots if the switch cannot read registers."""
    owners = slot_owners(session)
    return [slot for slot in range(slots) if owners is None or owners.get(slot) == job_id]


def stale_slots(session: Session, slots: int, lanes: int) -> list[int]:
    """Return the slots with a stamp so old that they look as if they were in use, or soon will.

    No packet could claim such a slot. To learn the current time of the switch's clock, free one slot as a
    probe, if possible one that is free already. Return no slots if the switch cannot read registers: then
    every slot is reset anyway.
    """
    owners = slot_owners(session)
    if owners is None:
        return []
    probe = next((slot for slot in range(slots) if slot not in owners), 0)
    reset_slots(session, [probe], lanes)
    stamps = _register(session, "owner_stamp")
    # The stamp of a slot in use is up to FREED_TICKS after the probe's; that of a freed slot, before it.
    earliest = stamps[probe] - _STALE_TICKS
    return [
        slot
        for slot, stamp in stamps.items()
        if (stamp - earliest) & _WORD > _STALE_TICKS + FREED_TICKS + _CLOCK_TOLERANCE
    ]


def _register(session: Session, name: str) -> dict[int, int]:
    """Read a register's values, by index."""
    cells = [entity.register_entry for entity in session.read(P4RegisterEntry(name))]
    return {cell.index.index: int.from_bytes(cell.data.bitstring, "big") for cell in cells}


def reset_frames(slots: list[int], lanes: int, request: int = 0) -> list[bytes]:
    """Return a frame with a RESET packet for each slot.

    lanes: 32-bit values per packet of the running pipeline. request: a number of 32 bits, which the
    acknowledgements repeat in their bitmap.
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
    """Return the slot that a frame from the switch acknowledges as freed; None for any other frame.

    request: the number that was given to `reset_frames`; acknowledgements with another number do not count.
    """
    payload = frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + packet_bytes(lanes)]
    if len(payload) != packet_bytes(lanes):
        return None
    try:
        packet = unpack(payload, lanes)[0]
    except WireError:
        return None
    matches = packet["kind"] == Kind.RESET and packet["bitmap"] == request
    return int(packet["chunk_id"]) if matches else None


def reset_slots(session: Session, slots: Iterable[int], lanes: int) -> None:
    """Free slots, and wait for an acknowledgement of each. RESET packets are retransmitted if they are lost.

    Raises SwitchError with the number of slots that were not acknowledged.
    """
    targets, request, stream = sorted(set(slots)), randbits(32), session.stream
    for start in range(0, len(targets), _MAX_IN_FLIGHT):
        batch = targets[start : start + _MAX_IN_FLIGHT]
        missing, attempts = set(batch), 0
        while missing:
            if attempts == _ATTEMPTS:
                raise SwitchError(
                    f"switch: {session.address} did not acknowledge freeing {len(missing)} of {len(batch)} "
                    f"slots (first: {min(missing)}); does it run with its CPU port enabled?"
                )
            attempts += 1
            for frame in reset_frames(sorted(missing), lanes, request):
                stream.send_packet(frame)
            deadline = monotonic() + _ATTEMPT_S
            while missing and (response := stream.next_packet(deadline)) is not None:
                slot = acknowledged_slot(response, lanes, request)
                if slot is not None:
                    missing.discard(slot)
