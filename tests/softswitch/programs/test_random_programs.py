"""Random programs, which p4c compiles, do what their generator computes with Python's integers."""

import json
import random
import shutil
import subprocess

import pytest
from machine_words import on_words
from p4_programs import COMPILER
from random_frames import Generator
from random_programs import GROUPS, SESSIONS, WIDE, WIDTHS, RandomProgram

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.compiler.loading import parse

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not on PATH")


def compiled(program, folder):
    """Return the BMv2 JSON of a program."""
    source, built = folder / "program.p4", folder / "program.json"
    source.write_text(program.text)
    subprocess.run([COMPILER, "--Wdisable", "-o", str(built), str(source)], check=True, capture_output=True)
    return json.loads(built.read_text())


def filled(switch, program):
    """Insert the program's entries in a switch; p4c leaves tables out that are never applied."""
    for name, table in program.tables.items():
        if name in switch.tables and not table.const:
            for keys, action, arguments, priority in table.entries:
                switch.tables[name].insert(keys, f"{name[:2]}{action}", arguments, priority)
    for groups, rows in ((switch.groups, GROUPS), (switch.sessions, SESSIONS)):
        for number, replicas in rows.items():
            groups.set(number, replicas)
    return switch


def cells_of(switch, program):
    """Return what a switch has counted and stored, as the program has it."""
    cells = {
        name: switch.registers[name].values().tolist() for name in program.registers & switch.registers.keys()
    }
    cells |= {
        name: switch.counters[name].values().tolist() for name in program.counters & switch.counters.keys()
    }
    for name, table in program.tables.items():
        if name in switch.tables:
            priorities = {entry.keys: entry.priority for entry in switch.tables[name].entries()}
            read = switch.tables[name].read_counter
            cells[name] = [list(read(keys, priorities[keys])) for keys, *_ in table.entries]
    return cells


def check(seed, folder, mode, size=8):
    """Compare frames, counters and registers; every second program has wide fields, every third clones."""
    program = RandomProgram(seed, size, WIDTHS + WIDE * (seed % 2), seed % 3 == 0)
    document = compiled(program, folder)
    switches = [Switch(parse(document, "random"), mode)]
    generated = switches[0]._generated
    if mode == "python" and not generated.not_compilable:
        switches.append(Switch(parse(document, "random"), mode))
        switches[-1]._run = on_words(generated)
        # Once more with code for numbers of any width, which such a register needs.
        wide = {"name": "wide", "id": 999, "size": 1, "bitwidth": 65}
        document["register_arrays"].append(wide)
        switches.append(Switch(parse(document, "random"), mode))
    rng = random.Random(seed)
    frames = [(rng.choice([0, 1, 5, 300]), frame) for frame in Generator(switches[0], rng).frames(100, 0.1)]
    expected = [sent for port, frame in frames for sent in program.process(port, frame)]
    counted = {name: table.counts for name, table in program.tables.items()}
    for switch in switches:
        assert filled(switch, program).process(Frames.of(frames), 0).pairs() == expected, seed
        cells = cells_of(switch, program)
        assert cells == {name: (program.registers | program.counters | counted)[name] for name in cells}, seed


@pytest.mark.parametrize("seed", range(3))
def test_a_random_program_does_what_it_says(seed, tmp_path):
    check(seed, tmp_path, "python")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 2100, 100))
def test_many_random_programs_do_what_they_say(first, tmp_path):
    for seed in range(first, first + 100):
        check(seed, tmp_path, "python")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 10_100, 10))
def test_compiled_random_programs_do_what_they_say(first, tmp_path):
    for seed in range(first, first + 10):
        check(seed, tmp_path, "numba", size=3)
