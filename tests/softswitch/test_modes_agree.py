"""Machine code and plain Python agree on any input: mutated packets, random bytes, any length."""

import random
import struct

import numpy as np
import pytest

from peelsum.pipelines.artifacts import ARTIFACTS
from peelsum.softswitch import Frames, Switch, load

NEXT_HOP = 0x0200_0000_0099


def router(switch):
    routes = switch.tables["RouterIngress.routes"]
    for number in range(20):
        routes.insert(((number << 24, 8),), "RouterIngress.route", (number, NEXT_HOP))
    switch.tables["RouterIngress.routes6"].insert(((0, 0),), "RouterIngress.route6", (3, 1 << 127))


def replicate(switch):
    for group in range(1, 8):
        switch.groups.set(group, [(port, group * port) for port in range(group)])
    switch.tables["E.copies"].insert(((2, 2), (0, 0)), "E.strip", (), priority=1)


def peelsum(switch):
    tables = {name.rpartition(".")[2]: table for name, table in switch.tables.items()}
    actions = {
        name.rpartition(".")[2]: name for table in switch.program.actions.values() for name in [table.name]
    }
    tables["jobs"].insert((7,), actions["admit_job"], (1, 5, 0b1111, 10, 1))
    for worker in range(4):
        tables["members"].insert((7, worker), actions["admit_worker"], (1 << worker, worker))
        tables["return_paths"].insert((7, worker), actions["return_to"], (worker,))
    tables["members"].insert((7, 10), actions["admit_server"], ())
    switch.groups.set(1, [(worker, 0) for worker in range(4)])


def nothing(switch):
    """Arithmetic and lanes need no entries."""


PROGRAMS = {
    "router": router,
    "arithmetic": nothing,
    "lanes": nothing,
    "replicate": replicate,
    "peelsum": peelsum,
}


def seed_frames(name, rng):
    """Return a few well-formed frames, so that their mutations get past the parser."""
    if name == "router":
        ip = struct.pack(
            ">BBHHHBBHII", 0x45, 0, 40, 1, 0, 64, 17, 0, rng.getrandbits(32), rng.randrange(20) << 24
        )
        ip6 = struct.pack(">IHBB", 6 << 28, 8, 6, 9) + rng.randbytes(32)
        ports = struct.pack(">HH", 1, rng.choice([80, 1005, 5000])) + b"payload"
        macs = rng.randbytes(12)
        return [
            macs + b"\x08\0" + ip + ports,
            macs + b"\x81\0\0\x64\x08\0" + ip + ports,
            macs + b"\x86\xdd" + ip6,
        ]
    if name == "arithmetic":
        return [bytes([op]) + rng.randbytes(29) for op in range(7)]
    if name == "lanes":
        return [struct.pack(">BI", op, rng.randrange(40)) + rng.randbytes(54) for op in (1, 2, 3, 7, 8, 9)]
    if name == "replicate":
        return [struct.pack(">BHHI", kind, rng.randrange(9), rng.getrandbits(16), 5) for kind in range(4)]
    udp = struct.pack(">HHHH", 9, 20563, 8 + 144, 0)
    ip = struct.pack(">BBHHHBBHII", 0x45, rng.randrange(4), 172, 1, 0, 64, 17, 0, 1, 2)
    heads = [
        struct.pack(">BBBBHHII", 1, kind, rng.choice([0, 1]), 7, 1, rng.choice([0, 1, 2, 3, 65535]), 3, 0)
        for kind in range(1, 8)
    ]
    return [rng.randbytes(12) + b"\x08\0" + ip + udp + head + rng.randbytes(128) for head in heads]


def mutated(frame, rng):
    frame = bytearray(frame)
    for _ in range(rng.choice([0, 0, 1, 4])):
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.2:
        del frame[rng.randrange(len(frame)) :]
    return bytes(frame) + rng.randbytes(rng.choice([0, 0, 0, 5]))


def frames_for(name, rng, count):
    frames = []
    while len(frames) < count:
        frames += [mutated(frame, rng) for frame in seed_frames(name, rng)]
        frames.append(rng.randbytes(rng.randrange(200)))
    ports = [0, 1, 2, 3, 10, 255, 511, 70000]
    return Frames.of([(rng.choice(ports), frame) for frame in frames[:count]])


@pytest.fixture(scope="module", params=PROGRAMS)
def named(request, program_of):
    """Return (name, program, function that configures its switch)."""
    name = request.param
    program = load(ARTIFACTS / "peelsum_32.json") if name == "peelsum" else program_of(name)
    return name, program, PROGRAMS[name]


def state_of(switch):
    cells = {
        name: item.values() for kind in (switch.registers, switch.counters) for name, item in kind.items()
    }
    cells["direct"] = switch.state.counts
    return cells


def test_both_modes_give_the_same_frames_and_state(named):
    name, program, configure = named
    plain, native = (Switch(program, mode) for mode in ("python", "numba"))
    for switch in (plain, native):
        configure(switch)
    rng = random.Random(name)
    for now in (0, 1_000_000, 2**48 + 5):
        batch = frames_for(name, rng, 150)
        assert plain.process(batch, now).pairs() == native.process(batch, now).pairs()
    for cells, values in state_of(plain).items():
        assert np.array_equal(values, state_of(native)[cells]), cells


def test_the_cut_of_a_stream_into_batches_does_not_matter(named):
    name, program, configure = named
    whole, cut = Switch(program), Switch(program)
    for switch in (whole, cut):
        configure(switch)
    batch = frames_for(name, random.Random(1), 200)
    got = []
    for first in range(0, 200, 7):
        part = slice(first, first + 7)
        got += cut.process(Frames(batch.data[part], batch.length[part], batch.port[part]), 9).pairs()
    assert got == whole.process(batch, 9).pairs()


def test_random_bytes_do_no_harm(named):
    """Machine code has no bounds checks of its own: outputs must stay within bounds for any input."""
    name, program, configure = named
    switch = Switch(program)
    configure(switch)
    rng = np.random.default_rng(2)
    data = rng.integers(0, 256, (20_000, 300), np.uint8)
    data[:, 12:14] = [8, 0]
    seeds = seed_frames(name, random.Random(3))
    for row, frame in zip(data[::2], seeds * 10_000, strict=False):
        row[: len(frame) - 8] = np.frombuffer(frame[:-8], np.uint8)
    length = rng.integers(0, 301, 20_000, np.int32)
    out = switch.process(Frames(data, length, rng.integers(0, 16, 20_000, np.int32)), 5)
    assert len(out) > 0
    assert out.length.min() >= 0
    assert out.length.max() <= out.data.shape[1]
    assert set(out.port.tolist()) <= set(range(512))
