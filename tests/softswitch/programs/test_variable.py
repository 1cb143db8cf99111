"""Headers of variable size, unions, loops and wide numbers, compared with what the program says in Python."""

import random
import struct
import zlib

import pytest
from frames import checksum

from peelsum.softswitch import Frames, Switch

MASK96, MASK128 = (1 << 96) - 1, (1 << 128) - 1


class Model:
    """The program variable.p4: what it sends for a frame, or None for a frame that its parser refuses."""

    def __init__(self):
        self.total = 0

    def send(self, frame):
        skip, count, bits, _, _ = struct.unpack_from(">BBHHI", frame)
        at = 10
        if skip % 8 or len(frame) - at < skip // 8:
            return None
        at += skip // 8
        if bits % 8 or len(frame) - at < 1 + bits // 8 or bits > 64:
            return None
        options = int.from_bytes(frame[at : at + 1 + bits // 8], "big")
        first, rest, last = options >> bits + 4, options >> 4 & (1 << bits) - 1, options & 15
        at += 1 + bits // 8
        values = []
        for _ in range(count):
            if len(frame) - at < 1 or len(values) == 3:
                return None
            size = 2 if frame[at] == 1 else 5
            if len(frame) - at < size:
                return None
            values.append(frame[at : at + size])
            at += size
        if len(frame) - at < 80:
            return None
        a, b = int.from_bytes(frame[at : at + 12], "big"), int.from_bytes(frame[at + 12 : at + 24], "big")
        payload = frame[at + 80 :]
        sent_values = values
        if values[:1] and values[0][0] == 1:
            sent_values = [b"\2" + bytes(3) + values[0][1:], *values[1:]]
        sent_values = sent_values[1:] if count == 3 else sent_values
        signed = b - (1 << 96) if b >> 95 else b
        wide = frame[at : at + 24] + self.total.to_bytes(12, "big")
        wide += (1 if a < b else 0).to_bytes(12, "big")
        for word in (a * 0x1_0000_0001, signed >> 70):
            wide += (word & MASK128).to_bytes(16, "big")
        self.total = self.total + a & MASK96
        covered = ((first << bits | rest) << 4 | last).to_bytes(1 + bits // 8, "big") + a.to_bytes(12, "big")
        summed = sum(range(1, count + 1)) & 0xFFFF
        if skip == 8:  # the length of the packet, to which ingress added a header of a union
            summed += len(frame) + (5 if values[:1] and values[0][0] == 1 else 0)
        else:
            data = bytes([count]) + a.to_bytes(12, "big") + payload
            summed = checksum(data + bytes(len(data) % 2))
        copied = (options & ~15 | 6).to_bytes(1 + bits // 8, "big") if last == 5 else b""
        lead = struct.pack(">BBHHI", skip, count, bits, summed, zlib.crc32(covered))
        head = options.to_bytes(1 + bits // 8, "big") + copied
        return lead + head + b"".join(sent_values) + wide + payload


def frame_of(rng):
    skip, count = rng.choice([0, 8, 16, 24]), rng.randint(0, 3)
    bits = rng.choice([0, 8, 16, 40, 64])
    values = [rng.choice([b"\1" + rng.randbytes(1), b"\2" + rng.randbytes(4)]) for _ in range(count)]
    options = bytearray(rng.randbytes(1 + bits // 8))
    options[-1] = options[-1] & 0xF0 | rng.choice([4, 5])
    lead = struct.pack(">BBHHI", skip, count, bits, 0, 0) + rng.randbytes(skip // 8)
    return lead + bytes(options) + b"".join(values) + rng.randbytes(80) + rng.randbytes(rng.randint(0, 30))


@pytest.fixture
def switch(program_of):
    return Switch(program_of("variable"))


def test_the_program_is_interpreted_and_says_why(switch, caplog):
    assert switch.mode == "python"
    again = Switch(switch.program)
    assert again.mode == "python"
    assert "machine code cannot do this: varbit options.rest" in caplog.text


def test_random_packets_leave_as_the_model_says(switch):
    rng, model = random.Random(5), Model()
    for _ in range(300):
        frame = frame_of(rng)
        expected = model.send(frame)
        assert expected is not None
        assert switch.process(Frames.of([(1, frame)]), 0).pairs() == [(9, expected)]
    assert switch.registers["VariableIngress.totals"].read(3) == model.total > 1 << 64


@pytest.mark.parametrize(
    ("skip", "bits"),
    [(4, 8), (0, 12), (0, 72), (255, 8), (0, 65528)],
    ids=["skip", "odd", "long", "far", "all"],
)
def test_a_parser_stops_at_a_width_that_cannot_be(switch, skip, bits):
    """It then sends what it has parsed, and the rest as payload; the checksums are over invalid headers."""
    frame = struct.pack(">BBHHI", skip, 0, bits, 0, 0) + bytes(range(20))
    assert Model().send(frame) is None
    ((port, sent),) = switch.process(Frames.of([(1, frame)]), 0).pairs()
    assert (port, sent[:4], sent[10:]) == (9, frame[:4], frame[10:])


def test_broken_packets_do_no_harm(switch):
    rng, frames = random.Random(8), []
    for _ in range(600):
        frame = bytearray(frame_of(rng))
        for _ in range(rng.choice([0, 1, 4])):
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        frames.append(bytes(frame[: rng.choice([len(frame), rng.randrange(1, len(frame))])]))
    sent = switch.process(Frames.of([(1, frame) for frame in frames]), 0).pairs()
    assert [port for port, _ in sent] == [9] * 600
    assert all(len(out) <= len(frame) + 12 for (_, out), frame in zip(sent, frames, strict=True))


def test_the_register_of_96_bits_can_be_written(switch):
    totals = switch.registers["VariableIngress.totals"]
    totals.write(2, MASK96)
    assert totals.values().tolist() == [0, 0, MASK96, 0]
