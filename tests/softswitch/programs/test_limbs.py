"""Numbers of more than 64 bits: lookahead, select, slices, shifts, bitwise operators and equality."""

import random

import pytest
from softswitch_frames import packed, send

CALC = {"p": 8, "four": 8, "ver": 8, "op": 8, "a": 32, "b": 32, "c": 40}
WIDE = {"op": 8, "mark": 8, "x": 128, "y": 128, "z": 96, "n": 32}
ONE, TWO, TWO_MASK = 0x0123456789ABCDEF0011223344556677, 1 << 127 | 1, 0xF << 124 | 0xF
LISTED = 0x112233445566778899AABBCC
GIVEN = 0xFEDCBA98765432100123456789ABCDEF


def cut(value, bits):
    return value & (1 << bits) - 1


def changed(values):
    """What the program makes of a `wide` header."""
    new, op = dict(values), values["op"]
    x, y, z, n = (values[name] for name in "xyzn")
    if x == ONE:
        new["mark"] = 1
    elif x & TWO_MASK == TWO:
        new["mark"] = 2
    if op == 1:
        new["y"] = x & y
    elif op == 2:
        new["y"] = x >> 100 | cut(y << 28, 128)
    elif op == 3:
        new |= {"x": cut(~x, 128) ^ y, "z": cut(~z, 96)}
    elif op == 4:
        n = 1 if x == y else n
        new["n"] = n if z == LISTED else cut(n + 2, 32)
    elif op == 5:
        new |= {"z": cut(x >> 16, 96), "n": cut(y >> 48, 32)}
    elif op == 6:
        new |= {"y": z, "x": cut(x << 64, 128), "z": cut(z << 1, 96), "n": cut(z << 1, 32)}
    elif op == 7:
        new["x"] = x & ~(cut(-1, 40) << 60) | cut(y, 40) << 60
    elif op == 8:
        new |= {"x": GIVEN, "n": cut(GIVEN, 32)}
    return new


def cases(count):
    rng = random.Random(5)
    for number in range(count):
        values = {
            name: rng.choice([0, (1 << bits) - 1, rng.getrandbits(bits)]) for name, bits in WIDE.items()
        }
        values |= {"op": number % 9, "z": rng.choice([values["z"], LISTED, LISTED ^ 1, LISTED ^ 1 << 95])}
        values["x"] = rng.choice([values["x"], ONE, ONE ^ 1 << 64, TWO, TWO | 1 << 70, TWO ^ 1 << 127])
        values["y"] = rng.choice([values["y"], values["x"], values["x"] ^ 1, values["x"] ^ 1 << 127])
        yield values


def test_wide_fields(switch_of):
    switch = switch_of("limbs")
    switch.tables["I.given"].insert((8,), "I.set", (GIVEN,))
    given = list(cases(900))
    expected = [(1, packed(changed(values), WIDE) + b"rest") for values in given]
    assert {values["mark"] for values in map(changed, given)} >= {1, 2}
    assert send(switch, *(packed(values, WIDE) + b"rest" for values in given)) == expected


@pytest.mark.parametrize("wrong", [None, "p", "ver", "b"])
def test_fields_of_a_header_that_lies_ahead(switch_of, wrong):
    values = {"p": 0x50, "four": 7, "ver": 1, "op": 9, "a": 0xFFFFFFFF, "b": 0x01020304, "c": 1 << 39 | 5}
    after = values | {"a": 0}
    if wrong:
        values[wrong] ^= 1
        after = values
    rest = bytes(range(60))
    assert send(switch_of("limbs"), packed(values, CALC) + rest) == [(1, packed(after, CALC) + rest)]


def test_a_packet_that_ends_within_what_is_looked_ahead_to(switch_of):
    """Its parser ends before it extracts anything, so that it leaves as it came."""
    frame = bytes.fromhex("50340100") + bytes(4) + bytes.fromhex("01020304") + bytes(4)
    assert send(switch_of("limbs"), frame) == [(1, frame)]
