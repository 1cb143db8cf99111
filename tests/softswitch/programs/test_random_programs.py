"""Random programs, which p4c compiles, do what their generator computes with Python's integers.

On the softswitch, and on BMv2, for a generator that erred in the same way as the softswitch.
"""

import json
import random
import shutil
import subprocess
from contextlib import suppress

import pytest
import random_programs
from bmv2_files import NotLoadedError, outputs_of
from p4_programs import COMPILER
from program_frames import by_port, for_bmv2
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


def with_entries(document, program):
    """Return the JSON of a program with its entries, which BMv2 then needs no controller for."""
    for table in (table for pipeline in document["pipelines"] for table in pipeline["tables"]):
        if table["name"] in program.tables and not program.tables[table["name"]].const:
            declared = program.tables[table["name"]]
            numbers = dict(zip(table["actions"], table["action_ids"], strict=True))
            table["entries"] = [
                {
                    "match_key": [
                        match(key, pattern) for key, pattern in zip(declared.keys, patterns, strict=True)
                    ],
                    "action_entry": {
                        "action_id": numbers[f"{table['name'][:2]}{action}"],
                        "action_data": [hex(argument) for argument in arguments],
                    },
                    # The lowest comes first.
                    "priority": 1_000_000 - priority,
                }
                for patterns, action, arguments, priority in declared.entries
            ]
    return document


def match(key, pattern):
    """Return a match of an entry, as BMv2 reads it."""
    kind, bits = key
    parts = {"exact": ["key"], "lpm": ["key", "prefix_length"], "ternary": ["key", "mask"]}
    parts["range"] = ["start", "end"]
    values = pattern if isinstance(pattern, tuple) else (pattern,)
    return {"match_type": kind} | {
        part: value if part == "prefix_length" else f"0x{value:0{2 * (-(-bits // 8))}x}"
        for part, value in zip(parts[kind], values, strict=True)
    }


def cells_of(switch, program):
    """Return what a switch has counted and stored, as the program has it."""
    cells = {}
    for declared, arrays in ((program.registers, switch.registers), (program.counters, switch.counters)):
        cells |= {name: arrays[name].values().tolist() for name in declared & arrays.keys()}
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
    generated = switches[0].generated
    if mode == "python" and not generated.not_compilable:
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


def check_bmv2(seed, folder, monkeypatch):
    """Compare the frames that BMv2 sends, without clones and multicast groups."""
    monkeypatch.setattr(random_programs, "GROUPS", {})
    program = RandomProgram(seed, widths=WIDTHS + WIDE * (seed % 2))
    document = compiled(program, folder)
    rng, switch = random.Random(seed), Switch(parse(document, "random"), "python")
    # BMv2 keeps 64 frames for a port, and drops further ones if the port is slower than the program. Its four
    # threads of the egress take ports modulo 4, and would use the egress's registers in another order.
    frames = [(rng.choice([0, 4, 8, 300]), frame) for frame in Generator(switch, rng).frames(60, 0.1)]
    expected = by_port(sent for port, frame in frames for sent in program.process(port, frame))
    path = folder / "program.json"
    path.write_text(json.dumps(for_bmv2(with_entries(document, program))))
    ports = sorted({0, 4, 8, 300, *expected})
    assert outputs_of(path, frames, sum(map(len, expected.values())), folder, ports) == expected, seed


needs_bmv2 = pytest.mark.skipif(shutil.which("simple_switch") is None, reason="simple_switch is not on PATH")


@needs_bmv2
@pytest.mark.parametrize("seed", range(3))
def test_bmv2_does_what_a_random_program_says(seed, tmp_path, monkeypatch):
    try:
        check_bmv2(seed, tmp_path, monkeypatch)
    except NotLoadedError as error:
        pytest.skip(f"BMv2 does not load it: {error}")


@needs_bmv2
@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 2100, 100))
def test_bmv2_does_what_many_random_programs_say(first, tmp_path, monkeypatch):
    for seed in range(first, first + 100):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with suppress(NotLoadedError):
            check_bmv2(seed, folder, monkeypatch)
            shutil.rmtree(folder)


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
