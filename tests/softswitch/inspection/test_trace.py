"""Traces: packets leave as without a trace, and what a trace says agrees with what happened."""

import contextlib
import json
import random
import struct
from pathlib import Path

import pytest
from frames import frame
from json_places import places
from peelsum_packets import Job, pattern
from program_frames import set_groups
from random_frames import Generator
from rigs import SoftswitchRig

from peelsum.pipelines import pipeline
from peelsum.softswitch import Frames, SoftswitchError, Switch, load
from peelsum.softswitch.compiler.loading import parse
from peelsum.softswitch.inspection.graph import as_dot
from peelsum.softswitch.inspection.text import TraceWriter
from peelsum.softswitch.inspection.trace import Tracer

P4 = Path(__file__).parents[1] / "p4"
PROGRAMS = sorted(path for path in P4.glob("*.json") if path.name != "manifest.json")
PROGRAMS.append(P4.parent / "p4runtime" / "p4" / "externs.json")
#: The names that each kind of step has, besides an optional source.
STEPS = {
    "pass": {"packet", "size"},
    "state": {"state", "operations", "key", "next", "failed"},
    "parser_end": {"error", "payload_bytes"},
    "ingress": set(),
    "condition": {"condition", "outcome"},
    "table": {"table", "key", "hit", "entry"},
    "action": {"action", "parameters", "statements"},
    "clone": {"session", "ports"},
    "multicast": {"group", "ports"},
    "forward": {"port"},
    "drop": {"reason"},
    "resubmit": set(),
    "recirculate": {"headers"},
    "egress": {"port", "rid", "instance_type"},
    "send": {"port", "bytes", "headers", "changed"},
}


def fill(switch):
    """Give a switch groups, sessions, and a route if it routes."""
    set_groups(switch)
    if "RouterIngress.routes" in switch.tables:
        switch.tables["RouterIngress.routes"].insert(((0, 0),), "RouterIngress.route", (3, 0x020000000099))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_trace_changes_nothing_and_has_every_packet_that_leaves(path):
    program = load(path)
    switch, tracer = Switch(program, "python"), Tracer(program)
    for each in (switch, tracer.switch):
        fill(each)
    writer, leaving = TraceWriter(program), 0
    for data in (*Generator(switch, random.Random(5)).frames(20), frame(b"payload")):
        expected = switch.process(Frames.of([(1, data)]), 7).pairs()
        trace = json.loads(json.dumps(tracer.trace(1, data, 7)))
        packets = [(packet["port"], bytes.fromhex(packet["bytes"])) for packet in trace["packets"]]
        assert packets == expected
        steps = [step for step in trace["steps"] if step["step"] == "send"]
        sent = [(step["port"], bytes.fromhex(step["bytes"])) for step in steps]
        assert sent == expected
        for step in trace["steps"]:
            assert step.keys() - {"step", "source"} == STEPS[step["step"]]
        assert f"{len(data)} bytes at port 1" in writer.text(trace)
        leaving += len(expected)
    assert leaving or path.stem == "queues"
    for name, register in switch.registers.items():
        assert (register.values() == tracer.switch.registers[name].values()).all()


def test_passes_of_a_clone_and_its_packet():
    tracer = Tracer(load(P4 / "again.json"))
    fill(tracer.switch)
    # Kind 1 asks for a clone to session 100, with ports 4 and 5, in ingress.
    trace = tracer.trace(7, struct.pack(">BBHHH", 1, 0, 100, 0, 1000) + b"tail")
    steps = [step for step in trace["steps"] if step["step"] not in ("condition", "table", "action", "state")]
    assert [step.get("packet", step["step"]) for step in steps] == [
        *("arrived", "parser_end", "ingress", "clone", "forward"),
        *("clone made in ingress", "parser_end", "egress", "send", "egress", "send"),
        *("continues after its clones", "egress", "send"),
    ]
    assert [step["port"] for step in steps if step["step"] == "send"] == [4, 5, 9]
    assert next(step for step in steps if step["step"] == "clone")["ports"] == [4, 5]


def test_without_an_observer_nothing_is_observed():
    program = load(P4 / "router.json")
    assert "observe" not in Switch(program, "python").source
    assert "observe" in Tracer(program).switch.source


def test_text():
    document = json.loads((P4 / "router.json").read_text())
    tables = {item["name"]: item for item in document["pipelines"][0]["tables"]}
    source = {"filename": "p4/router.p4", "line": 88, "column": 3, "source_fragment": "routes"}
    tables["RouterIngress.routes"]["source_info"] = source
    program = parse(document, "router")
    tracer = Tracer(program)
    fill(tracer.switch)
    expected = (Path(__file__).parent / "router_trace.txt").read_text()
    assert TraceWriter(program).text(tracer.trace(1, frame(b"payload"))) + "\n" == expected


@pytest.fixture(scope="module")
def traced_sum():
    """Return the traces of two workers' contributions to a chunk, and the sum of their lanes."""
    rig = SoftswitchRig(load(pipeline(32).json_path), "python")
    tracer = Tracer(load(pipeline(32).json_path))
    rig.switch, traces = tracer.switch, []

    def process(port, payload, now_us=0):
        traces.append(tracer.trace(port, frame(payload), now_us))
        return []

    rig.process = process
    job = Job(rig, 7, (1, 2), server_port=8)
    values = 0xFFFFFFF0, 0x12345678
    for worker, value in enumerate(values):
        job.contribute(worker, 5, value)
    sums = [sum(lanes) % 2**32 for lanes in zip(*(pattern(value, 32) for value in values), strict=True)]
    return traces, [pattern(values[0], 32), sums], job.slot_of(5)


def test_registers_of_a_sum(traced_sum):
    traces, after, slot = traced_sum
    before = [[0] * 32, after[0]]
    for trace, old, new in zip(traces, before, after, strict=True):
        statements = [item for step in trace["steps"] for item in step.get("statements", ())]
        writes = [item for item in statements if item["step"] == "write_register"]
        lanes = [item for item in writes if ".lane_" in item["register"]]
        expected = [(slot, *pair) for pair in zip(old, new, strict=True)]
        assert [(item["index"], item["before"], item["after"]) for item in lanes] == expected
    (packet,) = traces[1]["packets"]
    assert packet["port"] == 8
    assert packet["bytes"].endswith("".join(f"{lane:08x}" for lane in after[1]))
    assert traces[0]["packets"] == []


def test_long_actions_are_shortened_unless_asked(traced_sum):
    traces, _, _ = traced_sum
    program = load(pipeline(32).json_path)
    short, full = (TraceWriter(program, full).text(traces[1]) for full in (False, True))
    assert short.count("lane_") < 20 < 64 <= full.count("lane_")
    assert "... 80 more (--full) ..." in short


def test_a_short_packet_is_an_outcome_of_the_parser():
    trace = Tracer(load(P4 / "router.json")).trace(1, frame(b"")[:20])
    end = next(step for step in trace["steps"] if step["step"] == "parser_end")
    assert (end["error"], end["payload_bytes"]) == ("PacketTooShort", 6)


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        # Resubmits without end.
        (
            "again",
            struct.pack(">BBHHH", 6, 0, 0, 0, 0),
            "  drop: after 256 passes of a packet, the softswitch refuses",
        ),
        (
            "again",
            struct.pack(">BBHHH", 1, 0, 57, 0, 0),
            "  clone to session 57: is not set, so there is no clone",
        ),
        (
            "registers",
            struct.pack(">9I", 4, *range(8)),
            ".r0[4]: is past the register's end, so it reads 0\n",
        ),
        ("registers", struct.pack(">9I", 4, *range(8)), ".r0[4]: is past the register's end, so it writes "),
    ],
)
def test_text_of_what_a_switch_does_not_do(name, data, line):
    tracer = Tracer(load(P4 / f"{name}.json"))
    assert line in TraceWriter(tracer.program).text(tracer.trace(1, data))


@pytest.mark.parametrize(
    ("class_", "line"),
    [
        (3, "count RouterIngress.classes[3]\n"),
        (4, "count RouterIngress.classes[4]: is past its end, so nothing happens\n"),
    ],
)
def test_text_of_a_counter_past_its_end(class_, line):
    tracer = Tracer(load(P4 / "router.json"))
    tracer.switch.tables["RouterIngress.by_port"].insert((1, 0, 0x9000), "RouterIngress.permit", (class_,))
    trace = tracer.trace(1, bytes(12) + b"\x90\0" + bytes(46))
    assert line in TraceWriter(tracer.program).text(trace)


def test_a_lookahead_past_the_packet_ends_the_parser_before_it_selects():
    tracer = Tracer(load(P4 / "router.json"))
    trace = tracer.trace(1, bytes(12) + b"\x86\xdd" + bytes(40))
    (state,) = (step for step in trace["steps"] if step.get("state") == "parse_ipv6")
    assert (state["failed"], state["key"], state["next"]) == (True, [], None)
    text = TraceWriter(tracer.program).text(trace)
    assert "-> end of the parser" not in text
    assert "the parser stops with the error PacketTooShort" in text


@pytest.mark.parametrize("name", ["router", "again", "replicate"])
def test_programs_with_random_changes_are_refused_or_traced_and_drawn(name):
    rng, text, traced = random.Random(name), (P4 / f"{name}.json").read_text(), 0
    for _ in range(25):
        changed = json.loads(text)
        parent, key = rng.choice(list(places(changed)))
        parent[key] = rng.choice([None, 0, 1, -1, "x", [], {}, 0.5, "0x0", [parent[key]]])
        with contextlib.suppress(SoftswitchError):
            program = parse(changed, name)
            as_dot(program)
            tracer, writer = Tracer(program), TraceWriter(program)
            for data in (frame(b"xx"), rng.randbytes(70)):
                writer.text(json.loads(json.dumps(tracer.trace(1, data))))
            traced += 1
    assert traced
