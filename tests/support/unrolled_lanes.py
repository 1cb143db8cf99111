"""Makes BMv2 JSON of programs that p4c leaves unrolled: N lanes that read a register, add it, and write it.

Two ways of writing lanes: each in a header of a stack, which the parser fills by `.next`, or all in one
header, with one register array for all of them.
"""

import json
from pathlib import Path

SKELETON = Path(__file__).parents[1] / "softswitch" / "p4" / "banks.json"
SLOTS = 4


def field(header, name):
    return {"type": "field", "value": [header, name]}


def number(value):
    return {"type": "hexstr", "value": hex(value)}


def expression(op, left, right):
    return {"type": "expression", "value": {"op": op, "left": left, "right": right}}


def wrapped(value):
    return expression("&", value, number(2**32 - 1))


def add_to(lane, register, index, held):
    """Return the primitives of: read the cell at `index`; add it to `lane`; write the sum."""
    array = {"type": "register_array", "value": register}
    return [
        {"op": "register_read", "parameters": [held, array, index]},
        {"op": "assign", "parameters": [lane, wrapped(expression("+", lane, held))]},
        {"op": "register_write", "parameters": [array, index, lane]},
    ]


def stack_of_lanes(lanes):
    """Return BMv2 JSON with one header a lane and one register a lane."""
    names = [f"lane[{lane}]" for lane in range(lanes)]
    slot = field("head", "slot")
    body = []
    for lane, name in enumerate(names):
        held = field("scalars", f"held_{lane}")
        body += add_to(field(name, "value"), f"cells_{lane}", slot, held)
    document = _document(
        {"lane_h": [["value", 32, False]]}, [(name, "lane_h") for name in names], lanes, body
    )
    stack = {"name": "lane", "id": 0, "header_type": "lane_h", "size": lanes}
    document["header_stacks"] = [stack | {"header_ids": [*range(3, 3 + lanes)]}]
    extract = {"op": "extract", "parameters": [{"type": "stack", "value": "lane"}]}
    document["parsers"][0]["parse_states"][0]["parser_ops"] += [extract] * lanes
    document["register_arrays"] = [
        {"name": f"cells_{lane}", "id": lane, "size": SLOTS, "bitwidth": 32} for lane in range(lanes)
    ]
    return document


def one_array(lanes):
    """Return BMv2 JSON with one header and one register array for all lanes."""
    base = wrapped(expression("*", field("head", "slot"), number(lanes)))
    body = []
    for lane in range(lanes):
        index, held = wrapped(expression("+", base, number(lane))), field("scalars", f"held_{lane}")
        body += add_to(field("lanes", f"v{lane}"), "cells", index, held)
    fields = [[f"v{lane}", 32, False] for lane in range(lanes)]
    document = _document({"lanes_h": fields}, [("lanes", "lanes_h")], lanes, body)
    extract = {"op": "extract", "parameters": [{"type": "regular", "value": "lanes"}]}
    document["parsers"][0]["parse_states"][0]["parser_ops"].append(extract)
    document["register_arrays"] = [{"name": "cells", "id": 0, "size": SLOTS * lanes, "bitwidth": 32}]
    return document


def _document(types, headers, lanes, body):
    """Return banks.json with these headers after `head`, and an ingress that does `body`."""
    document = json.loads(SKELETON.read_text())
    (standard,) = (one for one in document["header_types"] if one["name"] == "standard_metadata")
    scalars = [[f"held_{lane}", 32, False] for lane in range(lanes)]
    types = {"scalars_0": scalars, "head_h": [["slot", 32, False]], **types}
    document["header_types"] = [standard, *({"name": name, "fields": of} for name, of in types.items())]
    all_headers = [
        ("scalars", "scalars_0", True),
        ("standard_metadata", "standard_metadata", True),
        ("head", "head_h", False),
        *((*one, False) for one in headers),
    ]
    document["headers"] = [
        {"name": name, "id": place, "header_type": kind, "metadata": metadata}
        for place, (name, kind, metadata) in enumerate(all_headers)
    ]
    state = document["parsers"][0]["parse_states"][0]
    state["parser_ops"] = [{"op": "extract", "parameters": [{"type": "regular", "value": "head"}]}]
    document["deparsers"][0]["order"] = ["head", *(name for name, _ in headers)]
    send = {"op": "assign", "parameters": [field("standard_metadata", "egress_spec"), number(1)]}
    (action,) = document["actions"]
    action["primitives"] = [send, *body]
    return document
