"""A packet as plain values. Independent of `peelsum.wire`'s batches: each can check the other."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from peelsum.wire import ALL_FLAGS, HEADER_BYTES, VERSION, Flag, Verdict, WireError

HEADER = struct.Struct("!BBBBHHII")


@dataclass
class Packet:
    """The fields of a packet, with the lanes as a list of unsigned 32-bit integers."""

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
