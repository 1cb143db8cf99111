"""Operators on every kind of number, compared with Python's integers."""

import random
import struct

import pytest

from peelsum.softswitch import Frames

EDGES = [0, 1, 2, 77, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
#: The fields of the program's answer, and their bits.
RESULTS = {"wide": 64, "word": 32, "signed": 32, "seven": 7, "flag": 1, "mac": 48, "path": 8}


def number(rng, bits):
    return (rng.choice(EDGES) if rng.random() < 0.5 else rng.getrandbits(64)) & (1 << bits) - 1


def signed(value, bits=32):
    return value - (1 << bits) if value >> bits - 1 else value


def clamped(value, low, high):
    return max(low, min(value, high))


def packet(op, small, odd, shift, a, b, c, d, tail=b""):
    head = struct.pack(">BH", op, small << 13 | odd) + shift.to_bytes(3, "big")
    return head + struct.pack(">QQII", a, b, c, d) + tail


def expected(op, small, odd, shift, a, b, c, d, tail):
    """Return the P4 program's expected answer, computed on integers of any size."""
    r = dict.fromkeys(RESULTS, 0)
    c_, d_ = signed(c), signed(d)
    if op == 0:
        r |= {"wide": a + b, "word": a - b, "signed": c + d, "seven": (a >> 3 & 127) * (b & 127)}
    elif op == 1:
        r["word"] = min((a & 2**32 - 1) + (b & 2**32 - 1), 2**32 - 1)
        r |= {"signed": clamped(c_ - d_, -(2**31), 2**31 - 1), "seven": max((a & 127) - (b & 127), 0)}
    elif op == 2:
        r |= {
            "wide": (a ^ b) | ~a,
            "word": a >> 16 & b,
            "mac": (a & 2**32 - 1) << 16 | b & 0xFFFF,
            "seven": odd >> 6,
        }
    elif op == 3:
        r |= {
            "wide": a << (shift & 255),
            "word": b >> (shift & 127),
            "mac": (a & 2**48 - 1) >> 5,
            "seven": small << 4,
        }
    elif op == 4:
        r |= {
            "word": 1 if a > b else 2,
            "signed": c_ if c_ < d_ else -d_,
            "flag": c_ <= 0,
            "wide": (a & 255) << 8,
        }
        if odd == 77 or small == 3:
            r["path"] = 1
        elif c_ >= d_ and a != b:
            r["path"] = 2
        else:
            r["path"] = 3 if a & 7 == 5 else 4
    elif op == 5:
        r |= {"wide": a * 10, "path": 99}
    frame = packet(op, small, odd, shift, a, b, c, d)
    size = len(frame) + len(tail) + 24  # `results` was added; where it was taken off again, one copy stayed
    size -= 24 * (op == 5)
    if size > 60 and op != 5:
        r["path"] = r["path"] + 128 & 255
    word = 0
    for name, bits in RESULTS.items():
        word = word << bits | r[name] & (1 << bits) - 1
    return frame + word.to_bytes(24, "big") + tail


def cases(count):
    rng = random.Random(5)
    for _ in range(count):
        widths = (3, 13, 24, 64, 64, 32, 32)
        values = [number(rng, bits) for bits in widths]
        if rng.random() < 0.2:
            values[4] = values[3]  # equal operands
        if rng.random() < 0.2:
            values[1] = 77
        yield (rng.randrange(7), *values, rng.randbytes(rng.choice([0, 1, 30])))


def test_every_operator_is_that_of_integers(switch_of):
    given = list(cases(600))
    frames = Frames.of([(3, packet(*case[:-1], tail=case[-1])) for case in given])
    got = switch_of("arithmetic").process(frames, 0).pairs()
    assert len(got) == len(given)
    for case, (port, frame) in zip(given, got, strict=True):
        assert (port, frame.hex()) == (3, expected(*case).hex()), case


@pytest.mark.parametrize("length", [0, 1, 29])
def test_what_is_too_short_to_parse_passes_through(switch_of, length):
    frame = bytes(range(length))
    assert switch_of("arithmetic").process(Frames.of([(4, frame)]), 0).pairs() == [(4, frame)]
