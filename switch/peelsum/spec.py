"""The switch in plain Python, one packet at a time: the specification with which every target is compared.

It implements the table of slots in docs/reference/protocol.md. A packet is a UDP payload, a port is a number,
and time is a parameter.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from peelsum.wire import (
    ALL_FLAGS,
    CPU_PORT,
    EVERYONE,
    HEADER_BYTES,
    VERSION,
    Flag,
    Kind,
    Level,
    Verdict,
    WireError,
    slot_index,
    slot_tag,
)
from peelsum.wire.clock import DEFAULT_AGE_TICKS, EPOCH_TICKS, FREED_TICKS, TICK_US

HEADER = struct.Struct("!BBBBHHII")
WORD = 0xFFFFFFFF
#: Flags that a slot keeps if any packet had them that was added to it.
KEPT_FLAGS = int(Flag.CE | Flag.FIN)
#: Bits of a worker's number that give its place in its rack.
RACK_BITS = 31

Outputs = list[tuple[int, bytes]]


@dataclass
class Packet:
    """The fields of a packet, with the lanes as a list of unsigned 32-bit integers.

    It is independent of `peelsum.wire`'s batches: each can check the other.
    """

    kind: int
    flags: int
    job_id: int
    generation: int
    sender: int
    chunk_id: int
    bitmap: int
    lanes: list[int]

    @classmethod
    def parse(cls, payload: bytes, lanes: int) -> Packet:
        """Parse `payload`. Raises WireError, whose argument is the verdict to count."""
        size = HEADER_BYTES + 4 * lanes
        if len(payload) < size:
            raise WireError(Verdict.SHORT_PACKET)
        if len(payload) > size:
            raise WireError(Verdict.BAD_LENGTH)
        version, kind, flags, job_id, generation, sender, chunk_id, bitmap = HEADER.unpack_from(payload)
        if version != VERSION:
            raise WireError(Verdict.BAD_VERSION)
        if flags & ~int(ALL_FLAGS):
            raise WireError(Verdict.RESERVED_FLAGS)
        words = list(struct.unpack_from(f"!{lanes}I", payload, HEADER_BYTES))
        return cls(kind, flags, job_id, generation, sender, chunk_id, bitmap, words)

    def build(self) -> bytes:
        """Return the packet as bytes."""
        numbers = (self.job_id, self.generation, self.sender, self.chunk_id, self.bitmap)
        header = HEADER.pack(VERSION, self.kind, self.flags, *numbers)
        return header + struct.pack(f"!{len(self.lanes)}I", *self.lanes)

    @property
    def ce(self) -> bool:
        """Whether the packet carries an ECN mark."""
        return bool(self.flags & Flag.CE)

    def combined_with(self, slot_lanes: list[int]) -> list[int]:
        """Return the sum of both lanes modulo 2**32, or their bitwise OR if the flag OR is set."""
        if self.flags & Flag.OR:
            return [a | b for a, b in zip(self.lanes, slot_lanes, strict=True)]
        return [(a + b) & 0xFFFFFFFF for a, b in zip(self.lanes, slot_lanes, strict=True)]


@dataclass
class Slot:
    """The switch's state for one chunk. A free slot has tag 0."""

    tag: int = 0
    stamp: int = 0
    worker_bitmap: int = 0
    flags: int = 0  # CE and FIN, if any packet that was added had them
    keeps_result: bool = False  # the lanes are the chunk's result, and another chunk may take the slot
    lanes: list[int] = field(default_factory=list)


class JobRow(NamedTuple):
    """A row of table `jobs`."""

    level: Level
    generation: int
    salt: int
    expected_mask: int
    up_port: int
    group: int


class MemberRow(NamedTuple):
    """A row of table `members`: the participant behind a port and its bit in a slot.

    A rack's worker_id is its first worker's. The server's mask is 0.
    """

    role: str
    worker_mask: int
    worker_id: int


SERVER = MemberRow("server", worker_mask=0, worker_id=EVERYONE)

#: Which kinds each role may send. Others are counted as FOREIGN_PORT.
MAY_SEND = {
    "worker": {Kind.CONTRIBUTION, Kind.RETRY, Kind.RESEND, Kind.BYPASS},
    "rack": {Kind.CONTRIBUTION, Kind.BYPASS},
    "server": {Kind.RESULT, Kind.NEED, Kind.RESEND},
}


class SpecSwitch:
    """A switch of `slots` slots of `lanes` 32-bit lanes, with the tables that a controller fills."""

    def __init__(self, lanes: int, slots: int = 4096) -> None:
        self.lanes, self.slots = lanes, slots
        self.jobs: dict[int, JobRow] = {}
        self.members: dict[tuple[int, int], MemberRow] = {}
        self.return_paths: dict[tuple[int, int], int] = {}
        self.groups: dict[int, list[int]] = {}
        self.age_limit = DEFAULT_AGE_TICKS
        self.verdicts: Counter[Verdict] = Counter()
        self.state = [Slot(lanes=[0] * lanes) for _ in range(slots)]

    # -- control plane ---------------------------------------------------------------------------------

    def admit_job(
        self,
        job_id: int,
        *,
        generation: int,
        salt: int,
        expected_mask: int,
        up_port: int,
        group: int,
        level: Level = Level.ONLY,
    ) -> None:
        """Write a row of `jobs`, replacing the previous one."""
        self.jobs[job_id] = JobRow(level, generation, salt, expected_mask, up_port, group)

    def admit_worker(self, job_id: int, port: int, *, worker_mask: int, worker_id: int) -> None:
        """Bind a worker to its port."""
        self.members[job_id, port] = MemberRow("worker", worker_mask, worker_id)

    def admit_rack(self, job_id: int, port: int, *, rack_mask: int, first_worker: int) -> None:
        """Bind a rack, workers `first_worker` (a multiple of 32) to + 31, to the port of its switch."""
        self.members[job_id, port] = MemberRow("rack", rack_mask, first_worker)

    def admit_server(self, job_id: int, port: int) -> None:
        """Bind the job's aggregation server to its port."""
        self.members[job_id, port] = SERVER

    def return_to(self, job_id: int, sender: int, port: int) -> None:
        """Set the return port of packets for `sender` alone."""
        self.return_paths[job_id, sender] = port

    def set_group(self, group: int, ports: list[int]) -> None:
        """Set the ports of a multicast group."""
        self.groups[group] = list(ports)

    def set_age_limit(self, ticks: int) -> None:
        """Set how long an untouched slot keeps its chunk, in ticks: 0 expires at once, NEVER_TICKS never."""
        self.age_limit = ticks

    # -- data plane ------------------------------------------------------------------------------------

    def process(self, port: int, payload: bytes, now_us: int = 0) -> Outputs:
        """Process a packet that arrives at `port`; return the packets sent, as (port, payload) in order."""
        now = (now_us // TICK_US + EPOCH_TICKS) & WORD
        try:
            packet = Packet.parse(payload, self.lanes)
        except WireError as error:
            return self._count(error.args[0])
        if packet.kind == Kind.RESET:
            return self._reset(port, packet, now)
        refusal = self._refusal_verdict(port, packet)
        if refusal is not None:
            return self._count(refusal)
        job, member = self.jobs[packet.job_id], self.members[packet.job_id, port]
        slot = self.state[slot_index(job.salt, packet.chunk_id, self.slots)]
        tag = slot_tag(packet.job_id, packet.chunk_id)
        match packet.kind:
            case Kind.CONTRIBUTION:
                return self._contribute(job, member, packet, slot, tag, now)
            case Kind.RETRY:
                return self._retry(job, member, packet, slot, tag)
            case Kind.RESEND if job.level is Level.SPINE and not packet.flags & Flag.SPINE:
                return self._send_down(job, packet, Verdict.RESEND_FORWARDED)
            case Kind.RESEND:
                return self._resend(job, member, packet, slot, tag)
            case Kind.BYPASS if member.role == "rack":
                self._count(Verdict.BYPASSED)
                return [(job.up_port, packet.build())]
            case Kind.BYPASS:
                packet.bitmap = member.worker_mask
                return self._send_up(job, packet, Verdict.BYPASSED)
            case Kind.RESULT:
                if slot.tag == tag:
                    slot.stamp, slot.worker_bitmap = _expired_stamp(now), 0
                    slot.flags, slot.lanes, slot.keeps_result = packet.flags & KEPT_FLAGS, packet.lanes, True
                return self._send_down(job, packet, Verdict.RESULT_RETURNED)
            case _:
                return self._send_down(job, packet, Verdict.NEED_PASSED)

    def _refusal_verdict(self, port: int, packet: Packet) -> Verdict | None:
        """Return why a packet is refused before its slot is read; None if it is admitted."""
        job = self.jobs.get(packet.job_id)
        if job is None:
            return Verdict.UNKNOWN_JOB
        if packet.generation != job.generation:
            return Verdict.WRONG_GENERATION
        member = self.members.get((packet.job_id, port))
        if member is None:
            return Verdict.FOREIGN_PORT
        rack_bits = RACK_BITS if member.role == "rack" else 0
        if member.role != "server" and packet.sender & ~rack_bits != member.worker_id:
            return Verdict.WRONG_SENDER
        is_for_racks = (
            job.level is Level.SPINE and packet.kind == Kind.RESEND and not packet.flags & Flag.SPINE
        )
        if is_for_racks and member.role != "server":
            return Verdict.FOREIGN_PORT
        return None if packet.kind in MAY_SEND[member.role] else Verdict.FOREIGN_PORT

    def _contribute(
        self, job: JobRow, member: MemberRow, packet: Packet, slot: Slot, tag: int, now: int
    ) -> Outputs:
        """Add a contribution to its chunk's slot, or claim the slot; pass it on if another chunk has it."""
        worker_mask = member.worker_mask
        if slot.tag == tag:
            slot.stamp = now
            if slot.worker_bitmap == 0:
                slot.flags |= packet.flags & KEPT_FLAGS
                packet.bitmap = worker_mask
                return self._send_up(job, packet, Verdict.TOMBSTONED)
            return self._add_to_slot(job, worker_mask, packet, slot)
        # The clock wraps: a slot has expired if its stamp is not later than `now - age_limit`.
        if (now - self.age_limit - slot.stamp) & WORD >= 1 << 31:
            packet.bitmap = worker_mask
            return self._send_up(job, packet, Verdict.COLLIDED)
        slot.tag, slot.stamp, slot.worker_bitmap = tag, now, worker_mask
        slot.flags, slot.lanes, slot.keeps_result = packet.flags & KEPT_FLAGS, packet.lanes, False
        return self._send_if_complete(job, packet, slot)

    def _retry(self, job: JobRow, member: MemberRow, packet: Packet, slot: Slot, tag: int) -> Outputs:
        """Add a repeated contribution to its chunk's slot; it claims no slot."""
        if slot.tag != tag:
            packet.bitmap = member.worker_mask
            return self._send_up(job, packet, Verdict.RESEND_PASSED)
        if slot.worker_bitmap == 0:
            slot.flags |= packet.flags & KEPT_FLAGS
            return self._answer(job, packet, slot) if slot.keeps_result else self._count(Verdict.NOTHING_HELD)
        return self._add_to_slot(job, member.worker_mask, packet, slot)

    def _add_to_slot(self, job: JobRow, worker_mask: int, packet: Packet, slot: Slot) -> Outputs:
        """Add a packet to its chunk's partial sum in the slot, unless its worker has been added before."""
        slot.flags |= packet.flags & KEPT_FLAGS
        if slot.worker_bitmap & worker_mask:
            return self._count(Verdict.DUPLICATE)
        slot.worker_bitmap |= worker_mask
        slot.lanes = packet.combined_with(slot.lanes)
        return self._send_if_complete(job, packet, slot)

    def _send_if_complete(self, job: JobRow, packet: Packet, slot: Slot) -> Outputs:
        """Send the slot's sum to the server if all workers have been added to it."""
        if slot.worker_bitmap != job.expected_mask:
            return self._count(Verdict.ABSORBED)
        packet.bitmap, packet.lanes = slot.worker_bitmap, slot.lanes
        packet.flags |= slot.flags
        return self._send_up(job, packet, Verdict.COMPLETED)

    def _resend(self, job: JobRow, member: MemberRow, packet: Packet, slot: Slot, tag: int) -> Outputs:
        """Send the slot's partial sum to the server; a worker's lanes are added first."""
        worker_mask = member.worker_mask
        if slot.tag == tag and slot.keeps_result:
            slot.flags |= packet.flags & KEPT_FLAGS
            return self._answer(job, packet, slot) if worker_mask else self._count(Verdict.NOTHING_HELD)
        held_bitmap = slot.worker_bitmap if slot.tag == tag else 0
        packet.bitmap = held_bitmap | worker_mask
        if held_bitmap == 0:
            return (
                self._count(Verdict.NOTHING_HELD)
                if worker_mask == 0
                else self._send_up(job, packet, Verdict.RESEND_PASSED)
            )
        is_read_only = worker_mask == 0 or held_bitmap & worker_mask
        slot.lanes = slot.lanes if is_read_only else packet.combined_with(slot.lanes)
        slot.flags |= packet.flags & KEPT_FLAGS
        packet.flags |= slot.flags
        packet.lanes = slot.lanes
        slot.worker_bitmap = 0
        return self._send_up(job, packet, Verdict.RESENT)

    def _answer(self, job: JobRow, packet: Packet, slot: Slot) -> Outputs:
        """Send a worker the result that the slot keeps."""
        packet.kind, packet.lanes = Kind.RESULT, slot.lanes
        packet.flags |= slot.flags
        return self._send_down(job, packet, Verdict.ANSWERED)

    def _reset(self, port: int, packet: Packet, now: int) -> Outputs:
        """Free a slot for the controller, and return the packet."""
        if port != CPU_PORT:
            return self._count(Verdict.FOREIGN_PORT)
        slot = self.state[packet.chunk_id & (self.slots - 1)]
        slot.tag, slot.stamp = 0, _expired_stamp(now)
        self._count(Verdict.RESET_DONE)
        return [(CPU_PORT, packet.build())]

    # -- output ----------------------------------------------------------------------------------------

    def _count(self, verdict: Verdict) -> Outputs:
        self.verdicts[verdict] += 1
        return []

    def _send_up(self, job: JobRow, packet: Packet, verdict: Verdict) -> Outputs:
        """Send a packet towards the server; a leaf's complete sum is a contribution to the spine."""
        self._count(verdict)
        is_leaf_sum = job.level is Level.LEAF and verdict is Verdict.COMPLETED
        packet.kind = Kind.CONTRIBUTION if is_leaf_sum else Kind.BYPASS
        packet.flags &= ~int(Flag.SPINE)
        if is_leaf_sum or job.level is Level.SPINE:
            packet.flags |= Flag.SPINE
        return [(job.up_port, packet.build())]

    def _send_down(self, job: JobRow, packet: Packet, verdict: Verdict) -> Outputs:
        """Send a packet to the worker that it names, or to all ports of the job's group."""
        if packet.sender == EVERYONE:
            self._count(verdict)
            return [(port, packet.build()) for port in self.groups.get(job.group, [])]
        return_port = self.return_paths.get((packet.job_id, packet.sender))
        if return_port is None:
            return self._count(Verdict.NO_RETURN_PATH)
        self._count(verdict)
        return [(return_port, packet.build())]


def _expired_stamp(now: int) -> int:
    """Return a stamp that has expired under every limit."""
    return (now - FREED_TICKS) & WORD
