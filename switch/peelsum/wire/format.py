"""The packet format, declared once: fields, constants and limits.

Everything else that knows the format derives from this module: the batches in `peelsum.wire.batch`, the P4
header written by `peelsum.wire.p4`, and the byte table in docs/reference/protocol.md.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from enum import Enum, IntEnum, IntFlag
from typing import NamedTuple

VERSION = 1
#: Bytes of a job's secret, and of a challenge and a proof in a hello: see `peelsum.wire.hello`.
SECRET_BYTES = 16
PROOF_BYTES = 8
#: P4Runtime's `extern_type_id` of the secrets of ports: the last number that is reserved for vendors.
SECRETS_EXTERN = 0xFE
#: UDP destination port that makes a datagram a peelsum packet to a switch.
UDP_PORT = 20563
#: The switch port behind which P4Runtime's PacketOut and PacketIn live.
CPU_PORT = 255
#: The egress port that v1model drops packets to. No job can use it.
DROP_PORT = 511
#: `sender` of a packet that no single worker sent, or that is meant for every worker.
EVERYONE = 0xFFFF
#: Workers that one switch level can tell apart: the width of `bitmap`.
MAX_WORKERS = 32
#: Tag 0 means a free slot, so no job has this number.
RESERVED_JOB_ID = 0
#: The bit of a slot's marks that says that the slot keeps a result. No flag of a packet has this value.
RESULT_KEPT = 0x80
#: Lanes of the pipelines that are committed compiled. 32 fit one pass of Tofino 1; more than 256 need jumbo
#: frames.
COMPILED_LANES = (32, 64, 128, 256, 512, 1024, 2048)
#: The default number of lanes: the largest pipeline whose frames fit an MTU of 1,500 bytes.
DEFAULT_LANES = 256
#: Lanes of the pipelines for each Tofino: what a packet can add up in one pass.
TOFINO_LANES = {"tofino": 32, "tofino2": 64}


_LANE_REGISTER = re.compile(r"\.slot\.lanes\.lane_\d+$")


class HeaderField(NamedTuple):
    """One field of the header: its name and its width in bits. Order is the order on the wire."""

    name: str
    bits: int


#: The header, big-endian, most significant bit first. The lanes follow it, 32 bits each.
FIELDS = (
    HeaderField("version", 8),
    HeaderField("kind", 8),
    HeaderField("flags", 8),
    HeaderField("job_id", 8),
    HeaderField("generation", 16),
    HeaderField("sender", 16),
    HeaderField("chunk_id", 32),
    HeaderField("bitmap", 32),
)
HEADER_BYTES = sum(field.bits for field in FIELDS) // 8


class Kind(IntEnum):
    """What a packet asks of its receiver."""

    CONTRIBUTION = 1  # worker -> switch: add my lanes to the chunk's slot
    RESEND = 2  # to the switch: send the server the slot's partial sum; from a worker: with these lanes added
    BYPASS = 3  # towards the server, without using a slot: a complete or partial sum
    RESULT = 4  # server -> workers: the complete sum
    NEED = 5  # server -> workers named in `bitmap`: send this chunk again
    RESET = 6  # controller -> switch, by PacketOut: free the slot numbered `chunk_id`
    RETRY = 7  # worker -> switch: a repeated contribution: add its lanes if the slot has a sum of this chunk


class Flag(IntFlag):
    """Bits of `flags`. Those not named are reserved: sent as zero, refused otherwise."""

    NONE = 0
    OR = 1  # combine lanes with bitwise OR; else add modulo 2**32
    SPINE = 2  # scope: `bitmap` counts complete racks; else workers of one rack
    CE = 4  # the packet met congestion (CE in its IP header); a sum has the flag if any contribution had it
    FIN = 8  # the job's last chunk: its result means that every worker has all results. A sum keeps it
    OWNED = 16  # the chunk has an owner: a sum is sent to that worker only, an OR has only its words


ALL_FLAGS = Flag.OR | Flag.SPINE | Flag.CE | Flag.FIN | Flag.OWNED


class Verdict(IntEnum):
    """What the switch did with a packet. Every packet counts under exactly one verdict."""

    NOT_PEELSUM = 0  # not an IPv4/UDP datagram to UDP_PORT, and no entry says where to forward it
    SHORT_PACKET = 1  # the frame ends before the last lane
    BAD_LENGTH = 2  # the UDP length is not that of a packet with LANES lanes
    BAD_VERSION = 3
    RESERVED_FLAGS = 4
    UNKNOWN_JOB = 5
    WRONG_GENERATION = 6
    FOREIGN_PORT = 7  # this port may not send this kind for this job
    WRONG_SENDER = 8  # `sender` is not the worker behind this port
    DUPLICATE = 9  # this worker is in the slot already
    NOTHING_HELD = 10  # a RESEND of the server, or a RETRY, but the slot has no sum of this chunk any more
    NO_RETURN_PATH = 11  # a RESULT or NEED for a `sender` the job does not have
    ABSORBED = 12  # added to a slot, packet consumed
    COMPLETED = 13  # the last contribution: the complete sum was sent to the server
    COLLIDED = 14  # the slot belongs to another chunk: the contribution was sent to the server alone
    TOMBSTONED = 15  # the slot has sent its partial sum: the contribution was sent to the server alone
    RESENT = 16  # a RESEND was sent to the server with the slot's partial sum
    RESEND_PASSED = 17  # a RESEND or RETRY was sent to the server alone: the slot has no sum of this chunk
    BYPASSED = 18  # a BYPASS was sent to the server unchanged
    RESULT_RETURNED = 19  # a RESULT was sent to the workers
    NEED_PASSED = 20  # a NEED was sent to the workers
    RESET_DONE = 21  # a slot was freed, and the packet returned to the controller
    RESEND_FORWARDED = 22  # a spine's switch forwarded the server's RESEND to the racks
    FORWARDED = 23  # other traffic, bridged or routed
    ANSWERED = 24  # a RETRY or RESEND was answered with the result that the slot keeps


class Level(Enum):
    """A switch's level in a job; the value is the action of the job's row in table `jobs`."""

    ONLY = "admit_job"  # slots hold workers, sums go to the server
    LEAF = "admit_leaf"  # slots hold a rack's workers, sums are contributions to a spine
    SPINE = "admit_spine"  # slots hold racks, sums go to the server


def packet_bytes(lanes: int) -> int:
    """Return the length of every packet, in bytes of UDP payload, in a pipeline of `lanes` 32-bit lanes."""
    return HEADER_BYTES + 4 * lanes


def count_lanes(registers: Iterable[str]) -> int:
    """Return the number of lanes of peelsum's pipeline, by its registers; 0 for another program."""
    return sum(map(bool, map(_LANE_REGISTER.search, registers)))


def slot_index(salt: int, chunk_id: int, slots: int) -> int:
    """Return the slot of a chunk; `slots` is a power of two, at least 256."""
    return (salt + chunk_id) & (slots - 1)


def slot_tag(job_id: int, chunk_id: int) -> int:
    """Return the tag of a chunk, which identifies it exactly together with the slot's index.

    A slot's index determines at least the low 8 bits of the chunk, so the tag has the job there.
    """
    return (chunk_id & 0xFFFFFF00) | job_id


# The Ethernet, IPv4 (without options) and UDP headers of a packet on a wire
_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
FRAME_HEADER_BYTES = _ETHERNET.size + _IPV4.size + _UDP.size
_ETHERTYPE_IPV4, _PROTOCOL_UDP = 0x0800, 17
_NO_OPTIONS, _DO_NOT_FRAGMENT, _TTL = 0x45, 0x4000, 64


class FrameAddress(NamedTuple):
    """The source or destination of a frame: its MAC and IPv4 addresses."""

    mac: bytes = bytes(6)
    ip: bytes = bytes(4)


NO_ADDRESS = FrameAddress()


def encapsulation(
    packet_bytes: int, source: FrameAddress = NO_ADDRESS, destination: FrameAddress = NO_ADDRESS
) -> bytes:
    """Return the headers of a packet, FRAME_HEADER_BYTES: with an IPv4 checksum, without a UDP checksum."""
    udp_length = _UDP.size + packet_bytes
    addresses = (source.ip, destination.ip)
    fields = (_NO_OPTIONS, 0, _IPV4.size + udp_length, 0, _DO_NOT_FRAGMENT, _TTL, _PROTOCOL_UDP)
    checksum = _internet_checksum(_IPV4.pack(*fields, 0, *addresses))
    return (
        _ETHERNET.pack(destination.mac, source.mac, _ETHERTYPE_IPV4)
        + _IPV4.pack(*fields, checksum, *addresses)
        + _UDP.pack(UDP_PORT, UDP_PORT, udp_length, 0)
    )


def _internet_checksum(header: bytes) -> int:
    """Return the checksum of RFC 1071: the complement of the one's complement sum of 16-bit words."""
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF
