"""Programs that p4c seldom or never writes, made of compiled ones by hand."""

import copy
import json
import random
import struct
from pathlib import Path

import pytest
from frames import checksum
from program_frames import changed_switch
from random_frames import Generator
from rare_programs import LOGS, option_frames, with_declared_length, with_deparser
from unrolled_lanes import expression, field, number

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.compiler.loading import parse
from peelsum.softswitch.errors import BadProgram

P4 = Path(__file__).parents[1] / "p4"


def test_a_checksum_that_one_copy_updates_is_not_in_the_next():
    def change(document):
        names = ("instance", "port", "zero", "length", "kind")
        inputs = [field("tag", name) for name in names]
        document["calculations"] = [{"name": "calc", "id": 0, "algo": "csum16", "input": inputs}]
        only = expression("==", field("standard_metadata", "egress_rid"), number(10))
        summed = {"name": "sum", "id": 0, "type": "generic", "calculation": "calc"}
        summed |= {"target": ["flat", "group"], "verify": False, "update": True, "if_cond": only}
        document["checksums"] = [summed]
        # Or the header would be restored for every copy because of this action.
        (strip,) = (action for action in document["actions"] if action["name"] == "E.strip")
        strip["primitives"] = []

    switch = changed_switch("replicate", change, "numba")
    switch.groups.set(3, [(1, 10), (2, 20), (1, 30)])
    frame = struct.pack(">BHHI", 1, 3, 9 << 7, 1000)
    got = switch.process(Frames.of([(7, frame)]), 0).pairs()
    groups = [struct.unpack(">H", copy[13:15])[0] for _, copy in got]
    assert groups == [checksum(got[0][1][:12]), 3, 3]


def cells(index, *values):
    return struct.pack(">9I", index, *values, *[0] * (8 - len(values)))


def exchanged(switch, frame):
    ((_, got),) = switch.process(Frames.of([(1, frame)]), 0).pairs()
    return struct.unpack(">9I", got)[1:]


def test_an_index_below_zero_is_past_the_end():
    """Of 16 bits, from 8 bits less one: from 0 it is 65535, though nothing that is assigned is above 254."""

    def change(document):
        (scalars,) = (item for item in document["header_types"] if item["name"].startswith("scalars"))
        scalars["fields"].append(["index", 16, False])
        first, *rest = document["actions"][0]["primitives"]
        low = expression("&", field("cells", "index"), number(0xFF))
        below = {"type": "expression", "value": expression("-", low, number(1))}
        assign = {"op": "assign", "parameters": [field("scalars", "index"), below]}
        for item in rest:
            place = {"register_read": 2, "register_write": 1}.get(item["op"])
            if place is not None:
                item["parameters"][place] = field("scalars", "index")
        document["actions"][0]["primitives"] = [first, assign, *rest]
        for register in document["register_arrays"]:
            register["size"] = 255

    switch = changed_switch("registers", change, "numba")
    assert exchanged(switch, cells(255, *range(1, 9))) == (0,) * 8
    assert exchanged(switch, cells(0, *range(11, 19))) == (0,) * 8
    values = [switch.registers[f"I.r{n}"].values().tolist() for n in range(8)]
    assert values == [[0] * 254 + [n + 1] for n in range(8)]


def copied(document, back):
    """Let actions drop a copy of the standard metadata, which is copied back or not."""
    kind = next(item for item in document["header_types"] if item["name"] == "standard_metadata")
    names = [name for name, *_ in kind["fields"]]
    copy = {"name": "sm_0", "id": 99, "header_type": "standard_metadata", "metadata": True}
    document["headers"].append(copy)

    given = [{"type": "header", "value": name} for name in ("sm_0", "standard_metadata")]
    copied_in = {"op": "assign_header", "parameters": given}
    copied_out = [
        {"op": "assign", "parameters": [field("standard_metadata", name), field("sm_0", name)]}
        for name in names
    ]
    for action in document["actions"]:
        steps = []
        for step in action["primitives"]:
            if step["op"] == "mark_to_drop":
                drop = {"op": "mark_to_drop", "parameters": given[:1]}
                steps += [copied_in, drop, *(copied_out if back else ())]
            else:
                steps.append(step)
        action["primitives"] = steps


@pytest.mark.parametrize("back", [True, False])
def test_what_is_dropped_is_the_header_that_is_given(back):
    """p4c makes a copy of an `inout` argument, and copies it back after the call."""
    switch = changed_switch("replicate", lambda document: copied(document, back), "numba")
    switch.groups.set(3, [(1, 10), (2, 20), (1, 30)])
    switch.tables["E.copies"].insert(((20, 0xFFFF), (0, 0)), "E.drop", (), priority=1)
    frames = [struct.pack(">BHHI", kind, 3 * (kind != 2), 9 << 7, 1000) for kind in range(4)]
    ports = [[port for port, _ in switch.process(Frames.of([(7, frame)]), 0).pairs()] for frame in frames]
    assert ports == ([[9], [1, 1], [], []] if back else [[9], [1, 2, 1], [9], [1, 2, 1]])


@pytest.mark.parametrize(
    ("key", "value", "mask", "selected", "others"),
    [
        (["c"], (-3,), None, [(-3, 0)], [(3, 0), (2**31 - 3, 0), (-4, 0)]),
        (["c"], (-128,), (-64,), [(-128, 0), (-65, 0)], [(-64, 0), (-129, 0), (128, 0)]),
        (["c", "d"], (-3, -2), None, [(-3, -2)], [(-4, -2), (-3, 2), (3, -2)]),
        (["c", "d"], (-3, 2), None, [(-3, 2)], [(-4, 2), (-2, 2)]),
    ],
)
def test_negative_numbers_that_a_parser_selects(key, value, mask, selected, others):
    """p4c writes a key's numbers as a sum, e.g. (-3, 2) of 32 bits each as -3 * 2**32 + 2."""

    def whole(numbers):
        total = 0
        for summand in numbers:
            total = (total << 32) + summand
        return hex(total)

    def change(document):
        (start,) = document["parsers"][0]["parse_states"]
        start["transition_key"] = [field("numbers", name) for name in key]
        transition = {"type": "hexstr", "value": whole(value), "mask": mask and whole(mask)}
        start["transitions"].insert(0, transition | {"next_state": "more"})
        extract = {"op": "extract", "parameters": [{"type": "regular", "value": "copy"}]}
        more = {"name": "more", "id": 1, "parser_ops": [extract], "transition_key": [], "transitions": []}
        document["parsers"][0]["parse_states"].append(more)

    switch = changed_switch("arithmetic", change, "numba")
    heads = [struct.pack(">BHBHQQii", 9, 0, 0, 0, 1, 2, *numbers) for numbers in selected + others]
    frames = [head + bytes(range(24)) for head in heads]
    got = switch.process(Frames.of([(1, frame) for frame in frames]), 0).pairs()
    # A second header tells the program that the parser took the way.
    assert [sent[0] == 0xFF for _, sent in got] == [True] * len(selected) + [False] * len(others)


def with_empty_fields(document):
    """Give each header a field of 0 bits, and use it wherever a program may."""
    nothing = field("scalars", "nothing")
    for kind in document["header_types"]:
        kind["fields"].insert(len(kind["fields"]) // 2, ["nothing", 0, False])
    for action in document["actions"]:
        for primitive in action["primitives"]:
            if primitive["op"] == "assign":
                value = expression("+", primitive["parameters"][1], nothing)
                primitive["parameters"][1] = {"type": "expression", "value": value}
        action["primitives"].append({"op": "assign", "parameters": [nothing, number(1)]})
    for state in document["parsers"][0]["parse_states"]:
        state["parser_ops"].append({"op": "set", "parameters": [nothing, number(1)]})
    for declared in (*document["calculations"], *document.get("field_lists", ())):
        declared["input" if "input" in declared else "elements"].append(nothing)
    for digest in document.get("learn_lists", ()):
        digest["elements"].insert(1, nothing)
    return document


@pytest.mark.parametrize("name", ["again", "hashes", "replicate", "variable"])
def test_fields_of_0_bits_change_nothing(name):
    document = json.loads((P4 / f"{name}.json").read_text())
    changed = with_empty_fields(copy.deepcopy(document))
    plain, changed = (Switch(parse(one, name), "python") for one in (document, changed))
    frames = [(1, frame) for frame in Generator(plain, random.Random(1)).frames(100, 0.1)]
    left, right = ([*switch.process(Frames.of(frames), 0).pairs()] for switch in (plain, changed))
    assert left == right
    assert left


def test_a_member_of_0_bits_of_a_digest_is_0():
    """BMv2 loads such programs, too, and a controller needs a number for each member that P4Info names."""
    document = with_empty_fields(json.loads((P4.parent / "p4runtime/p4/externs.json").read_text()))
    switch = Switch(parse(document, "externs"), "python")
    switch.process(Frames.of([(3, struct.pack(">BBHIIQ", 1, 0, 7, 0, 0, 9))]), 0)
    assert list(switch.messages.digests) == [("sighting_t", (7, 0, 3, 9))]


@pytest.mark.parametrize("empty", [0, 2])
def test_a_length_that_a_header_declares(empty):
    document = json.loads((P4 / "variable.json").read_text())
    frames = [(1, frame) for frame in option_frames(random.Random(1))]
    plain, declared = (
        Switch(parse(one, "variable"), "python").process(Frames.of(frames), 0).pairs()
        for one in (copy.deepcopy(document), with_declared_length(document, empty))
    )
    assert plain == declared
    assert len({len(sent) for _, sent in plain}) > 8


def test_the_last_element_of_a_stack_as_a_whole():
    """p4c writes this for `header = stack.last`; BMv2 loads it, and ends at the first packet."""

    def change(document):
        last = {"type": "expression", "value": {"type": "stack_field", "value": ["labels", "last"]}}
        copied = {"op": "assign_header", "parameters": [{"type": "header", "value": "copy[0]"}, last]}
        (state,) = (s for s in document["parsers"][0]["parse_states"] if s["name"] == "parse_label")
        state["parser_ops"].append({"op": "primitive", "parameters": [copied]})

    switch = changed_switch("stack", change, "numba")
    for count in (1, 3, 4):
        labels = [struct.pack(">HB", 256 + n, n == count - 1) for n in range(count)]
        frame = struct.pack(">BBHI", 99, 0, 0, 0) + b"".join(labels)
        ((_, sent),) = switch.process(Frames.of([(7, frame)]), 0).pairs()
        assert sent[8:] == b"".join(labels) + labels[-1]


def test_arithmetic_of_p4_14():
    names = ("add", "subtract", "bit_and", "bit_or", "bit_xor", "shift_left", "shift_right")

    def change(document):
        first, *_ = document["actions"][0]["primitives"]  # chooses the port
        operands = [field("cells", "index"), field("cells", "v7")]
        document["actions"][0]["primitives"] = [
            first,
            *({"op": op, "parameters": [field("cells", f"v{n}"), *operands]} for n, op in enumerate(names)),
        ]

    sent = exchanged(changed_switch("registers", change, "numba"), cells(9, *[0] * 7, 12))
    assert sent == (21, 2**32 - 3, 9 & 12, 9 | 12, 9 ^ 12, 9 << 12, 0, 12)


def test_a_deparser_writes_to_the_log_shortens_and_asserts(caplog):
    """It does so for each copy of a packet, and not for a packet that is dropped."""
    other = expression("!=", field("standard_metadata", "egress_rid"), number(10))

    def change(document):
        holds = {"type": "expression", "value": {"op": "b2d", "left": None, "right": other}}
        with_deparser(document, LOGS, ("assert", holds), ("truncate", number(20)))

    switch = changed_switch("replicate", change, "numba")
    switch.groups.set(3, [(1, 10), (2, 20), (1, 30)])
    with caplog.at_level("INFO", "peelsum.switch"):
        frame = struct.pack(">BHHI", 1, 3, 9 << 7, 1000) + bytes(60)
        got = switch.process(Frames.of([(7, frame)]), 0).pairs()
    assert [(port, len(frame)) for port, frame in got] == [(2, 20), (1, 20)]
    messages = [record.getMessage() for record in caplog.records]
    assert sum(message.endswith("leaves") for message in messages) == 3
    assert any("assert of deparser does not hold" in message for message in messages)


def test_a_key_of_0_bits_is_refused():
    document = with_empty_fields(json.loads((P4 / "router.json").read_text()))
    table = document["pipelines"][0]["tables"][0]
    table["key"] = [{"match_type": "exact", "name": "k", "target": ["scalars", "nothing"], "mask": None}]
    with pytest.raises(BadProgram, match=r"scalars\.nothing"):
        parse(document, "router")
