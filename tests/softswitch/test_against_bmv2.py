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
GROUPS = {3: [(1, 21), (2, 22)], 6: [(1, 1), (2, 2), (3, 3)]}
SESSIONS = {100: [(4, 11), (5, 12)], 101: [(6, 0)]}

pytestmark = [
    pytest.mark.skipif(
        shutil.which("simple_switch_grpc") is None, reason="simple_switch_grpc is not on PATH"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="BMv2's ports need root"),
]


def stack_frames(rng):
    def labels(count):
        rows = [(rng.getrandbits(16), rng.choice([0, 1, 99, 100, 103])) for _ in range(count)]
        return b"".join(
            struct.pack(">HB", value, cost << 1 | (n == count - 1)) for n, (value, cost) in enumerate(rows)
        )

    for op in range(18):
        for count in (1, 2, 3, 4, 5, 6):
            # Beyond the valid labels, BMv2 reads the remains of an earlier packet.
            yield struct.pack(">BBHI", op, rng.randrange(min(count, 4)), 6 if op > 12 else 0, 0) + labels(
                count
            )
    yield struct.pack(">BBHI", 1, 0, 0, 0) + labels(2)[:4]


def again_frames(rng):
    for kind in (0, 1, 2, 3, 4, 5, 7, 16, 17, 18, 21, 22, 23, 25, 26, 27):
        for times in (0, 200, 203):
            for session in (100, 101, 99):
                group = rng.choice([0, 3])
                if kind != 21 or times == 0:
                    yield struct.pack(">BBHHH", kind, times, session, group, rng.getrandbits(12))
    yield struct.pack(">BBHHH", 24, 150, 0, 0, 5) + b"\0\xff"


def union_frames(rng):
    for op in range(7):
        for kind in range(4):
            yield struct.pack(">BBH", op, kind, 6 if op == 6 else 0) + rng.randbytes(6)


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
    "stack": stack_frames,
    "again": again_frames,
    "unions": union_frames,
    "hashes": hash_frames,
    "widths": width_frames,
    "limbs": limb_frames,
}
#: For each program, a frame that leaves once.
MARKERS = {
    "stack": bytes(8),
    "again": bytes(8),
    "unions": bytes(4),
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
        for number, replicas in GROUPS.items():
            switch.groups.set(number, replicas)
            bmv2.set_group(number, replicas)
        for number, replicas in SESSIONS.items():
            switch.sessions.set(number, replicas)
            bmv2.set_session(number, replicas)
        for turn, made in enumerate(MADE[name](random.Random(1))):
            raw = MARKERS[name] + b"marker%06d" % turn + TAIL
            ((back, answer),) = switch.process(Frames.of([(7, raw)]), 0).pairs()
            frame = made + TAIL
            expected = switch.process(Frames.of([(8, frame)]), 0).pairs()
            got = bmv2.exchange(8, frame, len(expected), (7, raw, back, answer))
            assert got == by_port(expected), made.hex()
    finally:
        bmv2.close()
