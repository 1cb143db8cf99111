"""Machine code and plain Python agree on any input: random packets and bytes of any length."""

import copy
import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from random_frames import Generator

from peelsum.pipelines.artifacts import ARTIFACTS
from peelsum.softswitch import Frames, Switch, load
from peelsum.softswitch.compiler.loading import parse
from peelsum.softswitch.program.model import GroupReference, MemberReference
from peelsum.softswitch.runtime.meters import Rates

P4 = Path(__file__).parents[1] / "p4"
EXTERNS = P4.parent / "p4runtime" / "p4" / "externs.json"
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
    actions = {action.name.rpartition(".")[2]: action.name for action in switch.program.actions.values()}
    tables["jobs"].insert((7,), actions["admit_job"], (1, 5, 0b1111, 10, 1))
    for worker in range(4):
        tables["members"].insert((7, worker), actions["admit_worker"], (1 << worker, worker))
        tables["return_paths"].insert((7, worker), actions["return_to"], (worker,))
    tables["members"].insert((7, 10), actions["admit_server"], ())
    switch.groups.set(1, [(worker, 0) for worker in range(4)])


def externs(switch):
    paths, hops = (switch.profiles[f"ExternsIngress.{name}"] for name in ("paths", "hops"))
    for number in range(1, 5):
        paths.insert_member(number, "ExternsIngress.send", (number,))
        hops.insert_member(number, "ExternsIngress.send_marked", (number, number << 60))
    paths.insert_group(1, {number: number for number in range(1, 5)})
    for key in range(0, 256, 17):
        switch.tables["ExternsIngress.balanced"].insert((key,), GroupReference(1))
    switch.tables["ExternsIngress.indirect"].insert(((0, 0),), MemberReference(2), priority=1)
    switch.tables["ExternsIngress.shaped"].insert((1,), "ExternsIngress.metered", (3,))
    switch.tables["ExternsIngress.shaped"].write_meter((1,), Rates(9, 100, 10, 200))
    switch.value_sets["ExternsParser.tagged_keys"].set([(0, 1), (0xFF, 0xFF)])
    switch.meters["ExternsIngress.police"].write(1, Rates(100, 2, 200, 4))


#: Programs, and what fills their tables and groups.
PROGRAMS = {
    **dict.fromkeys(
        ["again", "arithmetic", "hashes", "lanes", "limbs", "stack", "widths"], lambda switch: None
    ),
    "router": router,
    "replicate": replicate,
    "peelsum": peelsum,
    "externs": externs,
}


def contributions(rng):
    """Yield frames that the peelsum program takes, but for a few bits."""
    while True:
        udp = struct.pack(">HHHH", 9, 20563, 8 + 144, 0)
        ip = struct.pack(">BBHHHBBHII", 0x45, rng.randrange(4), 172, 1, 0, 64, 17, 0, 1, 2)
        fields = [1, rng.randrange(1, 8), rng.choice([0, 1]), 7, 1, rng.choice([0, 1, 2, 3, 65535]), 3, 0]
        payload = struct.pack(">BBBBHHII", *fields) + rng.randbytes(128)
        frame = bytearray(rng.randbytes(12) + b"\x08\0" + ip + udp + payload)
        for _ in range(rng.choice([0, 0, 1, 4])):
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        yield bytes(frame)


def frames_for(switch, seed, count):
    rng = random.Random(seed)
    frames = Generator(switch, rng).frames(count)
    if "peelsum" in switch.program.headers:
        frames = map(rng.choice, zip(frames, contributions(rng), strict=False))
    ports = [0, 1, 2, 3, 10, 255, 511, 70000]
    return Frames.of([(rng.choice(ports), frame) for frame in frames])


def path_of(name):
    """Return the compiled file of a program."""
    return {"peelsum": ARTIFACTS / "peelsum_32.json", "externs": EXTERNS}.get(name, P4 / f"{name}.json")


@pytest.fixture(scope="module", params=PROGRAMS)
def made(request):
    """Return a function that makes a switch of a mode, with entries."""
    name = request.param
    program = load(path_of(name))

    def make(mode="numba"):
        switch = Switch(program, mode)
        PROGRAMS[name](switch)
        return switch

    return make


def state_of(switch):
    cells = {name: item.values() for name, item in (switch.registers | switch.counters).items()}
    cells["direct"] = switch.state.counts
    cells["tables and externs"] = switch.state.memory
    cells["digests"] = np.array([values for _, values in switch.messages.digests], np.uint64)
    return cells


def test_both_modes_give_the_same_frames_and_state(made):
    plain, native = made("python"), made()
    for now in (0, 1_000_000, 2**48 + 5):
        batch = frames_for(plain, now, 150)
        assert plain.process(batch, now).pairs() == native.process(batch, now).pairs()
    for cells, values in state_of(plain).items():
        assert np.array_equal(values, state_of(native)[cells]), cells


@pytest.mark.parametrize("name", PROGRAMS)
def test_code_for_numbers_of_any_width_does_the_same(name):
    """A register of more than 64 bits, which nothing uses, makes the program one that is only interpreted."""
    document = json.loads(path_of(name).read_text())
    exact = copy.deepcopy(document)
    exact["register_arrays"].append({"name": "wide", "id": 999, "size": 1, "bitwidth": 65})
    plain, other = (Switch(parse(part, name), "python") for part in (document, exact))
    for switch in (plain, other):
        PROGRAMS[name](switch)
    batch = frames_for(plain, 7, 100)
    assert plain.process(batch, 9).pairs() == other.process(batch, 9).pairs()
    assert "wide" in other.registers
    for cells, values in state_of(plain).items():
        assert np.array_equal(values, state_of(other)[cells]), cells


def test_the_cut_of_a_stream_into_batches_does_not_matter(made):
    whole, cut = made(), made()
    batch = frames_for(whole, 1, 200)
    got = []
    for first in range(0, 200, 7):
        part = slice(first, first + 7)
        got += cut.process(Frames(batch.data[part], batch.length[part], batch.port[part]), 9).pairs()
    assert got == whole.process(batch, 9).pairs()


def test_random_bytes_do_no_harm(made):
    """Machine code has no bounds checks of its own: outputs must stay within bounds for any input."""
    switch = made()
    seeds = frames_for(switch, 3, 500)
    rng = np.random.default_rng(2)
    data = rng.integers(0, 256, (20_000, max(300, seeds.data.shape[1])), np.uint8)
    # A frame that the program parses, and then noise.
    for row, (_, frame) in zip(data[::2], seeds.pairs() * 20, strict=True):
        row[: len(frame)] = np.frombuffer(frame, np.uint8)
    length = rng.integers(0, data.shape[1] + 1, 20_000, np.int32)
    out = switch.process(Frames(data, length, rng.integers(0, 16, 20_000, np.int32)), 5)
    assert len(out) > 0
    assert out.length.min() >= 0
    assert out.length.max() <= out.data.shape[1]
    assert set(out.port.tolist()) <= set(range(512))
