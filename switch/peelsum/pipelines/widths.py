"""Derive pipelines of any number of lanes from the committed one of the fewest lanes, without p4c.

The program has a header field, a register and some statements for each lane (`peelsum.wire.p4`). p4c repeats
them lane by lane; everything else is equal in all widths, except for the packet's length. The manifest has
the digests of p4c's own output, with which derived pipelines are compared.
"""

from __future__ import annotations

import json
import re
from typing import Any

#: Lanes of the pipeline that the others are derived from.
BASE_LANES = 32
_REGISTER = "PeelsumIngress.aggregation.slot.lanes.lane_"
_ACTIONS = tuple(
    f"PeelsumIngress.aggregation.slot.lanes.{verb}_lanes" for verb in ("set", "add", "or", "read")
)
_LANE_BYTES = 4
#: What p4c puts into the top eight bits of a register's id.
_REGISTER_ID = 0x16 << 24


def json_of(base: str, lanes: int) -> str:
    """Return p4c's BMv2 JSON of `lanes` lanes, derived from that of BASE_LANES."""
    program = json.loads(base)
    (header,) = (kind for kind in program["header_types"] if kind["name"] == "lanes_h")
    header["fields"] = _each_lane(header["fields"], lanes)
    registers = program["register_arrays"]
    other_registers = [array for array in registers if not array["name"].startswith(_REGISTER)]
    program["register_arrays"] = other_registers + _each_lane(registers[len(other_registers) :], lanes)
    for number, array in enumerate(program["register_arrays"]):
        array["id"] = number
    for action in program["actions"]:
        if action["name"] in _ACTIONS:
            action["primitives"] = _each_lane(action["primitives"], lanes)
    for parser in program["parsers"]:
        for state in parser["parse_states"]:
            for transition in state["transitions"]:
                transition["value"] = _with_length(transition["value"], lanes)
    return json.dumps(program, separators=(",", ":")) + "\n"


def _each_lane(items: list[Any], lanes: int) -> list[Any]:
    """Return the items of each lane, copied from those of lane 0, which are the first in `items`."""
    lane_0 = json.dumps(items[: len(items) // BASE_LANES])
    names = re.compile(r'(lane_|"v)0"')
    return [item for lane in range(lanes) for item in json.loads(names.sub(rf'\g<1>{lane}"', lane_0))]


def _with_length(value: str | None, lanes: int) -> str | None:
    """Return the value of a parser's transition with the packet length of `lanes` lanes.

    Such a value is 0xLLLLVVRR: UDP's length, the version and the reserved byte. Others are returned
    unchanged.
    """
    if value is None or len(value) != len("0xLLLLVVRR"):
        return value
    length = int(value[2:6], 16) + _LANE_BYTES * (lanes - BASE_LANES)
    return f"0x{length:04x}{value[6:]}"


def p4info_of(base: str, lanes: int) -> str:
    """Return p4c's P4Info of `lanes` lanes, as protobuf text, derived from that of BASE_LANES."""
    start = base.index(f"registers {{\n  preamble {{\n    id: {_register_id(0)}\n")
    end = base.index("\n}\n", base.rindex(f'"{_REGISTER}')) + len("\n}\n")
    first_block = base[start : base.index("\n}\n", start) + len("\n}\n")]
    template = first_block.replace(str(_register_id(0)), "{id}", 1).replace('lane_0"', 'lane_{lane}"')
    blocks = (
        template.replace("{id}", str(_register_id(lane))).replace("{lane}", str(lane))
        for lane in range(lanes)
    )
    return base[:start] + "".join(blocks) + base[end:]


def _register_id(lane: int) -> int:
    """Return the id that p4c gives a lane's register: Jenkins's one-at-a-time hash of its name."""
    value = 0
    for byte in f"{_REGISTER}{lane}".encode():
        value = (value + byte) & 0xFFFFFFFF
        value = (value + (value << 10)) & 0xFFFFFFFF
        value ^= value >> 6
    value = (value + (value << 3)) & 0xFFFFFFFF
    value ^= value >> 11
    return _REGISTER_ID | (value + (value << 15)) & 0xFFFFFF
