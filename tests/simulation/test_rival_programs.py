"""The rivals' programs, packet by packet: what each register holds, up to its last cell, and BMv2 beside."""

import json
import os
import random
import shutil
import struct

import numpy as np
import pytest
from program_frames import by_port, for_bmv2
from rival_frames import THC_LEVELS, frame

from benchmarks.rivals.program_bench import (
    COLLISION,
    ECN,
    NO_WORDS,
    RESEND,
    RESULT,
    TO_ALL,
    VERSION,
    Message,
    SlotJob,
    load_program,
    unpack,
)
from benchmarks.rivals.slot_protocols import PROGRAMS
from peelsum.simulation import Job, SimulationError
from peelsum.softswitch import Frames, Switch
from peelsum.wire import FRAME_HEADER_BYTES

LANES = 4
SERVER = 40
LAST = 0xFFFFFFFF
NAMES = pytest.mark.parametrize("name", ["switchml", "omnireduce", "atp", "thc", "counting"])


def job(number, workers):
    words = np.zeros((workers, 1, LANES), np.uint32)
    return SlotJob(number, 2, 1 << 16, Job(), words, LANES, LANES, range(workers), SERVER)


def switch_of(name, workers, *, roll=True):
    """Return a switch that interprets a program; the workers of jobs 1 and 2 are at ports from 0 on."""
    switch = Switch(load_program(PROGRAMS / f"{name}.json", LANES), "python", roll=roll)
    for number in (1, 2):
        switch.groups.set(number, [(port, 0) for port in range(workers)])
    return switch


class Program:
    """A program, and jobs of so many workers."""

    def __init__(self, name, workers=2):
        self._switch, self._workers = switch_of(name, workers), workers

    def send(self, message, port=None, number=1):
        """Send a message from its worker's port, or from another; return what leaves, by port."""
        frames = Frames.of(
            [(message.worker if port is None else port, frame(job(number, self._workers), message))]
        )
        out = {}
        for to, raw in self._switch.process(frames, 0).pairs():
            lengths = struct.unpack_from(">H", raw, 16) + struct.unpack_from(">H", raw, 38)
            assert lengths == (len(raw) - 14, len(raw) - 34)
            header = struct.unpack_from(">10H", raw, 14)
            assert sum(header) % 0xFFFF == 0
            (out[to],) = unpack(np.frombuffer(raw[FRAME_HEADER_BYTES:], np.uint8)[np.newaxis])
        return out


def words(*values):
    return np.array(values, np.uint32)


def sums(out):
    return {port: message.words.tolist() for port, message in out.items()}


ONE, TWO = words(1, 2, 3, LAST), words(10, 20, 30, 2)
BOTH = [11, 22, 33, 1]
POOLS = pytest.mark.parametrize("name", ["switchml", "omnireduce"])


@POOLS
def test_a_slot_answers_for_a_finished_version_until_all_workers_are_past_it(name):
    program = Program(name)
    first, second = Message(0, ONE, worker=0), Message(0, TWO, worker=1)
    assert program.send(first) == {}
    assert program.send(first) == {}
    assert sums(program.send(second)) == {0: BOTH, 1: BOTH}
    for again in (first, second):
        assert sums(program.send(again)) == {again.worker: BOTH}
    # The other version does not touch it. A contribution to that one removes its worker from this one.
    assert program.send(Message(1, TWO, worker=0, flags=VERSION)) == {}
    assert sums(program.send(second)) == {1: BOTH}
    assert sums(program.send(Message(1, TWO, worker=1, flags=VERSION))) == {
        key: [20, 40, 60, 4] for key in (0, 1)
    }
    assert program.send(Message(2, TWO, worker=1)) == {}
    assert sums(program.send(Message(2, TWO, worker=0))) == {key: [20, 40, 60, 4] for key in (0, 1)}


@POOLS
def test_no_two_versions_of_slots_share_cells(name):
    program, cells = Program(name), [(slot, version) for slot in (0, 1, 32766, 32767) for version in (0, 1)]
    for n, (slot, version) in enumerate(cells):
        assert program.send(Message(0, words(n, 0, 0, 0), slot=slot, flags=version, worker=version)) == {}
    for n, (slot, version) in enumerate(cells):
        out = program.send(Message(0, words(100, 0, 0, 0), slot=slot, flags=version, worker=1 - version))
        assert sums(out) == {key: [100 + n, 0, 0, 0] for key in (0, 1)}


@pytest.mark.parametrize("name", ["switchml", "omnireduce", "atp", "counting"])
def test_32_workers_fill_a_bitmap(name):
    program = Program(name, 32)
    for round_number in range(1 if name in ("atp", "counting") else 3):
        for worker in range(32):
            message = Message(
                round_number, words(worker, 1, 0, 0), 1 << worker, 5, round_number & 1, worker, SERVER
            )
            out = program.send(message)
            assert bool(out) == (worker == 31)
        ports = [SERVER] if name == "atp" else range(32)
        assert sums(out) == {key: [496, 32, 0, 0] for key in ports}


def test_switchml_returns_the_largest_exponent_of_each_version():
    program = Program("switchml")
    for version, (a, b) in enumerate([(200, 255), (7, 3), (1, 0), (0, 0)]):
        program.send(Message(version, ONE, a, flags=version & 1))
        out = program.send(Message(version, ONE, b, flags=version & 1, worker=1))
        assert {message.extra for message in out.values()} == {max(a, b)}
        again = program.send(Message(version, ONE, b, flags=version & 1, worker=1))
        assert again[1].extra == max(a, b)


def test_thc_adds_the_levels_of_indices():
    program, random = Program("thc", 8), np.random.default_rng(1)
    # A lane has each index once, and the highest sums; then at random.
    indices = [random.integers(0, 16, (8, 8 * LANES)) for _ in range(3)]
    indices[0][:, :16], indices[0][:, 16:] = np.arange(16), 15
    for version, of_workers in enumerate(indices):
        expected = np.array(THC_LEVELS)[of_workers].sum(0).reshape(LANES, 2, 4)
        for worker, of_worker in enumerate(of_workers):
            lanes = [int("".join(f"{index:x}" for index in eight), 16) for eight in of_worker.reshape(-1, 8)]
            message = Message(version, words(*lanes), 100 * worker % 700, 3, version & 1, worker)
            out = program.send(message)
        assert set(out) == set(range(8))
        for answer in (*out.values(), *program.send(message).values()):
            sums_of_lanes = answer.words.astype(">u4").view(np.uint8).reshape(2, LANES, 4)
            assert (sums_of_lanes == expected.transpose(1, 0, 2)).all()
            assert answer.extra == 600


def test_omnireduce_adds_blocks_to_empty_packets_in_any_order():
    program = Program("omnireduce", 3)
    for version, order in enumerate([(0, 1, 2), (1, 2, 0), (2, 0, 1)]):
        for worker in order:
            block = TWO if worker == 1 else NO_WORDS
            message = Message(9, block, [LAST, 77, LAST - 1][worker], flags=version & 1, worker=worker)
            out = program.send(message)
        assert {(m.extra, m.chunk, *m.words.tolist()) for m in out.values()} == {(77, 9, *TWO.tolist())}
        assert sums(program.send(message)) == {message.worker: TWO.tolist()}
    for worker in range(3):
        out = program.send(Message(11, ONE, LAST, flags=VERSION, worker=worker))
    assert {message.extra for message in out.values()} == {LAST}


def contribution(worker, chunk=7, flags=0, slot=65535):
    return Message(chunk, (ONE, TWO)[worker], 1 << worker, slot, flags, worker, SERVER)


def result(chunk=7, port=TO_ALL):
    return Message(chunk, TWO, 3, 65535, RESULT, 0, port)


def test_atp_sums_once_and_keeps_the_slot_until_the_result():
    program = Program("atp")
    assert program.send(contribution(0, flags=ECN)) == {}
    assert program.send(contribution(0)) == {}
    (out,) = program.send(contribution(1)).values()
    assert (out.words.tolist(), out.extra, out.flags) == (BOTH, 3, ECN)
    assert program.send(contribution(1)) == {}
    # Another chunk, or another job's, finds the slot claimed.
    for number, chunk in ((1, 8), (2, 7)):
        out = program.send(contribution(1, chunk), number=number)
        assert sums(out) == {SERVER: TWO.tolist()}
        assert (out[SERVER].flags, out[SERVER].extra) == (COLLISION, 2)
    assert list(program.send(result(8), SERVER)) == [0, 1]  # not this chunk's: the slot stays
    assert program.send(contribution(1, 8))[SERVER].flags == COLLISION
    assert list(program.send(result(7, port=1), SERVER)) == [1]  # frees it
    assert program.send(contribution(1, 8)) == {}
    # Of the earlier chunk, neither sum nor bitmap nor mark are left.
    (out,) = program.send(contribution(0, 8)).values()
    assert (out.words.tolist(), out.extra, out.flags) == (BOTH, 3, 0)


def test_atp_s_resend_frees_the_slot_and_takes_along_what_it_held():
    program = Program("atp")
    assert program.send(contribution(0)) == {}
    out = program.send(contribution(0, flags=RESEND))
    assert (sums(out), out[SERVER].extra) == ({SERVER: ONE.tolist()}, 1)
    # Free: a resend does not claim it, and finds nothing to add.
    out = program.send(contribution(0, flags=RESEND))
    assert (sums(out), out[SERVER].flags) == ({SERVER: ONE.tolist()}, RESEND)
    assert program.send(contribution(1, 8)) == {}
    out = program.send(contribution(0, 7, RESEND))
    assert (sums(out), out[SERVER].flags) == ({SERVER: ONE.tolist()}, RESEND | COLLISION)
    out = program.send(contribution(0, 8, RESEND))
    assert (sums(out), out[SERVER].extra) == ({SERVER: BOTH}, 3)
    assert program.send(contribution(0)) == {}


def test_atp_s_slots_do_not_share_cells():
    program = Program("atp")
    for slot in (0, 1, 32768, 65535):
        assert program.send(contribution(0, chunk=slot, slot=slot)) == {}
    for slot in (0, 1, 32768, 65535):
        assert sums(program.send(contribution(1, chunk=slot, slot=slot))) == {SERVER: BOTH}


def random_messages(seed):
    """Yield messages of two jobs that meet in a few slots: the job, the port, and the message."""
    rng = random.Random(seed)
    for _ in range(150):
        number, worker = rng.randrange(1, 3), rng.randrange(2)
        block = np.array([rng.choice([0, 1, LAST, rng.getrandbits(32)]) for _ in range(LANES)], np.uint32)
        flags = rng.choice([0, 0, 0, RESEND, RESULT]) | rng.choice([0, ECN]) | rng.choice([0, VERSION])
        slot, chunk = rng.choice([0, 1, 32767]), rng.randrange(2)
        extra, port = rng.choice([1 << worker, 3]), rng.choice([2, 3, TO_ALL])
        lanes = block if rng.random() < 0.8 else NO_WORDS
        yield number, worker, Message(chunk, lanes, extra, slot, flags, worker, port)


@NAMES
def test_loops_over_lanes_do_what_the_statements_did(name):
    rolled, plain = switch_of(name, 2), switch_of(name, 2, roll=False)
    left = 0
    for number, port, message in random_messages(3):
        frames = Frames.of([(port, frame(job(number, 2), message))])
        out = rolled.process(frames, 0).pairs()
        assert out == plain.process(frames, 0).pairs()
        left += len(out)
    assert left


@pytest.mark.skipif(shutil.which("simple_switch_grpc") is None, reason="simple_switch_grpc is not on PATH")
@pytest.mark.skipif(os.geteuid() != 0, reason="BMv2's ports need root")
@NAMES
def test_a_program_does_what_bmv2_makes_it_do(name, tmp_path):
    from bmv2_frames import Bmv2Frames

    switch, marker_port = switch_of(name, 2), 7
    switch.groups.set(9, [(marker_port, 0)])
    program = for_bmv2(json.loads((PROGRAMS / f"{name}.json").read_text()))
    bmv2 = Bmv2Frames(json.dumps(program).encode(), (0, 1, 2, 3, marker_port), tmp_path / "bmv2.log")
    try:
        for number, ports in ((1, (0, 1)), (2, (0, 1)), (9, (marker_port,))):
            bmv2.set_group(number, [(port, 0) for port in ports])
        for turn, (number, port, message) in enumerate(random_messages(4)):
            # A job of one worker, which is answered at once.
            marker = frame(job(9, 1), Message(100 + turn, ONE, 1, 100 + turn, RESULT, 0, marker_port))
            ((back, answer),) = switch.process(Frames.of([(marker_port, marker)]), 0).pairs()
            raw = frame(job(number, 2), message)
            expected = switch.process(Frames.of([(port, raw)]), 0).pairs()
            got = bmv2.exchange(port, raw, len(expected), (marker_port, marker, back, answer))
            assert got == by_port(expected), message
    finally:
        bmv2.close()


def test_a_file_that_is_no_compiled_program_is_refused(tmp_path):
    with pytest.raises(
        SimulationError, match=r"^program: .*/none.json: No such file or directory; compile it"
    ):
        load_program(tmp_path / "none.json", LANES)
    (tmp_path / "some.p4").write_text("#include <core.p4>")
    with pytest.raises(SimulationError, match=r"^program: .*/some.p4: is not JSON; give what p4c-bm2-ss"):
        load_program(tmp_path / "some.p4", LANES)
