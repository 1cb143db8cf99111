"""The Scapy layer, written from the protocol's page alone, against pack and unpack: the same bytes."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peelsum import wire

scapy = pytest.importorskip("peelsum.wire.scapy", reason="scapy is optional: pip install 'peelsum[scapy]'")
from scapy.layers.inet import IP, UDP  # noqa: E402
from scapy.layers.l2 import Ether  # noqa: E402
from scapy.packet import Raw  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs/reference/protocol.md"
FIELDS = ("kind", "flags", "job_id", "generation", "sender", "chunk_id", "bitmap")

u16, u32 = (st.integers(0, 2**bits - 1) for bits in (16, 32))
HEADERS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(list(wire.Kind)),
        "flags": st.integers(0, 15),
        "job_id": st.integers(1, 255),
        "generation": u16,
        "sender": u16,
        "chunk_id": u32,
        "bitmap": u32,
    }
)
LANES = st.lists(u32, min_size=0, max_size=9)


@given(HEADERS, LANES)
def test_what_the_layer_builds_unpack_reads(header, lanes):
    (packet,) = wire.unpack(bytes(scapy.Peelsum(**header, lanes=lanes)), lanes=len(lanes))
    assert packet["version"] == wire.VERSION
    assert {name: int(packet[name]) for name in FIELDS} == header
    assert packet["lanes"].tolist() == lanes


@given(HEADERS, LANES)
def test_what_pack_builds_the_layer_reads(header, lanes):
    packet = scapy.Peelsum(wire.pack(np.array([lanes], np.uint32), **header).tobytes())
    assert packet.version == wire.VERSION
    assert {name: int(getattr(packet, name)) for name in FIELDS} == header
    assert packet.lanes == lanes


@given(st.binary(min_size=wire.HEADER_BYTES, max_size=80))
def test_any_bytes_are_read_alike_and_built_again(payload):
    packet = scapy.Peelsum(payload)
    lanes = (len(payload) - wire.HEADER_BYTES) // 4
    (fields,) = wire.fields_of(np.frombuffer(payload, np.uint8)[None, : wire.packet_bytes(lanes)], lanes)
    assert {name: int(getattr(packet, name)) for name in FIELDS} == {
        name: int(fields[name]) for name in FIELDS
    }
    assert packet.lanes == fields["lanes"].tolist()
    packet.clear_cache()
    assert bytes(packet) == payload


@given(
    st.integers(0, 3),
    st.integers(0, 8),
    st.one_of(st.integers(0, 15), st.integers(0, 255)),
    st.integers(0, 2),
)
def test_what_the_page_has_receivers_drop_is_malformed(version, kind, flags, job_id):
    packet = scapy.Peelsum(version=version, kind=kind, flags=flags, job_id=job_id, lanes=[1])
    drop = version != 1 or flags & 0xE0 or kind not in scapy.KINDS or (job_id == 0 and kind != 6)
    assert wire.malformed(np.frombuffer(bytes(packet), np.uint8)[None], 1).tolist() == [bool(drop)]


def test_constants_agree():
    assert (scapy.PORT, scapy.VERSION, scapy.NOBODY_IN_PARTICULAR) == (
        wire.UDP_PORT,
        wire.VERSION,
        wire.EVERYONE,
    )
    assert {int(kind): kind.name for kind in wire.Kind} == scapy.KINDS
    assert [flag.name for flag in wire.Flag] == scapy.FLAGS[: len(wire.Flag)]
    assert [int(flag) for flag in wire.Flag] == [1 << bit for bit in range(len(wire.Flag))]


def test_the_page_s_byte_table_is_the_layer_s():
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    offset, expected = 0, []
    for field in scapy.Peelsum.fields_desc[:-1]:
        expected.append((str(offset), str(int(field.sz)), field.name))
        offset += int(field.sz)
    assert rows == expected
    assert offset == wire.HEADER_BYTES


def test_a_frame_to_the_port_is_recognised():
    frame = Ether() / IP() / UDP(sport=4000, dport=wire.UDP_PORT) / scapy.Peelsum(kind="RESULT", lanes=[1, 2])
    seen = Ether(bytes(frame))
    assert seen[UDP].len == 8 + 16 + 8
    assert seen[scapy.Peelsum].lanes == [1, 2]
    assert scapy.Peelsum not in Ether(bytes(Ether() / IP() / UDP(dport=4000) / Raw(bytes(32))))


def test_defaults_are_a_packet_of_the_narrow_pipeline():
    (packet,) = wire.unpack(bytes(scapy.Peelsum()), lanes=32)
    assert packet["version"] == wire.VERSION
    assert packet["kind"] == wire.Kind.CONTRIBUTION
    assert not packet["lanes"].any()


def test_a_short_datagram_is_left_raw():
    assert Raw in Ether(bytes(Ether() / IP() / UDP(dport=wire.UDP_PORT) / Raw(bytes(9))))


@pytest.mark.parametrize(
    ("fields", "summary"),
    [
        (
            {"kind": "CONTRIBUTION", "job_id": 2, "generation": 5, "sender": 1, "chunk_id": 9, "bitmap": 2},
            "CONTRIBUTION job 2 generation 5 chunk 9 from worker 1, workers 1, 32 lanes",
        ),
        (
            {"kind": "RESULT", "job_id": 2, "chunk_id": 9, "flags": "OR+CE"},
            "RESULT job 2 generation 0 chunk 9 to everybody, OR CE, 32 lanes",
        ),
        (
            {"kind": "NEED", "sender": 3, "bitmap": 0x80000001, "lanes": [7]},
            "NEED job 1 generation 0 chunk 0 to worker 3, workers 0 31, 1 lanes",
        ),
        (
            {"kind": "RESEND", "flags": 0x20},
            "RESEND job 1 generation 0 chunk 0 from nobody in particular, RESERVED5, 32 lanes",
        ),
        ({"kind": "RESET", "chunk_id": 4095}, "RESET slot 4095"),
        ({"kind": 99}, "kind 99 job 1 generation 0 chunk 0 from nobody in particular, 32 lanes"),
    ],
)
def test_summaries_are_sentences(fields, summary):
    assert scapy.Peelsum(**fields).summary() == summary


def test_long_lanes_are_shown_by_their_beginning():
    shown = scapy.Peelsum(lanes=np.arange(256)).show(dump=True)
    assert "[0, 1, 2, 3, 4, 5, 6, 7] and 248 more" in shown


def test_nothing_else_needs_scapy():
    """Importing the package's parts leaves Scapy, a GPL library, alone."""
    code = (
        "import sys, peelsum.wire, peelsum.spec, peelsum.softswitch, peelsum.transport\n"
        "assert not any(name.split('.')[0] == 'scapy' for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
