"""What derives from the wire format, and the pipelines compiled from it, are current."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from p4_programs import program_in

from peelsum.pipelines import artifacts
from peelsum.wire import COMPILED_LANES, TOFINO_LANES, clock
from peelsum.wire.p4 import sources

#: As p4c calls it.
PREPROCESS = ("cpp", "-P", "-undef", "-nostdinc", "-x", "assembler-with-cpp")
needs_cpp = pytest.mark.skipif(shutil.which("cpp") is None, reason="cpp is not on PATH")
needs_p4c = pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH")


@pytest.mark.parametrize("name", sorted(sources()))
def test_generated_source_is_current(name):
    committed = (artifacts.P4_SOURCES / "generated" / name).read_text()
    assert committed == sources()[name], "run `peelsum switch compile`"


def test_nothing_else_is_among_the_generated_sources():
    generated = artifacts.P4_SOURCES / "generated"
    assert {p.relative_to(generated).as_posix() for p in generated.rglob("*.p4")} == set(sources())


def lanes_unrolled(lanes):
    """Return what v1model's `Lanes` has to be once its macros are expanded."""
    held = [
        (f"lane_{i}.read(held, slot_index);", f"lane_{i}.write(slot_index, lanes.v{i});")
        for i in range(lanes)
    ]
    added, ored = (
        [f"{read} lanes.v{i} = lanes.v{i} {sign} held; {write}" for i, (read, write) in enumerate(held)]
        for sign in "+|"
    )
    actions = {
        "set": [write for _, write in held],
        "add": added,
        "or": ored,
        "read": [f"lane_{i}.read(lanes.v{i}, slot_index);" for i in range(lanes)],
    }
    return [
        "control Lanes(in lane_op_t op, in bit<32> slot_index, inout lanes_h lanes) {",
        *(f"register<bit<32>>(SLOTS) lane_{i};" for i in range(lanes)),
        "bit<32> held;",
        *(f"action {name}_lanes() {{ {' '.join(body)} }}" for name, body in actions.items()),
        "apply { if (op == lane_op_t.ADD) add_lanes(); else if (op == lane_op_t.SET) set_lanes();",
        "else if (op == lane_op_t.OR) or_lanes(); else if (op == lane_op_t.READ) read_lanes(); } }",
    ]


def expanded(architecture, lanes):
    """Return the words of the header of lanes and of an architecture's `Lanes`."""
    text = f'#include "core/lanes_h.p4"\n#include "{architecture}/lanes.p4"\n'
    expand = (*PREPROCESS, f"-Igenerated/lanes_{lanes}", "-I.", "-")
    done = subprocess.run(
        expand, cwd=artifacts.P4_SOURCES, input=text, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def header(lanes):
    length = f"const bit<16> PACKET_UDP_LENGTH = {8 + 16 + 4 * lanes};"
    return [length, "header lanes_h {", *(f"bit<32> v{i};" for i in range(lanes)), "}"]


@needs_cpp
@pytest.mark.parametrize("lanes", COMPILED_LANES)
def test_every_lane_has_a_register_and_the_four_operations(lanes):
    assert expanded("v1model", lanes) == " ".join([*header(lanes), *lanes_unrolled(lanes)]).split()


@needs_cpp
@pytest.mark.parametrize("lanes", TOFINO_LANES.values())
def test_every_lane_has_an_alu_on_tofino(lanes):
    lanes_control = [
        "control Lanes(in lane_op_t op, in bit<32> slot_index, inout lanes_h lanes) {",
        *(f"Lane() lane_{i};" for i in range(lanes)),
        "apply {",
        *(f"lane_{i}.apply(op, slot_index, lanes.v{i});" for i in range(lanes)),
        "} }",
    ]
    assert expanded("tofino", lanes) == " ".join([*header(lanes), *lanes_control]).split()


def test_committed_pipelines_are_current():
    assert artifacts.staleness() is None


@pytest.mark.parametrize("lanes", [32, 256])
def test_pipelines_hold_relative_paths_only(lanes):
    built = artifacts.pipeline(lanes)
    for path in (built.json_path, built.p4info_path):
        assert re.search(r'"/\w', path.read_text()) is None, path


def test_the_slots_clock_is_the_declared_one():
    constants = dict(re.findall(r"const bit<\d+> (TICK_\w+|\w+_TICKS) = ([^;]+);", sources()["wire.p4"]))
    assert {name: int(value, 0) for name, value in constants.items()} == {
        name: getattr(clock, name)
        for name in ("TICK_SHIFT", "EPOCH_TICKS", "FREED_TICKS", "DEFAULT_AGE_TICKS")
    }


@pytest.mark.parametrize("folder", ["core", "tofino", "v1model"])
def test_only_the_generated_source_declares_the_clock(folder):
    for path in (artifacts.P4_SOURCES / folder).glob("*.p4"):
        assert re.search(r"const .*(_TICKS|TICK_)|>> [0-9]", path.read_text()) is None, path


LANE_FILES = ("lanes_32/each_lane.p4", "lanes_256/each_lane.p4")


@pytest.fixture
def copies(tmp_path):
    shutil.copytree(artifacts.ARTIFACTS, tmp_path / "artifacts")
    shutil.copytree(artifacts.P4_SOURCES, tmp_path / "p4")
    return tmp_path / "artifacts", tmp_path / "p4"


def test_a_changed_source_makes_the_pipeline_stale(copies):
    built, p4 = copies
    (p4 / "core" / "slot.p4").write_text("// changed\n")
    with pytest.raises(
        artifacts.PipelineError, match=r"core/slot\.p4 changed after .* run `peelsum switch compile`"
    ):
        artifacts.pipeline(32, built, p4)


def test_a_constant_that_has_changed_since_makes_it_stale(monkeypatch):
    made = {"wire.p4": sources()["wire.p4"].replace("15625", "31250")}
    monkeypatch.setattr(artifacts, "generated_sources", lambda: made)
    assert artifacts.staleness() == "generated/wire.p4 changed after the pipelines were compiled"


def test_a_source_of_the_tofinos_programs_alone_does_not(copies):
    built, p4 = copies
    (p4 / "tofino" / "owner.p4").write_text("// changed\n")
    assert artifacts.staleness(built, p4) is None


def test_generated_sources_are_written_only_where_they_differ(copies):
    _, p4 = copies
    same, other, missing = (p4 / "generated" / name for name in ("wire.p4", *LANE_FILES))
    text = other.read_text()
    other.write_text("// changed\n")
    missing.unlink()
    before = same.stat().st_mtime_ns
    artifacts.write_generated(p4)
    assert same.stat().st_mtime_ns == before
    assert (other.read_text(), missing.is_file()) == (text, True)


def test_a_changed_pipeline_is_not_taken(copies):
    built, p4 = copies
    (built / "peelsum_32.json").write_text("{}")
    with pytest.raises(artifacts.PipelineError, match=r"peelsum_32\.json differs from the compiled one"):
        artifacts.pipeline(32, built, p4)


def test_a_width_that_is_not_the_compilers_is_refused(copies):
    built, p4 = copies
    manifest = json.loads((built / artifacts.MANIFEST).read_text())
    manifest["artifacts"]["peelsum_64.json"] = manifest["artifacts"]["peelsum_32.json"]
    (built / artifacts.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(artifacts.PipelineError, match=r"peelsum_64\.json differs from the one that p4c"):
        artifacts.pipeline(64, built, p4)


def test_a_made_width_is_removed_by_the_process_that_made_it():
    program = (
        "import os, sys; from peelsum.pipelines import pipeline; made = pipeline(64).json_path\n"
        "if child := os.fork(): os.waitpid(child, 0); print(made.is_file(), made.parent)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    there, folder = done.stdout.split()
    assert (there, Path(folder).exists()) == ("True", False)


@needs_p4c
def test_compiling_again_gives_the_committed_pipelines(copies):
    built, p4 = copies
    artifacts.compile_pipelines(built, p4)
    committed = sorted(artifacts.ARTIFACTS.glob("peelsum_*"))
    assert [path.name for path in sorted(built.glob("peelsum_*"))] == [path.name for path in committed]
    for path in committed:
        assert program_in(built / path.name) == program_in(path), "run `peelsum switch compile`"


def test_compiling_without_the_compiler_says_what_is_missing(copies, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(artifacts.PipelineError, match=r"p4c-bm2-ss: not found on PATH"):
        artifacts.compile_pipelines(*copies)


def program_of_lanes(*primitives):
    """Return a program of two lanes with one action."""
    return {
        "header_types": [{"name": "lanes_h", "fields": [["v0", 32, False], ["v1", 32, False]]}],
        "register_arrays": [{"name": f"a.lane_{lane}", "id": lane, "size": 9} for lane in range(2)],
        "actions": [{"name": "take", "primitives": list(primitives)}],
    }


def assigned(lane):
    return {"op": "assign", "parameters": [{"type": "field", "value": ["lanes", f"v{lane}"]}]}


def jump(target):
    return {"op": "_jump", "parameters": [{"type": "hexstr", "value": hex(target)}]}


def test_jumps_of_each_lane_stay_in_its_statements():
    program = artifacts.with_lanes(program_of_lanes(jump(2), assigned(0), jump(4), assigned(1)), 3)
    (action,) = program["actions"]
    assert action["primitives"] == [
        part for lane in range(3) for part in (jump(2 * lane + 2), assigned(lane))
    ]
    assert [array["name"] for array in program["register_arrays"]] == ["a.lane_0", "a.lane_1", "a.lane_2"]


@pytest.mark.parametrize(
    "primitives",
    [[assigned(1)], [assigned(0), assigned(1), jump(1)], [jump(1), assigned(0), jump(1), assigned(1)]],
)
def test_an_action_with_other_statements_for_a_lane_is_refused(primitives):
    with pytest.raises(artifacts.PipelineError, match=r"^action take: has other statements for lane 1"):
        artifacts.with_lanes(program_of_lanes(*primitives), 2)


def test_registers_of_lanes_may_have_any_name():
    program = program_of_lanes(assigned(0), assigned(1))
    program["register_arrays"] = [
        {"name": name, "id": 0, "size": 9} for name in ("a.counts", "a.largest_0", "a.largest_1", "a.other_0")
    ]
    names = [array["name"] for array in artifacts.with_lanes(program, 3)["register_arrays"]]
    assert names == ["a.counts", "a.largest_0", "a.largest_1", "a.largest_2", "a.other_0"]


def test_a_program_without_lanes_is_refused():
    with pytest.raises(artifacts.PipelineError, match=r"^lanes_h: the program has no such header"):
        artifacts.with_lanes({"header_types": []}, 2)
