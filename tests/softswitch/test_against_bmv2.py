"""The programs next to these tests, compared with BMv2 packet for packet."""

import json
import os
import random
import shutil
import struct
from pathlib import Path

import pytest

from peelsum.softswitch import Frames, Switch, load

P4 = Path(__file__).parent / "p4"
PORTS = range(1, 10)
#: Shortest frame sent: ports do not carry shorter ones.
TAIL = bytes(range(60))

pytestmark = [
    pytest.mark.skipif(
        shutil.which("simple_switch_grpc") is None, reason="simple_switch_grpc is not on PATH"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="BMv2's ports need root"),
]


def hash_frames(rng):
    for op in range(9):
        for size in (1, 10, 1 << 16, 1 << 32):
            yield struct.pack(">BBQQ", op, 1, rng.choice([0, 7]), size) + rng.randbytes(24 + 4)


def width_frames(rng):
    for op in range(6):
        for _ in range(8):
            yield bytes([op]) + rng.choice([bytes(60), b"\xff" * 60, rng.randbytes(60)]) + rng.randbytes(18)


def limb_frames(rng):
    marks = [0x0123456789ABCDEF0011223344556677, 1 << 127 | 1, rng.getrandbits(128)]
    for op in range(8):
        for x in marks:
            y = rng.choice([x, rng.getrandbits(128)])
            yield bytes([op, 0]) + x.to_bytes(16, "big") + y.to_bytes(16, "big") + rng.randbytes(16)
    for third in (1, 2):
        yield bytes([0x50, 0x34, third, 9]) + rng.randbytes(4) + bytes([1, 2, 3, 4]) + rng.randbytes(5)


MADE = {
    "hashes": hash_frames,
    "widths": width_frames,
    "limbs": limb_frames,
}
#: For each program, a frame that leaves once.
MARKERS = {
    "hashes": bytes([9]) + bytes(47),
    "widths": b"",
    "limbs": bytes(50),
}


def by_port(pairs):
    out = {}
    for port, frame in pairs:
        out.setdefault(port, []).append(frame)
    return out


def for_bmv2(value, inside=False):
    """Return a program's JSON with an action's parameters named as BMv2 reads them.

    Within an expression BMv2 knows them as "local" only. p4c writes "runtime_data" there too where a
    parameter is cast, and BMv2 does not load such a program.
    """
    if isinstance(value, list):
        return [for_bmv2(one, inside) for one in value]
    if not isinstance(value, dict):
        return value
    if inside and value.get("type") == "runtime_data":
        return value | {"type": "local"}
    inside = inside or value.get("type") == "expression"
    return {key: for_bmv2(one, inside) for key, one in value.items()}


@pytest.mark.parametrize("name", MADE)
def test_a_program_does_what_bmv2_makes_it_do(name, tmp_path):
    from bmv2_frames import Bmv2Frames

    switch = Switch(load(P4 / f"{name}.json"), "python")
    program = for_bmv2(json.loads((P4 / f"{name}.json").read_text()))
    bmv2 = Bmv2Frames(json.dumps(program).encode(), PORTS, tmp_path / "bmv2.log")
    try:
        for turn, made in enumerate(MADE[name](random.Random(1))):
            raw = MARKERS[name] + b"marker%06d" % turn + TAIL
            ((back, answer),) = switch.process(Frames.of([(7, raw)]), 0).pairs()
            frame = made + TAIL
            expected = switch.process(Frames.of([(8, frame)]), 0).pairs()
            got = bmv2.exchange(8, frame, len(expected), (7, raw, back, answer))
            assert got == by_port(expected), made.hex()
    finally:
        bmv2.close()
