"""The packet format: golden vectors both ways, all values, what is no packet, frames, the dissector."""

import itertools
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peelsum import wire
from peelsum.spec import Packet
from peelsum.wire import FIELDS, FRAME_HEADER_BYTES, UDP_PORT, Flag, FrameAddress, Kind, encapsulation, pack
from peelsum.wire.wireshark import dissector

#: One packet of two lanes, written out by hand from the byte table in docs/reference/protocol.md.
GOLDEN_VALUES = {
    "kind": wire.Kind.RESEND,
    "flags": wire.Flag.OR | wire.Flag.FIN,
    "job_id": 0x2A,
    "generation": 0x1234,
    "sender": 0x0007,
    "chunk_id": 0xFFFFFFFE,
    "bitmap": 0x80000001,
}
GOLDEN_LANES = [0x00000001, 0xDEADBEEF]
GOLDEN_BYTES = bytes.fromhex("01 02 09 2a 1234 0007 fffffffe 80000001 00000001 deadbeef")

u8, u16, u32 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32))
FLAGS = st.sampled_from([f for f in range(256) if not f & ~int(wire.ALL_FLAGS)])
HEADERS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(list(wire.Kind)),
        "flags": FLAGS,
        "job_id": st.integers(1, 255),
        "generation": u16,
        "sender": u16,
        "chunk_id": u32,
        "bitmap": u32,
    }
)


def test_golden_vector_packs():
    assert wire.pack(np.array([GOLDEN_LANES], np.uint32), **GOLDEN_VALUES).tobytes() == GOLDEN_BYTES


def test_golden_vector_unpacks():
    (packet,) = wire.unpack(GOLDEN_BYTES, lanes=2)
    assert packet["version"] == wire.VERSION
    assert {name: int(packet[name]) for name in GOLDEN_VALUES} == GOLDEN_VALUES
    assert packet["lanes"].tolist() == GOLDEN_LANES


def test_golden_vector_in_the_specification():
    packet = Packet.parse(GOLDEN_BYTES, lanes=2)
    assert {name: getattr(packet, name) for name in GOLDEN_VALUES} == GOLDEN_VALUES
    assert packet.lanes == GOLDEN_LANES
    assert packet.build() == GOLDEN_BYTES


@given(st.lists(st.tuples(HEADERS, st.lists(u32, min_size=3, max_size=3)), max_size=5))
def test_unpack_inverts_pack(packets):
    columns = {name: np.array([h[name] for h, _ in packets], np.uint64) for name in GOLDEN_VALUES}
    lanes = np.array([values for _, values in packets], np.uint32).reshape(-1, 3)
    unpacked = wire.unpack(wire.pack(lanes, **columns).tobytes(), lanes=3)
    for row, (header, values) in zip(unpacked, packets, strict=True):
        assert {name: int(row[name]) for name in GOLDEN_VALUES} == header
        assert row["lanes"].tolist() == values


@given(HEADERS, st.lists(u32, min_size=3, max_size=3))
def test_pack_agrees_with_the_specification(header, values):
    packed = wire.pack(np.array([values], np.uint32), **header).tobytes()
    assert Packet(**header, lanes=values).build() == packed


@pytest.mark.parametrize("name", ["kind", "flags", "job_id", "generation", "sender", "chunk_id", "bitmap"])
@pytest.mark.parametrize("past", [-1, "end"])
def test_pack_refuses_what_does_not_fit(name, past):
    value = -1 if past == -1 else 1 << dict(wire.FIELDS)[name]
    with pytest.raises(wire.WireError, match=rf"^{name}: {value} does not fit"):
        wire.pack(np.zeros((1, 2), np.uint32), **{name: value})


def test_pack_refuses_an_unknown_field():
    with pytest.raises(wire.WireError, match=r"^rank: no such field"):
        wire.pack(np.zeros((1, 2), np.uint32), rank=1)


@pytest.mark.parametrize(
    ("offset", "byte", "message"),
    [
        (0, 2, "version: 2"),
        (1, 0, "kind: 0"),
        (1, 8, "kind: 8"),
        (2, 0x20, "flags: 0x20 sets reserved bits"),
        (3, 0, "job_id: 0 is reserved"),
    ],
)
def test_unpack_names_the_field(offset, byte, message):
    damaged = bytearray(GOLDEN_BYTES * 2)
    damaged[len(GOLDEN_BYTES) + offset] = byte
    with pytest.raises(wire.WireError, match=rf"^packet 1: {message}"):
        wire.unpack(damaged, lanes=2)


def test_random_bytes_raise_the_wire_error_or_are_packets():
    """Half of the cases are random bytes, half golden packets with a few bytes changed."""
    rng = np.random.default_rng(1)
    refused = accepted = 0
    for case in range(20_000):
        if case % 2:
            data = rng.bytes(int(rng.integers(0, 100)))
        else:
            damaged = bytearray(GOLDEN_BYTES)
            for position in rng.integers(0, len(damaged), int(rng.integers(1, 4))):
                damaged[position] = rng.integers(256)
            data = bytes(damaged)
        try:
            packets = wire.unpack(data, lanes=2)
        except wire.WireError:
            refused += 1
        else:
            accepted += 1
            assert packets.tobytes() == data
    assert refused > 8000
    assert accepted > 2000


def test_malformed_agrees_with_unpack_packet_by_packet():
    rng = np.random.default_rng(2)
    batch = wire.pack(np.zeros((4096, 2), np.uint32), kind=1, job_id=1)
    batch[:, :4] = rng.integers(0, 8, (4096, 4))
    marked = wire.malformed(batch, lanes=2)
    for packet, is_malformed in zip(batch, marked, strict=True):
        try:
            wire.unpack(packet, lanes=2)
            assert not is_malformed
        except wire.WireError:
            assert is_malformed
    assert 0 < marked.sum() < 4096


def test_the_page_has_the_fields_and_the_packets_that_receivers_drop():
    page = (Path(__file__).parents[2] / "docs/reference/protocol.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", page, re.MULTILINE)
    sizes = [field.bits // 8 for field in wire.FIELDS]
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    names = [field.name for field in wire.FIELDS]
    assert rows == [tuple(map(str, row)) for row in zip(offsets, sizes, names, strict=True)]
    headers = np.array(list(itertools.product(range(4), range(9), range(256), range(3))), np.uint8)
    batch = wire.empty(len(headers), 1)
    batch[:, :4] = headers
    version, kind, flags, job_id = headers.T
    dropped = (version != 1) | (flags & 0xE0 != 0) | (kind < 1) | (kind > 7) | ((job_id == 0) & (kind != 6))
    np.testing.assert_array_equal(wire.malformed(batch, 1), dropped)


def test_constants_are_those_of_the_page():
    assert (wire.UDP_PORT, wire.VERSION, wire.EVERYONE, wire.ALL_FLAGS) == (20563, 1, 0xFFFF, 0x1F)
    assert " ".join(kind.name for kind in wire.Kind) == "CONTRIBUTION RESEND BYPASS RESULT NEED RESET RETRY"
    assert [int(kind) for kind in wire.Kind] == list(range(1, 8))
    assert {flag.name: int(flag) for flag in wire.Flag if flag} == {
        name: 1 << bit for bit, name in enumerate(["OR", "SPINE", "CE", "FIN", "OWNED"])
    }


def test_slot_and_tag_identify_every_chunk():
    """Index and tag together are exact: no two chunks of any jobs share both."""
    slots = 256
    chunks = [0, 1, 255, 256, 257, 2**24, 2**31, 2**32 - 1]
    for salt in (0, 7):
        seen = {
            (wire.slot_index(salt, c, slots), wire.slot_tag(job, c)) for job in (1, 2, 255) for c in chunks
        }
        assert len(seen) == 3 * len(chunks)
        assert all(tag < 2**32 for _, tag in seen)


scapy = pytest.importorskip("scapy.layers.inet", reason="Scapy is not installed")

WORKER = FrameAddress(bytes.fromhex("020000000001"), bytes([10, 0, 0, 1]))
#: With 144 bytes, adding the carry to the checksum's sum carries once more.
SERVER = FrameAddress(bytes.fromhex("02000000fffe"), bytes([255, 254, 48, 67]))


@pytest.mark.parametrize("packet_bytes", [16, 144, 1040, 65507 - 28])
@pytest.mark.parametrize(("source", "destination"), [(WORKER, SERVER), (SERVER, WORKER)])
def test_headers_are_those_of_another_implementation(source, destination, packet_bytes):
    ethernet = scapy.Ether(src=_mac(source), dst=_mac(destination))
    ip = scapy.IP(src=_ip(source), dst=_ip(destination), id=0, flags="DF", ttl=64)
    udp = scapy.UDP(sport=UDP_PORT, dport=UDP_PORT, chksum=0)
    frame = bytes(ethernet / ip / udp / bytes(packet_bytes))
    assert encapsulation(packet_bytes, source, destination) == frame[:FRAME_HEADER_BYTES]
    assert len(frame) == FRAME_HEADER_BYTES + packet_bytes


def _mac(address):
    return address.mac.hex(":")


def _ip(address):
    return ".".join(map(str, address.ip))


PACKETS = pack(
    np.arange(64, dtype=np.uint32).reshape(2, 32),
    kind=[Kind.CONTRIBUTION, Kind.RESULT],
    flags=[Flag.OR, Flag.SPINE | Flag.CE | Flag.FIN],
    job_id=7,
    generation=0xABCD,
    sender=[3, 0xFFFF],
    chunk_id=[0xFFFFFFFE, 12],
    bitmap=[0b1000, 0xF0000001],
)


def write_pcap(path, packets):
    """Return a capture of packets, one per frame."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for packet in packets:
            frame = encapsulation(len(packet)) + packet
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)


def test_every_field_and_flag_is_declared_and_read():
    text = dissector()
    for name, bits in FIELDS:
        assert f'f_{name} = ProtoField.uint{bits}("peelsum.{name}"' in text
        assert text.count(f"(f_{name}, buffer(") == 1
    for flag in Flag:
        assert (
            f'("peelsum.flags.{flag.name.lower()}", "{flag.name}", 8, nil, {flag.value})' in text or not flag
        )
    assert text.index(" local flags = ") < text.index(" flags:add(")
    used = set(re.findall(r"\bf_\w+", text))
    assert used == set(re.findall(r"^local (f_\w+) = ProtoField", text, re.MULTILINE)) > {"f_lane"}


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not on PATH")
def test_tshark_reads_a_capture(tmp_path):
    (tmp_path / "peelsum.lua").write_text(dissector())
    capture = tmp_path / "x.pcap"
    write_pcap(capture, [packet.tobytes() for packet in PACKETS])
    command = ["tshark", "-X", f"lua_script:{tmp_path / 'peelsum.lua'}", "-r", str(capture)]
    fields = [name for name, _ in FIELDS] + [f"flags.{flag.name.lower()}" for flag in Flag if flag] + ["lane"]
    options = [option for name in fields for option in ("-e", f"peelsum.{name}")]
    lines = subprocess.check_output([*command, "-T", "fields", *options], text=True).splitlines()
    first, second = (dict(zip(fields, line.split("\t"), strict=True)) for line in lines)
    assert first["lane"] == ",".join(map(str, range(32)))
    assert second["lane"] == ",".join(map(str, range(32, 64)))
    assert (first["version"], first["kind"], second["kind"]) == ("1", "1", "4")
    assert (first["job_id"], first["generation"]) == ("7", str(0xABCD))
    assert (first["sender"], first["chunk_id"], second["chunk_id"]) == ("3", "4294967294", "12")
    assert (first["bitmap"], second["bitmap"]) == ("0x00000008", "0xf0000001")
    flags = [
        [packet[f"flags.{name}"] in ("1", "True") for name in ("or", "spine", "ce", "fin")]
        for packet in (first, second)
    ]
    assert flags == [[True, False, False, False], [False, True, True, True]]
    summary = subprocess.check_output(command, text=True).splitlines()
    assert "CONTRIBUTION of 3, chunk 4294967294" in summary[0]
    assert "RESULT, chunk 12" in summary[1]
