"""A Scapy layer for peelsum packets, to inspect captures and to forge packets.

It is written from docs/reference/protocol.md alone, without `peelsum.wire.format`, so that a test can
compare the two. Scapy is GPL-2.0 and optional (the extra `scapy`). Nothing else in the project imports it or
this module.
"""

from __future__ import annotations

import struct
from typing import Any

from scapy.fields import ByteEnumField, ByteField, Field, FlagsField, IntField, ShortField, XIntField
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_layers

PORT = 20563
VERSION = 1
NOBODY_IN_PARTICULAR = 0xFFFF
KINDS = {1: "CONTRIBUTION", 2: "RESEND", 3: "BYPASS", 4: "RESULT", 5: "NEED", 6: "RESET", 7: "RETRY"}
#: Bit 0 first; the reserved ones have names too, so that they are shown if set.
FLAGS = ["OR", "SPINE", "CE", "FIN", "OWNED", "RESERVED5", "RESERVED6", "RESERVED7"]
LEAST_LANES = 32


class LanesField(Field[list[int], bytes]):
    """All whole 32-bit words up to the end of the datagram. Remaining bytes are left to the next layer."""

    islist = 1

    def __init__(self, name: str, default: list[int]) -> None:
        super().__init__(name, default, "I")

    def i2len(self, pkt: Packet | None, x: Any) -> int:
        """Return the length on the wire, in bytes."""
        return 4 * len(x)

    def addfield(self, pkt: Packet | None, s: bytes, val: list[int] | None) -> bytes:
        """Return `s` followed by the lanes."""
        lanes = val or []
        return s + struct.pack(f"!{len(lanes)}I", *lanes)

    def getfield(self, pkt: Packet | None, s: bytes) -> tuple[bytes, list[int]]:
        """Return the bytes after the lanes, and the lanes."""
        count = len(s) // 4
        return s[4 * count :], list(struct.unpack_from(f"!{count}I", s))

    def any2i(self, pkt: Packet | None, x: Any) -> list[int]:
        """Convert any iterable of integers, including NumPy arrays."""
        return [int(lane) for lane in x]

    def i2repr(self, pkt: Packet | None, x: Any) -> str:
        """Return a short text: the first 8 lanes, or the number of zeros."""
        if not any(x):
            return f"{len(x)} x 0"
        return f"{x}" if len(x) <= 8 else f"{x[:8]} and {len(x) - 8} more"


class Peelsum(Packet):
    """One packet: 16 bytes of header, then the lanes. `len(lanes)` is the deployed pipeline's, 32 to 256.

    >>> Peelsum(kind="NEED", job_id=1, generation=3, chunk_id=7, bitmap=0b101).mysummary()
    'NEED job 1 generation 3 chunk 7 to everybody, workers 0 2, 32 lanes'
    """

    name = "Peelsum"
    fields_desc = [  # noqa: RUF012 (Scapy's own interface)
        ByteField("version", VERSION),
        ByteEnumField("kind", 1, KINDS),
        FlagsField("flags", 0, 8, FLAGS),
        ByteField("job_id", 1),
        ShortField("generation", 0),
        ShortField("sender", NOBODY_IN_PARTICULAR),
        IntField("chunk_id", 0),
        XIntField("bitmap", 0),
        LanesField("lanes", [0] * LEAST_LANES),
    ]

    def mysummary(self) -> str:
        """Return one line: kind, job, chunk, sender or receiver, workers, flags and number of lanes."""
        kind = KINDS.get(self.kind, f"kind {self.kind}")
        if kind == "RESET":
            return f"RESET slot {self.chunk_id}"
        chunk = f"job {self.job_id} generation {self.generation} chunk {self.chunk_id}"
        words = [f"{kind} {chunk} {self._whom()}"]
        if self.bitmap:
            words.append("workers " + " ".join(str(w) for w in range(32) if self.bitmap >> w & 1))
        if self.flags:
            words.append(str(self.flags).replace("+", " "))
        words.append(f"{len(self.lanes)} lanes")
        return ", ".join(words)

    def _whom(self) -> str:
        downwards = KINDS.get(self.kind) in ("RESULT", "NEED")
        if self.sender == NOBODY_IN_PARTICULAR:
            return "to everybody" if downwards else "from nobody in particular"
        return f"{'to' if downwards else 'from'} worker {self.sender}"


bind_layers(UDP, Peelsum, dport=PORT)
