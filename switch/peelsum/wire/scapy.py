"""A Scapy layer for peelsum packets: to look at captures and to forge packets by hand.

It owns a second reading of docs/reference/protocol.md, written from that page alone, and refuses to know
`peelsum.wire.format` and `peelsum.wire.batch`, so that a test can hold one against the other. Scapy is
GPL-2.0 and optional (`pip install 'peelsum[scapy]'`): nothing else in the project imports it or this module.
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
KINDS = {1: "CONTRIBUTION", 2: "RESEND", 3: "BYPASS", 4: "RESULT", 5: "NEED", 6: "RESET"}
#: Bit 0 first; the reserved ones have names too, so that a packet that sets them shows it.
FLAGS = ["OR", "SPINE", "CE", "FIN", "RESERVED4", "RESERVED5", "RESERVED6", "RESERVED7"]
LEAST_LANES = 32


class LanesField(Field[list[int], bytes]):
    """All whole 32-bit words to the end of the datagram; what is left over is not the packet's."""

    islist = 1

    def __init__(self, name: str, default: list[int]) -> None:
        super().__init__(name, default, "I")

    def i2len(self, pkt: Packet | None, x: Any) -> int:
        """Length on the wire, in bytes."""
        return 4 * len(x)

    def addfield(self, pkt: Packet | None, s: bytes, val: list[int] | None) -> bytes:
        """`s` with the lanes after it."""
        lanes = val or []
        return s + struct.pack(f"!{len(lanes)}I", *lanes)

    def getfield(self, pkt: Packet | None, s: bytes) -> tuple[bytes, list[int]]:
        """What follows the lanes, and the lanes."""
        count = len(s) // 4
        return s[4 * count :], list(struct.unpack_from(f"!{count}I", s))

    def any2i(self, pkt: Packet | None, x: Any) -> list[int]:
        """Any iterable of integers is fine, NumPy's too."""
        return [int(lane) for lane in x]

    def i2repr(self, pkt: Packet | None, x: Any) -> str:
        """All zero, or the first few: 256 numbers help nobody who reads a capture."""
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
        """One line: what, of which job and chunk, from or to whom, whose sum, how marked."""
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
