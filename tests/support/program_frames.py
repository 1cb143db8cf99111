"""Programs of the softswitch's tests: frames for each, groups, and sessions of clones."""

import json
import struct
from pathlib import Path

from peelsum.softswitch import Switch, load
from peelsum.softswitch.compiler.loading import parse

P4 = Path(__file__).parents[1] / "softswitch" / "p4"
PORTS = range(1, 10)
#: Shortest frame sent: ports do not carry shorter ones.
TAIL = bytes(range(60))
GROUPS = {3: [(1, 21), (2, 22)], 6: [(1, 1), (2, 2), (3, 3)]}
SESSIONS = {100: [(4, 11), (5, 12)], 101: [(6, 0)]}


def switch_of(name, mode):
    """Return a switch that runs a program, with groups and sessions."""
    switch = Switch(load(P4 / f"{name}.json"), mode)
    set_groups(switch)
    return switch


def changed_switch(name, change, mode="python"):
    """Return a switch that runs a program, once `change` has changed its JSON."""
    document = json.loads((P4 / f"{name}.json").read_text())
    change(document)
    return Switch(parse(document, name), mode)


def set_groups(switch):
    """Give a switch groups and sessions."""
    for number, replicas in GROUPS.items():
        switch.groups.set(number, replicas)
    for number, replicas in SESSIONS.items():
        switch.sessions.set(number, replicas)


def stack_frames(rng):
    def labels(count):
        rows = [(rng.getrandbits(16), rng.choice([0, 1, 99, 100, 103])) for _ in range(count)]
        return b"".join(
            struct.pack(">HB", value, cost << 1 | (n == count - 1)) for n, (value, cost) in enumerate(rows)
        )

    for op in range(23):
        for count in (1, 2, 3, 4, 5, 6):
            # Beyond the valid labels, BMv2 reads the remains of an earlier packet.
            yield struct.pack(">BBHI", op, rng.randrange(min(count, 4)), 6 if op > 12 else 0, 0) + labels(
                count
            )
    yield struct.pack(">BBHI", 1, 0, 0, 0) + labels(2)[:4]


def again_frames(rng):
    for kind in (0, 1, 2, 3, 4, 5, 7, 16, 17, 18, 21, 22, 23, 25, 26, 27):
        for times in (0, 200, 203):
            for session in (100, 101, 99):
                group = rng.choice([0, 3])
                if kind != 21 or times == 0:
                    yield struct.pack(">BBHHH", kind, times, session, group, rng.getrandbits(12))
    yield struct.pack(">BBHHH", 24, 150, 0, 0, 5) + b"\0\xff"


def hash_frames(rng):
    for op in range(9):
        for size in (1, 10, 1 << 16, 1 << 32):
            yield struct.pack(">BBQQ", op, 1, rng.choice([0, 7]), size) + rng.randbytes(24 + 4)


MADE = {"stack": stack_frames, "again": again_frames, "hashes": hash_frames}


def by_port(pairs):
    """Return each port's frames, in order."""
    out = {}
    for port, frame in pairs:
        out.setdefault(port, []).append(frame)
    return out


def for_bmv2(document):
    """Return a program's JSON as BMv2 reads it; p4c writes what BMv2 does not load, or reads otherwise.

    An action's parameters within an expression, which BMv2 knows as "local" only. The element of a stack
    that is selected at run time, as an operand (p4lang/behavioral-model#1125), and its validity.
    BMv2 lets the last default transition of a parser's state count, also where an earlier one always matches.
    It counts a prefix's bits from the padding of a key whose width is not a multiple of 8 bits.
    """
    fields = {kind["name"]: len(kind["fields"]) for kind in document["header_types"]}
    stacks = {stack["name"]: fields[stack["header_type"]] for stack in document["header_stacks"]}
    program = _for_bmv2(document, stacks)
    types = {
        kind["name"]: {name: bits for name, bits, *_ in kind["fields"]} for kind in document["header_types"]
    }
    widths = {header["name"]: types[header["header_type"]] for header in document["headers"]}
    for table in (table for pipeline in program["pipelines"] for table in pipeline["tables"]):
        _replace_prefixes(table, [widths[key["target"][0]].get(key["target"][1], 1) for key in table["key"]])
    return program


def _replace_prefixes(table, widths):
    """Give a table masks instead of prefixes. widths: of its keys, in bits."""
    entries = table.get("entries", [])
    for n, (key, bits) in enumerate(zip(table["key"], widths, strict=True)):
        if key["match_type"] != "lpm":
            continue
        key["match_type"] = "ternary"
        for entry in entries:
            match = entry["match_key"][n]
            length = match.pop("prefix_length")
            if table["match_type"] == "lpm":
                entry["priority"] = 1 + bits - length  # the lowest comes first
            digits = len(match["key"])
            mask = f"0x{(1 << bits) - (1 << bits - length):0{digits - 2}x}"
            entry["match_key"][n] = match | {"match_type": "ternary", "mask": mask}
    if table["match_type"] == "lpm":
        table["match_type"] = "ternary"


def _for_bmv2(value, stacks, inside=False):
    """stacks: the number of fields of each stack's elements, which is where BMv2 has their validity."""
    if isinstance(value, list):
        return [_for_bmv2(part, stacks, inside) for part in value]
    if not isinstance(value, dict):
        return value
    kind, content = value.get("type"), value.get("value")
    if inside and kind == "runtime_data":
        return value | {"type": "local"}
    if kind == "field" and isinstance(content[0], dict):
        element, valid = content[0], stacks[content[0]["left"]["value"]]
        operands = {"left": {"type": "expression", "value": element}, "right": valid}
        return {"type": "expression", "value": {"op": "access_field", **operands}}
    if not inside and kind == "expression" and content.get("op") == "dereference_header_stack":
        return {"type": "expression", "value": value}
    inside = inside or kind == "expression"
    if "transitions" in value:
        edges = value["transitions"]
        last = next((n for n, edge in enumerate(edges) if edge["type"] == "default"), len(edges))
        value = value | {"transitions": edges[: last + 1]}
    return {key: _for_bmv2(part, stacks, inside) for key, part in value.items()}
