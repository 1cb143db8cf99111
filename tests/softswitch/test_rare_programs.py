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
