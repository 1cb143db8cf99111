"""Programs that p4c seldom or never writes, made of compiled ones by hand, in both modes."""

import json
import struct
from pathlib import Path

import pytest
from frames import checksum
from unrolled_lanes import expression, field, number

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.compiler.loading import parse

P4 = Path(__file__).parent / "p4"


@pytest.fixture(params=["python", "numba"])
def switch_from(request):
    """Return a function that makes a switch of a compiled program, once `change` has changed its JSON."""

    def make(name, change):
        document = json.loads((P4 / f"{name}.json").read_text())
        change(document)
        return Switch(parse(document, name), request.param)

    return make


def test_a_checksum_that_one_copy_updates_is_not_in_the_next(switch_from):
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

    switch = switch_from("replicate", change)
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


def test_an_index_below_zero_is_past_the_end(switch_from):
    """Of 16 bits, from 8 bits less one: from 0 it is 65535, though nothing that is assigned is above 254."""

    def change(document):
        (scalars,) = (one for one in document["header_types"] if one["name"].startswith("scalars"))
        scalars["fields"].append(["index", 16, False])
        first, *rest = document["actions"][0]["primitives"]
        low = expression("&", field("cells", "index"), number(0xFF))
        below = {"type": "expression", "value": expression("-", low, number(1))}
        assign = {"op": "assign", "parameters": [field("scalars", "index"), below]}
        for one in rest:
            place = {"register_read": 2, "register_write": 1}.get(one["op"])
            if place is not None:
                one["parameters"][place] = field("scalars", "index")
        document["actions"][0]["primitives"] = [first, assign, *rest]
        for register in document["register_arrays"]:
            register["size"] = 255

    switch = switch_from("registers", change)
    assert exchanged(switch, cells(255, *range(1, 9))) == (0,) * 8
    assert exchanged(switch, cells(0, *range(11, 19))) == (0,) * 8
    assert [switch.registers[f"I.r{n}"].values().tolist() for n in range(8)] == [
        [0] * 254 + [n + 1] for n in range(8)
    ]


def test_cells_narrower_and_wider_than_what_is_written_and_read(switch_from):
    """Values are cut where they are stored, as in BMv2: to 8 bits in a cell, to 32 in a field."""

    def change(document):
        for register, bits in zip(document["register_arrays"], (8, 40, 64, 1), strict=False):
            register["bitwidth"] = bits
        for one in document["actions"][0]["primitives"]:
            if one["op"] == "assign" and one["parameters"][0] == field("cells", "v1"):
                read = expression(">>", field("scalars", "before_0"), number(8))
                one["parameters"][1] = {"type": "expression", "value": read}

    switch = switch_from("registers", change)
    switch.registers["I.r1"].write(2, 0xAB_1234_5678)
    switch.registers["I.r2"].write(2, 0xFEDC_BA98_7654_3210)
    written = (0x1FF, 0xFFFF_FFFF, 0xFFFF_FFFE, 3)
    assert exchanged(switch, cells(2, *written))[:4] == (0, 0x12_3456, 0x7654_3210, 0)
    assert [switch.registers[f"I.r{n}"].values()[2] for n in range(4)] == [0xFF, 0xFFFF_FFFF, 0xFFFF_FFFE, 1]
    assert exchanged(switch, cells(2))[:4] == (0xFF, 0xFF_FFFF, 0xFFFF_FFFE, 1)


def copied(document, back):
    """Let actions drop a copy of the standard metadata, which is copied back or not."""
    kind = next(one for one in document["header_types"] if one["name"] == "standard_metadata")
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
def test_what_is_dropped_is_the_header_that_is_given(switch_from, back):
    """p4c makes a copy of an `inout` argument, and copies it back after the call."""
    switch = switch_from("replicate", lambda document: copied(document, back))
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
def test_negative_numbers_that_a_parser_selects(switch_from, key, value, mask, selected, others):
    """p4c writes a key's numbers as a sum, e.g. (-3, 2) of 32 bits each as -3 * 2**32 + 2."""

    def whole(numbers):
        total = 0
        for one in numbers:
            total = (total << 32) + one
        return hex(total)

    def change(document):
        (start,) = document["parsers"][0]["parse_states"]
        start["transition_key"] = [field("numbers", name) for name in key]
        way = {"type": "hexstr", "value": whole(value), "mask": mask and whole(mask), "next_state": "more"}
        start["transitions"].insert(0, way)
        extract = {"op": "extract", "parameters": [{"type": "regular", "value": "copy"}]}
        more = {"name": "more", "id": 1, "parser_ops": [extract], "transition_key": [], "transitions": []}
        document["parsers"][0]["parse_states"].append(more)

    switch = switch_from("arithmetic", change)
    frames = [
        struct.pack(">BHBHQQii", 9, 0, 0, 0, 1, 2, *numbers) + bytes(range(24))
        for numbers in selected + others
    ]
    got = switch.process(Frames.of([(1, frame) for frame in frames]), 0).pairs()
    # A second header tells the program that the parser took the way.
    assert [sent[0] == 0xFF for _, sent in got] == [True] * len(selected) + [False] * len(others)


@pytest.mark.parametrize("const", [True, False])
def test_negative_numbers_of_entries_and_default_actions(switch_from, const):
    """An action parameter to which the program gives a negative number is signed, whoever sets it."""

    def change(document):
        param = {"type": "expression", "value": {"type": "local", "value": 0}}
        extended = {"type": "expression", "value": expression("two_comp_mod", param, number(32))}
        (nothing,) = (action for action in document["actions"] if action["name"] == "NoAction")
        nothing["runtime_data"] = [{"name": "v", "bitwidth": 16}]
        assign = {"op": "assign", "parameters": [field("results", "signed_"), extended]}
        nothing["primitives"] = [assign]
        (table,) = (one for one in document["pipelines"][0]["tables"] if one["name"] == "I.operations")
        keys = [[{"match_type": "exact", "key": key}] for key in ("-0x02", "-0x80")]
        data = [["-0x8000"], ["0x7"]]
        table["entries"] = [
            {"match_key": key, "action_entry": {"action_id": 0, "action_data": values}, "priority": 1}
            for key, values in zip(keys, data, strict=True)
        ]
        table["default_entry"] |= {
            "action_data": ["-0x5"], "action_const": const, "action_entry_const": const,
        }  # fmt: skip

    switch = switch_from("arithmetic", change)
    operations = switch.tables["I.operations"]
    assert operations.default == ("NoAction", (0xFFFB,))
    frames = [(1, struct.pack(">BHBHQQII", op, *[0] * 7)) for op in (0xFE, 0x80, 0)]

    def signed():
        return [
            struct.unpack_from(">i", sent, 30 + 12)[0]
            for _, sent in switch.process(Frames.of(frames), 0).pairs()
        ]

    assert signed() == [-0x8000, 7, -5]
    if not const:
        operations.set_default("NoAction", (0xFFFA,))
        assert signed() == [-0x8000, 7, -6]


def test_the_last_index_of_an_empty_stack_is_the_largest_number(switch_from):
    def change(document):
        (start, *_) = document["parsers"][0]["parse_states"]
        last = {"op": "last_stack_index", "left": None, "right": {"type": "header_stack", "value": "labels"}}
        least = expression("<", {"type": "expression", "value": last}, number(3))
        chosen = {"op": "?", "left": number(1), "right": number(2), "cond": least}
        start["parser_ops"][1]["parameters"][1] = {"type": "expression", "value": chosen}
        start["transitions"] = []

    switch = switch_from("stack", change)
    ((_, sent),) = switch.process(Frames.of([(1, struct.pack(">BBHI", 1, 0, 0, 0))]), 0).pairs()
    assert struct.unpack(">I", sent[4:8]) == (2 << 16,)
