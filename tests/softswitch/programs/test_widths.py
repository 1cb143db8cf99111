"""Fields across bytes and words, sums that carry, and registers of different sizes, in both modes."""

import random

import pytest
from softswitch_frames import packed

from peelsum.softswitch import Frames
from peelsum.softswitch.runtime import native as machine
from peelsum.softswitch.runtime import plain

WIDE = {"op": 8, "a": 3, "b": 64, "c": 5, "d": 1, "e": 63, "h": 4, "i": 124, "j": 7, "k": 57, "l": 64}
SUMMED = [name for name in WIDE if name != "op"]
WIDE |= {"m": 1, "n": 64, "o": 7, "sum": 16}
REST_BYTES = 18
GOOD, BAD = 1, 2
SIZES = [4, 4, 4, 4, 9, 4, 2, 4]


def total_of(values):
    """The sum, 16 bits at a time, of 0x8001 and the fields that are summed up."""
    bits = f"{0x8001:016b}"
    bits += "".join(f"{values[name]:0{WIDE[name]}b}" for name in SUMMED)
    bits += "0" * (-len(bits) % 16)
    return sum(int(bits[at : at + 16], 2) for at in range(0, len(bits), 16))


def checksum(values):
    total = total_of(values)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def changed(values):
    new = dict(values)
    op = values["op"]
    if op == 2:
        new |= {"a": values["a"] + 1 & 7, "b": values["b"] + 1 & (1 << 64) - 1, "c": values["c"] - 1 & 31}
        new |= {"d": values["d"] ^ 1, "e": values["e"] << 1 & (1 << 63) - 1}
    elif op == 3:
        new["i"] = 0xFEDCBA9876543210123456789ABCDEF
    elif op == 4:
        new |= {"e": values["e"] >> 62, "l": values["b"] >> 63, "b": (values["b"] & 1) << 63}
    elif op == 5:
        new |= {"j": values["j"] + 1 & 127, "k": 2 * values["k"] & (1 << 57) - 1}
        new["l"] = values["l"] ^ (1 << 64) - 1
        new |= {"m": values["m"] ^ 1, "n": values["n"] - 1 & (1 << 64) - 1, "o": values["o"] + 1 & 127}
    if op > 1:
        new["sum"] = checksum(new)
    return new


def cases(count):
    rng = random.Random(21)
    for _ in range(count):
        values = {
            name: rng.choice([0, 1, (1 << bits) - 1, 1 << bits - 1, rng.getrandbits(bits)])
            for name, bits in WIDE.items()
        }
        values["op"] = rng.randrange(6)
        if rng.random() < 0.5:
            values["sum"] = checksum(values)
        yield values, rng.randbytes(REST_BYTES) + rng.randbytes(rng.choice([0, 5]))


def test_fields_keep_their_places(switch_of):
    given = list(cases(500))
    frames = Frames.of([(9, packed(values, WIDE) + rest) for values, rest in given])
    expected = []
    for values, rest in given:
        wrong = values["op"] != 0 and values["sum"] != checksum(values)
        expected.append((BAD if wrong else GOOD, packed(changed(values), WIDE) + rest))
    assert switch_of("widths").process(frames, 0).pairs() == expected


@pytest.mark.parametrize("total", [0xFFFF, 0x10000, 0x1FFFE, 0x1FFFF, 0x20000, 0x2FFFD, 0x2FFFE, 0x2FFFF])
def test_sums_carry_and_the_carry_carries(switch_of, total):
    """0x1FFFF is 0x10000 after its first carry, and 1 after the second."""
    remaining = total - 0x8001
    words = [min(max(remaining - 0xFFFF * place, 0), 0xFFFF) for place in range(3)]
    # The words of `l` that overlap the sum's.
    values = dict.fromkeys(WIDE, 0) | {"op": 1, "l": words[0] << 40 | words[1] << 24 | words[2] << 8}
    assert total_of(values) == total
    frame = packed(values | {"sum": checksum(values)}, WIDE) + bytes(REST_BYTES)
    assert switch_of("widths").process(Frames.of([(9, frame)]), 0).pairs() == [(GOOD, frame)]


@pytest.mark.parametrize("value", [1 << 63, 0x0123456789ABCDEF])
def test_shifts_by_any_amount(value):
    for count in (0, 1, 31, 32, 63, 64, 65, 128, 1 << 32, (1 << 64) - 1):
        shifted_left = value << count & (1 << 64) - 1 if count < 64 else 0
        shifted_right = value >> count if count < 64 else 0
        assert (plain.shl(value, count), plain.shr(value, count)) == (shifted_left, shifted_right)
        given = machine.K(value), machine.K(count)
        assert (int(machine.shl(*given)), int(machine.shr(*given))) == (shifted_left, shifted_right)


def cells(index, values):
    return b"".join(part.to_bytes(4, "big") for part in (index, *values))


def test_registers_of_unlike_size_side_by_side(switch_of):
    """A read past a register's end leaves the variable unchanged, as in BMv2."""
    rng = random.Random(3)
    switch, model = switch_of("registers"), [[0] * size for size in SIZES]
    for _ in range(200):
        index = rng.choice([0, 1, 2, 3, 3, 4, 8, 9, 1 << 31])
        values = [rng.getrandbits(32) for _ in SIZES]
        before, expected = 0, []
        for register, value in zip(model, values, strict=True):
            if index < len(register):
                before, register[index] = register[index], value
            expected.append(before)
        sent = switch.process(Frames.of([(1, cells(index, values))]), 0).pairs()
        assert sent == [(1, cells(index, expected))]
    for number, register in enumerate(model):
        assert switch.registers[f"I.r{number}"].values().tolist() == register
