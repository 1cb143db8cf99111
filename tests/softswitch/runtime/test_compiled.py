"""Programs that Numba would take too long for are interpreted, with the same results and one line."""

import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE_S
from unrolled_lanes import SLOTS, expression, field, one_array, stack_of_lanes, wrapped

from peelsum.pipelines import pipeline
from peelsum.softswitch import Frames, Switch, load
from peelsum.softswitch.compiler.loading import generate, parse
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.runtime import native, plain


def frame(slot, lanes, rest=b""):
    return struct.pack(">I", slot) + np.asarray(lanes, ">u4").tobytes() + rest


def said(caplog):
    """The logged lines, without those that a compilation prints every two seconds."""
    return [line for line in caplog.messages if not line.startswith("compiling the switch program")]


def exchanged(switch, *frames):
    return [sent for _, sent in switch.process(Frames.of([(1, frame) for frame in frames]), 0).pairs()]


def sums_exactly(switch, lanes):
    """Assert that frames come back with the running sums of their slots."""
    rng = np.random.default_rng(7)
    slots = rng.integers(0, SLOTS, 12)
    given = rng.integers(0, 2**32, (len(slots), lanes), np.uint32)
    sums, expected = np.zeros((SLOTS, lanes), np.uint32), []
    for slot, values in zip(slots, given, strict=True):
        sums[slot] += values
        expected.append(frame(slot, sums[slot], b"rest"))
    assert exchanged(switch, *map(frame, slots, given, [b"rest"] * len(slots))) == expected


@pytest.mark.parametrize(("make", "lanes"), [(stack_of_lanes, 96), (one_array, 256)])
def test_a_program_that_takes_too_long_to_compile_is_interpreted(make, lanes, caplog):
    switch = Switch(parse(make(lanes), "foreign"), "numba")
    assert (switch.mode, switch.entry) == ("python", None)
    (line,) = said(caplog)
    seconds = native.seconds_to_compile(switch.source)
    assert line.startswith("switch: interprets program foreign, slowly")
    assert f"about {seconds:.1f} s, more than 10 s; make lanes fields of one header" in line
    sums_exactly(switch, lanes)


def test_lanes_in_a_stack_are_extracted_once_each(caplog):
    """Of 32 lanes, each `.next` wrote the code of all 32 elements, which took over 7 minutes to compile."""
    switch = Switch(parse(stack_of_lanes(32), "foreign"), "numba")
    assert (switch.mode, said(caplog)) == ("numba", [])
    sums_exactly(switch, 32)
    short = frame(SLOTS, [1] * 31)  # for a slot that is none, so that nothing is added
    assert exchanged(switch, short) == [short]


def test_programs_up_to_the_bound_are_compiled(monkeypatch, caplog):
    program = parse(one_array(4), "foreign")
    seconds = native.seconds_to_compile(generate(program).source)
    monkeypatch.setattr(native, "MOST_SECONDS", seconds)
    assert Switch(program, "numba").mode == "numba"
    assert not said(caplog)
    monkeypatch.setattr(native, "MOST_SECONDS", seconds - 0.001)
    switch = Switch(program, "numba")
    assert (switch.mode, len(said(caplog))) == ("python", 1)
    sums_exactly(switch, 4)


@pytest.mark.parametrize("lanes", [32, 256])
@pytest.mark.parametrize("queued", [False, True])
def test_our_pipelines_stay_far_below_the_bound(lanes, queued):
    source = generate(load(pipeline(lanes).json_path), True, queued).source
    assert native.seconds_to_compile(source) < 0.6 * native.MOST_SECONDS


def test_what_numba_gives_up_is_interpreted(monkeypatch, caplog):
    """Numba raises RecursionError for about 500 branches in a row."""
    tried = []

    def give_up(source, again):
        tried.append(source)
        raise RecursionError

    monkeypatch.setattr(native, "compiled_by_numba", give_up)
    switch = Switch(parse(one_array(4), "foreign"), "numba")
    assert (switch.mode, len(tried)) == ("python", 1)
    (line,) = said(caplog)
    assert line.endswith("has too many branches in a row to compile; make tables of them")
    sums_exactly(switch, 4)


def sum_of(terms):
    document = one_array(4)
    value = field("lanes", "v0")
    for _ in range(terms - 1):
        value = wrapped(expression("+", value, field("lanes", "v0")))
    (action,) = document["actions"]
    action["primitives"].append({"op": "assign", "parameters": [field("lanes", "v1"), value]})
    return document


def test_an_expression_that_python_cannot_load_is_refused():
    switch = Switch(parse(sum_of(101), "foreign"), "python")
    (got,) = exchanged(switch, frame(0, [2, 0, 0, 0]))
    assert got == frame(0, [2, 202, 0, 0])
    with pytest.raises(UnsupportedConstruct, match="expression: nested too deeply; assign"):
        parse(sum_of(102), "foreign")
    with pytest.raises(UnsupportedConstruct, match="expression nested too deeply"):
        parse(sum_of(1000), "foreign")


def test_branches_that_python_cannot_load_are_refused():
    """Python takes up to about 3,000 in a row."""
    branches = "".join(f"{'elif' if n else 'if'} x == {n}:\n    y = {n}\n" for n in range(20_000))
    generated = replace(generate(parse(one_array(4), "foreign")), source=branches)
    with pytest.raises(UnsupportedConstruct, match="too many branches in a row; use shorter header stacks"):
        plain.interpreted(generated)


# --- the next element of a stack --------------------------------------------------------------------


def branching(*counts):
    """Return a parser that extracts counts[slot] elements of a stack of 4, the last for all further slots.

    It then extracts two more.
    """
    document = stack_of_lanes(4)
    (parser,) = document["parsers"]
    (start,) = parser["parse_states"]
    head, extract = start["parser_ops"][:2]
    bodies = {f"take_{slot}": ([extract] * count, "more") for slot, count in enumerate(counts)}
    bodies["more"] = [extract] * 2, None
    start["parser_ops"], start["transition_key"] = [head], [field("head", "slot")]
    start["transitions"] = [
        {"type": "hexstr", "value": hex(slot), "mask": None, "next_state": f"take_{slot}"}
        for slot in range(len(counts) - 1)
    ]
    start["transitions"].append(always(f"take_{len(counts) - 1}"))
    parser["parse_states"] += [
        {"name": name, "id": place, "parser_ops": ops, "transitions": [always(to)], "transition_key": []}
        for place, (name, (ops, to)) in enumerate(bodies.items(), 1)
    ]
    return parse(document, "branching")


def always(state):
    return {"type": "default", "value": None, "mask": None, "next_state": state}


@pytest.mark.parametrize("mode", ["python", "numba"])
@pytest.mark.parametrize("counts", [(1, 2, 0), (2, 2, 2)])
def test_next_follows_the_branch_taken(mode, counts):
    """The second frame doubles the lanes that were extracted; the others are the rest of the frame."""
    switch = Switch(branching(*counts), mode)
    for slot, count in enumerate(counts):
        given = frame(slot, [1, 2, 3, 4], b"rest")
        doubled = frame(slot, [n * (2 if n <= count + 2 else 1) for n in (1, 2, 3, 4)], b"rest")
        assert exchanged(switch, given, given) == [given, doubled]


P4 = Path(__file__).parents[1] / "p4"
FRAME = b"\x00\x00\x00\x02\x80" + bytes(4)

START = """
import sys
from peelsum.softswitch import Frames, Switch, load
switch = Switch(load(sys.argv[1]))
print(switch.process(Frames.of([(0, bytes.fromhex(sys.argv[2]))]), 0).pairs()[0][0])
print(sum(switch._run.stats.cache_misses.values()))
"""


def start(cache):
    command = [sys.executable, "-c", START, str(P4 / "replicate.json"), FRAME.hex()]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.system
def test_processes_that_start_at_once_compile_a_program_once(tmp_path):
    both = start(tmp_path), start(tmp_path)
    printed = sorted(process.communicate(timeout=PATIENCE_S)[0].split() for process in both)
    assert printed == [["5", "0"], ["5", "1"]]
    assert start(tmp_path).communicate(timeout=PATIENCE_S)[0].split() == ["5", "0"]
