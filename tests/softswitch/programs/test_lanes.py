"""Loops over lanes compared with NumPy and with the same program left unrolled."""

import random
import struct

import numpy as np
import pytest
from unrolled_lanes import expression, field, number, one_array, stack_of_lanes

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.compiler.loading import parse

LANES, CELLS, BYTES = 12, 16, 6
ADD, OR, TAKE, REVERSE, SCAN, COUNT = 1, 2, 3, 7, 8, 9


def packet(op, slot, lanes, counts):
    return struct.pack(">BI", op, slot) + np.asarray(lanes, ">u4").tobytes() + bytes(counts)


class Model:
    """Do what lanes.p4 does in NumPy. An index past the end changes nothing when read or written."""

    def __init__(self):
        self.cells = np.zeros((CELLS, LANES), np.uint32)
        self.counts = np.zeros((CELLS, BYTES), np.uint8)

    def send(self, op, slot, lanes, counts):
        v, b = np.array(lanes, np.uint32), np.array(list(counts), np.uint8)
        if op == COUNT:
            held = self.counts[slot].copy() if slot < CELLS else np.zeros(BYTES, np.uint8)
            if slot < CELLS:
                self.counts[slot] = held + b
            b = held[::-1]
        elif op == SCAN:
            v[:9] = np.cumsum(v[:9], dtype=np.uint32)
        elif op == REVERSE:
            for turn in range(6):
                v[11 - 2 * turn] = v[turn]
            slot = int(v[3])
        else:
            inside = slot & 0x1F
            held = self.cells[inside].copy() if inside < CELLS else np.zeros(LANES, np.uint32)
            v = {ADD: v + held, OR: v | held, TAKE: held}.get(op, v)
            if inside < CELLS:
                self.cells[inside] = v
        return packet(op, slot, v, b)


def cases(count):
    rng = random.Random(3)
    for _ in range(count):
        slot = rng.choice([0, 1, 15, 16, 31, 32, 2**32 - 1, rng.getrandbits(32)])
        lanes = [rng.choice([0, 1, 2**32 - 1, rng.getrandbits(32)]) for _ in range(LANES)]
        yield rng.choice([0, ADD, ADD, OR, TAKE, REVERSE, SCAN, COUNT]), slot, lanes, rng.randbytes(BYTES)


def run(switch, given):
    return switch.process(Frames.of([(1, packet(*case)) for case in given]), 0).pairs()


def test_loops_do_what_numpy_does(switch_of):
    switch, model, given = switch_of("lanes"), Model(), list(cases(500))
    assert [frame for _, frame in run(switch, given)] == [model.send(*case) for case in given]
    cells = [[switch.registers[f"I.lane_{n}.cells"].read(i) for n in range(LANES)] for i in range(CELLS)]
    assert np.array_equal(cells, model.cells)


@pytest.mark.parametrize("ending", ["extract", "verify"])
def test_a_parser_that_ends_among_its_lanes_does_nothing_after_them(ending):
    """Lane 2 of 8 is missing, or not 0. A loop over lanes would end there, and the parser go on behind it."""
    document = (stack_of_lanes if ending == "extract" else one_array)(8)
    (state,) = document["parsers"][0]["parse_states"]
    head, *extracts = state["parser_ops"]
    body = [{"op": "set", "parameters": [field("scalars", f"held_{lane}"), number(0)]} for lane in range(8)]
    if ending == "extract":
        body = [step for pair in zip(extracts, body, strict=True) for step in pair]
    else:
        zero = [expression("==", field("lanes", f"v{lane}"), number(0)) for lane in range(8)]
        body = [*extracts, *({"op": "verify", "parameters": [test, number(3)]} for test in zero)]
    after = {"op": "set", "parameters": [field("head", "slot"), number(77)]}
    state["parser_ops"] = [head, *body, after]
    document["actions"][0]["primitives"][1:] = []
    lanes = [0, 0] if ending == "extract" else [0, 0, 1, 0, 0, 0, 0, 0]
    frame = struct.pack(f">{1 + len(lanes)}I", 1, *lanes)
    for roll in (False, True):
        switch = Switch(parse(document, "ending"), "python", roll=roll)
        assert switch.process(Frames.of([(1, frame)]), 0).pairs() == [(1, frame)], roll
