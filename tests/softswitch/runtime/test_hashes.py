"""Hashes compared with zlib and with polynomial division, in both modes."""

import random
import struct
import zlib
from functools import reduce
from operator import xor

import pytest
from program_frames import changed_switch
from random_programs import csum16
from softswitch_frames import send

from peelsum.softswitch.program.model import GroupReference
from peelsum.softswitch.runtime import hashes, plain

CRC16, CRC32, CSUM16, XOR16, IDENTITY, ODD, SMALL, EGRESS = range(8)


def reflected(value, bits):
    return int(f"{value:0{bits}b}"[::-1], 2)


def remainder(data, bits, polynomial, start=0, is_reflected=False):
    """Return a CRC by long division; the start value goes into the first bits of the data."""
    octets = bytes(reflected(byte, 8) for byte in data) if is_reflected else data
    rest = int.from_bytes(octets, "big") << bits
    rest ^= start << 8 * len(data)
    for position in range(rest.bit_length() - 1, bits - 1, -1):
        if rest >> position & 1:
            rest ^= (1 << bits | polynomial) << position - bits
    return reflected(rest, bits) if is_reflected else rest


def crc16(data):
    return remainder(data, 16, 0x8005, is_reflected=True)


def xor16(data):
    padded = data + bytes(len(data) % 2)
    return reduce(xor, struct.unpack(f">{len(padded) // 2}H", padded))


def identity(data):
    return int.from_bytes(data[:8], "big")


HASHES = [crc16, zlib.crc32, csum16, xor16, identity]


def ask(op, more=0, base=0, size=1 << 32, a=0, b=0, c=0):
    words = a.to_bytes(6, "big") + struct.pack(">H", b) + c.to_bytes(16, "big")
    return struct.pack(">BBQQ", op, more, base, size) + words


def answers(switch, *frames):
    return [frame for _, frame in send(switch, *frames)]


def cases(count):
    rng = random.Random(8)
    for _ in range(count):
        size = rng.choice([0, 1, 10, 1 << 16, 1 << 32, (1 << 64) - 1])
        base = rng.choice([0, 7, 1 << 40, (1 << 64) - 5])
        a, b, c = (rng.choice([0, rng.getrandbits(bits), (1 << bits) - 1]) for bits in (48, 16, 128))
        yield rng.randrange(5), rng.randrange(2), base, size, a, b, c, rng.randbytes(4)


def check(switch, absent):
    """Compare 300 random cases; an invalid header contributes the bytes `absent` to what is hashed."""
    frames, expected = [], []
    for op, more, base, size, a, b, c, extra in cases(300):
        frame = ask(op, more, base, size, a, b, c) + extra
        data = a.to_bytes(6, "big") + (extra[:3] if more else absent) + c.to_bytes(16, "big")
        value = (HASHES[op](data) % (size or 1) + base) % (1 << 64)
        frames.append(frame)
        expected.append(struct.pack(">QH", value, 0) + frame)
    assert answers(switch, *frames) == expected


def test_hashes_are_over_fields_in_order(switch_of):
    """p4c hashes copies of the fields, which are 0 if the header is invalid."""
    check(switch_of("hashes"), absent=bytes(3))


def test_fields_of_an_invalid_header_are_left_out():
    """Here the JSON names the fields themselves, where p4c names copies."""

    def change(document):
        for calculation in document["calculations"][:5]:
            fields = (["ask", "a"], ["more", "x"], ["ask", "c"])
            calculation["input"] = [{"type": "field", "value": field} for field in fields]

    check(changed_switch("hashes", change), absent=b"")


@pytest.mark.parametrize("b", [0x0A55, 0xF1FE])
def test_fields_of_odd_widths_are_concatenated_and_padded_with_zeros(switch_of, b):
    bits = f"{b & 511:09b}{0x1234:016b}{b >> 9 & 7:03b}0000"
    value = zlib.crc32(int(bits, 2).to_bytes(4, "big"))
    assert answers(switch_of("hashes"), ask(ODD, b=b)) == [struct.pack(">QH", value, 0) + ask(ODD, b=b)]


def test_a_hash_is_truncated_to_its_destination(switch_of):
    a = 0x010203040506
    value = (crc16(a.to_bytes(6, "big")) % 100 + 500) % 512
    answer = struct.pack(">QH", 0, value << 7) + ask(SMALL, a=a)
    assert answers(switch_of("hashes"), ask(SMALL, a=a)) == [answer]


def test_hashes_in_egress(switch_of):
    assert answers(switch_of("hashes"), ask(EGRESS, b=0xABCD)) == [bytes(10) + ask(EGRESS, b=0xABCD)]


def test_copies_do_not_see_each_others_hashes(switch_of):
    switch = switch_of("hashes")
    switch.groups.set(3, [(1, 21), (2, 22)])
    first, second = ask(8, a=7, b=crc16(bytes(5) + b"\7")), ask(8, a=7, b=1)
    assert answers(switch, ask(8, a=7, b=1)) == [bytes(10) + first, bytes(10) + second]


def xor32(data):
    padded = data + bytes(-len(data) % 4)
    return reduce(xor, struct.unpack(f">{len(padded) // 4}I", padded))


def hash_ex(data):
    value = 2166136261
    for byte in struct.unpack(f"{len(data)}b", data):
        value = (value ^ byte) * 16777619 % (1 << 32)
    value = (value + (value << 13)) % (1 << 32)
    value ^= value >> 7
    value = (value + (value << 3)) % (1 << 32)
    value ^= value >> 17
    return (value + (value << 5)) % (1 << 32)


def with_algorithms(mode, *algorithms):
    """Return a switch of the program in which these algorithms replace the first ones."""

    def change(document):
        for calculation, algorithm in zip(document["calculations"], algorithms, strict=False):
            calculation["algo"] = algorithm

    return changed_switch("hashes", change, mode)


COMPILED = {
    "crc8_custom": lambda data: remainder(data, 8, 0x07),
    "crcCCITT": lambda data: remainder(data, 16, 0x1021, start=0xFFFF),
    "crc64_custom": lambda data: remainder(data, 64, 0x1B, is_reflected=True),
    "xor32": xor32,
    "toeplitz": lambda data: 0,
}


@pytest.mark.parametrize("mode", ["python", "numba"])
def test_other_hashes_of_bmv2(mode):
    switch, rng = with_algorithms(mode, *COMPILED), random.Random(4)
    assert switch.mode == mode
    for op, (name, reference) in enumerate(COMPILED.items()):
        for _ in range(20):
            a, c = rng.getrandbits(48), rng.getrandbits(128)
            (frame,) = answers(switch, ask(op, size=(1 << 64) - 1, a=a, c=c))
            data = a.to_bytes(6, "big") + bytes(3) + c.to_bytes(16, "big")
            assert struct.unpack_from(">Q", frame)[0] == reference(data) % ((1 << 64) - 1), name


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_xxh64_gives_published_values(data, value):
    assert hashes.xxh64(list(data), len(data)) == value


def test_hashes_that_are_only_interpreted():
    switch, a = with_algorithms("numba", "hash_ex", "bmv2_hash"), 0xF1020304F506
    assert switch.mode == "python"
    data = a.to_bytes(6, "big") + bytes(19)
    for op, expected in enumerate((hash_ex(data), hashes.xxh64(list(data), 25))):
        (frame,) = answers(switch, ask(op, size=(1 << 64) - 1, a=a))
        assert struct.unpack_from(">Q", frame)[0] == expected


def test_round_robin_counts_packets():
    """It has no input, so that successive packets get successive numbers."""
    got = answers(with_algorithms("python", "round_robin"), *[ask(CRC16, base=5, size=3)] * 5)
    assert [struct.unpack_from(">Q", frame)[0] for frame in got] == [5, 6, 7, 5, 6]


def test_consistent_round_robin_counts_inputs(monkeypatch):
    def numbers(*inputs):
        frames = answers(switch, *(ask(0, a=a) for a in inputs))
        return [struct.unpack_from(">Q", frame)[0] for frame in frames]

    switch = with_algorithms("numba", "round_robin_consistent")
    assert switch.mode == "python"
    assert numbers(7, 8, 7, 9, 8, 9, 10) == [0, 1, 0, 2, 1, 2, 3]
    monkeypatch.setattr(plain, "_MOST_INPUTS", 4)
    assert numbers(11, 7, 10) == [4, 5, 3], "the oldest input is forgotten"


@pytest.mark.parametrize(
    ("algorithm", "flows", "ports"),
    [
        ("round_robin", [5, 5, 5, 6], [10, 20, 30, 10]),
        ("round_robin_consistent", [5, 6, 5, 8, 6, 9], [10, 20, 10, 30, 20, 10]),
    ],
)
def test_each_selector_counts_for_itself(algorithm, flows, ports):
    def change(document):
        profiles = {item["name"]: item for item in document["pipelines"][0]["action_profiles"]}
        profiles["ExternsIngress.paths"]["selector"]["algo"] = algorithm
        profiles["ExternsIngress.hops"]["selector"] = profiles["ExternsIngress.paths"]["selector"]

    switch = changed_switch("../p4runtime/p4/externs", change)
    for name, table, key in (("paths", "balanced", 1), ("hops", "indirect", (0, 0))):
        profile = switch.profiles[f"ExternsIngress.{name}"]
        for number in (1, 2, 3):
            profile.insert_member(number, "ExternsIngress.send", [10 * number])
        profile.insert_group(9, {1: 1, 2: 1, 3: 1})
        switch.tables[f"ExternsIngress.{table}"].insert((key,), GroupReference(9), priority=1)
    for first_key in (1, 2):  # the second goes to the other table
        frames = [struct.pack(">BBHIIQ", 0, first_key, flow, 0, 0, 0) for flow in flows]
        assert [port for port, _ in send(switch, *frames)] == ports
