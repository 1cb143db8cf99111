"""Registers of different sizes in one program: each keeps its own cells, however accesses are rolled."""

import random
import struct

from peelsum.softswitch import Frames

SIZES = {"even": [16] * 6, "odd": [3] * 6, "tail": [4, 4, 4, 4, 4, 9]}


def test_each_register_has_its_own_size_and_cells(switch_of):
    switch, rng = switch_of("banks"), random.Random(5)
    model = {f"I.{name}_{n}": [0] * size for name, sizes in SIZES.items() for n, size in enumerate(sizes)}
    for _ in range(40):
        slot, values = rng.randrange(18), [rng.getrandbits(32) for _ in range(6)]
        switch.process(Frames.of([(0, struct.pack(">7I", slot, *values))]), 0)
        for name, cells in model.items():
            if slot < len(cells):
                cells[slot] = values[int(name[-1])]
    assert {name: register.values().tolist() for name, register in switch.registers.items()} == model


def test_control_reaches_every_cell_and_no_other(switch_of):
    switch = switch_of("banks")
    model = {}
    for number, (name, register) in enumerate(switch.registers.items()):
        model[name] = [100 * number + index for index in range(register.size)]
        for index, value in enumerate(model[name]):
            register.write(index, value)
    assert {name: register.values().tolist() for name, register in switch.registers.items()} == model
    assert [switch.registers[name].read(len(cells) - 1) for name, cells in model.items()] == [
        cells[-1] for cells in model.values()
    ]
