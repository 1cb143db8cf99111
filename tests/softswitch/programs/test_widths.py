"""Shifts by any amount, a checksum's carries, and registers of different sizes, in both modes."""

import random

import pytest

from peelsum.softswitch import Frames
from peelsum.softswitch.runtime import native as machine
from peelsum.softswitch.runtime import plain

SIZES = [4, 4, 4, 4, 9, 4, 2, 4]


@pytest.mark.parametrize("value", [1 << 63, 0x0123456789ABCDEF])
def test_shifts_by_any_amount(value):
    for count in (0, 1, 31, 32, 63, 64, 65, 128, 1 << 32, (1 << 64) - 1):
        shifted_left = value << count & (1 << 64) - 1 if count < 64 else 0
        shifted_right = value >> count if count < 64 else 0
        assert (plain.shl(value, count), plain.shr(value, count)) == (shifted_left, shifted_right)
        given = machine.K(value), machine.K(count)
        assert (int(machine.shl(*given)), int(machine.shr(*given))) == (shifted_left, shifted_right)


def test_a_carry_of_a_checksum_carries(switch_of):
    """The program adds 0x8001: 0x1FFFF is 0x10000 after its first carry, and 1 after the second."""
    words, checksum = b"\xff\xff\x7f\xff", b"\xff\xfe"
    frame = b"\1" + bytes(42) + words + bytes(12) + checksum + bytes(18)
    assert switch_of("widths").process(Frames.of([(9, frame)]), 0).pairs() == [(1, frame)]


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
