"""Reads tables' entries, multicast groups and clone sessions from files, and puts them into a switch.

Two formats are read: the JSON of p4lang's tutorials (`s1-runtime.json`), and the commands of p4c's tests
(`.stf`), in which also packets can be.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeAlias

from peelsum.reading import parse_json, read_bytes
from peelsum.softswitch.errors import InvalidEntry, SoftswitchError
from peelsum.softswitch.program.model import KeyValue, TableKey
from peelsum.softswitch.runtime.switch import Switch

#: A packet: the port at which it arrives, its bytes, and when, in microseconds.
Arrival: TypeAlias = tuple[int, bytes, int]
#: Most bytes of a file with entries.
MOST_BYTES = 16 << 20
_MAC = re.compile(r"[0-9a-fA-F]{1,2}(?:[:-][0-9a-fA-F]{1,2}){5}")
_STF_CALL = re.compile(r"([^\s()]+)\s*\(([^()]*)\)")


def load_entries(path: Path, switch: Switch) -> list[Arrival]:
    """Put a file's entries into a switch; return the packets that an `.stf` file has.

    Raises SoftswitchError, which names the file and what is wrong.
    """
    try:
        data = read_bytes(path, MOST_BYTES)
        if data.lstrip()[:1] != b"{":
            return _load_stf(data.decode(), switch)
        _load_json(parse_json(data, MOST_BYTES), switch)
    except OSError as error:
        raise SoftswitchError(f"{path}: {error.strerror}; give a runtime.json or an .stf file") from None
    except (SoftswitchError, ValueError) as error:
        raise SoftswitchError(f"{path}: {error}") from None
    return []


# --- JSON of p4lang's tutorials -------------------------------------------------------------------


def _load_json(document: Any, switch: Switch) -> None:
    for item in _objects(document, "table_entries"):
        table = switch.tables[_name(str(item.get("table")), switch.tables, "table")]
        action, params = _action(switch, table.name, str(item.get("action_name")), item.get("action_params"))
        if item.get("default_action"):
            table.set_default(action, params)
        else:
            key = _key(table.name, table.keys, item.get("match") or {})
            table.insert(key, action, params, _number(item.get("priority") or 0, 31, "priority"))
    for kind, name, groups in (
        ("multicast_group_entries", "multicast_group_id", switch.groups),
        ("clone_session_entries", "clone_session_id", switch.sessions),
    ):
        for item in _objects(document, kind):
            number = _number(item.get(name), 16, name)
            replicas = [
                (
                    _number(part.get("egress_port"), 9, "port"),
                    _number(part.get("instance", 0), 16, "instance"),
                )
                for part in _objects(item, "replicas")
            ]
            groups.set(number, replicas)


def _objects(parent: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the list of objects called `name`; an empty list if it is missing."""
    items = parent.get(name, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidEntry(f"{name}: {str(items)[:40]!r}; give a list of objects, as in s1-runtime.json")
    return items


def _name(name: str, known: Collection[str], what: str) -> str:
    """Return the full name of a table, action or field that may be given by its last part."""
    matches = [full for full in known if full == name] or [
        full for full in known if full.endswith(f".{name}")
    ]
    if len(matches) != 1:
        problem = f"is one of {', '.join(matches)}" if matches else f"use one of {', '.join(sorted(known))}"
        raise InvalidEntry(f"{what}: {name!r}: {problem}")
    return matches[0]


def _action(switch: Switch, table: str, name: str, arguments: Any) -> tuple[str, list[int]]:
    """Return the full name of an action of a table, and its arguments in order."""
    declaration = switch.program.tables[table]
    actions = {action.name: action for action in map(switch.program.actions.__getitem__, declaration.actions)}
    action = actions[_name(name, actions, f"table {table}: action")]
    arguments = {} if arguments is None else arguments
    expected = [param.name for param in action.params]
    if not isinstance(arguments, dict) or set(arguments) != set(expected):
        given = sorted(arguments) if isinstance(arguments, dict) else arguments
        raise InvalidEntry(
            f"table {table}: action {action.name}: parameters {given}; give {expected or 'none'}"
        )
    return action.name, [_number(arguments[param.name], param.bits, param.name) for param in action.params]


def _key(table: str, keys: Sequence[TableKey], match: Any) -> list[KeyValue]:
    """Return an entry's key: fields that are left out match everything, except exact ones."""
    if not isinstance(match, dict):
        raise InvalidEntry(f"table {table}: match: {match!r}; give an object of fields")
    names = [key.name for key in keys]
    by_name = {_name(name, names, f"table {table}: key"): value for name, value in match.items()}
    values: list[KeyValue] = []
    for key in keys:
        value, where = by_name.get(key.name), f"table {table}: key {key.name}"
        if key.kind == "exact":
            if value is None:
                raise InvalidEntry(f"{where}: is missing; give a value, since the match is exact")
            values.append(_number(value, key.bits, where))
        elif value is None:
            values.append((0, (1 << key.bits) - 1 if key.kind == "range" else 0))
        else:
            values.append(_pair(value, key, where))
    return values


def _pair(value: Any, key: TableKey, where: str) -> tuple[int, int]:
    """Return the two numbers of a match that is not exact; bits that it ignores are cleared."""
    all_ones = (1 << key.bits) - 1
    if not isinstance(value, list):  # a single value
        value = [value, {"lpm": key.bits, "ternary": all_ones, "range": value}[key.kind]]
    if len(value) != 2:
        raise InvalidEntry(f"{where}: {value}; give two numbers")
    first = _number(value[0], key.bits, where)
    second = _number(value[1], max(key.bits, 8), where)
    if key.kind == "lpm":
        return first & ~(all_ones >> second), second
    return (first & second if key.kind == "ternary" else first), second


def _number(value: Any, bits: int, what: str) -> int:
    """Return a number that is given as such, or as text: decimal, 0x, MAC or IP address."""
    number = value if type(value) is int else None
    if isinstance(value, str):
        if _MAC.fullmatch(value):
            number = int("".join(part.zfill(2) for part in re.split("[:-]", value)), 16)
        else:
            with suppress(ValueError):
                number = int(ip_address(value)) if re.search(r"\d\.\d|:", value) else int(value, 0)
    if number is None or not 0 <= number < 1 << bits:
        raise InvalidEntry(
            f"{what}: {value!r}: give a number of {bits} bits, as 10, 0xa, 10.0.1.1 or 08:00:00:00:01:11"
        )
    return number


# --- commands of p4c's tests ----------------------------------------------------------------------


def _load_stf(text: str, switch: Switch) -> list[Arrival]:
    packets: list[Arrival] = []
    nodes: list[list[tuple[int, int]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"#.*|\s*=\s*\$\w+\s*$", "", line).replace('"', "").strip()
        try:
            match line.split():
                case ["add" | "setdefault" as command, table, *_]:
                    _stf_entry(switch, command, table, line.split(None, 2)[2])
                case ["packet", port, *digits]:
                    packets.append((_number(port, 9, "port"), packet_bytes("".join(digits)), 0))
                case ["mirroring_add", session, port]:
                    switch.sessions.set(_number(session, 15, "session"), [(_number(port, 9, "port"), 0)])
                case ["mc_mgrp_create", group]:
                    switch.groups.set(_number(group, 16, "group"), [])
                case ["mc_node_create", instance, *ports]:
                    rid = _number(instance, 16, "instance")
                    nodes.append([(_number(port, 9, "port"), rid) for port in ports])
                case ["mc_node_associate", group_number, node]:
                    group_id = _number(group_number, 16, "group")
                    switch.groups.set(
                        group_id, [*switch.groups.get(group_id), *nodes[_number(node, 16, "node")]]
                    )
                case [("wait" | "expect" | "no_packet" | "counter_check" | "register_check"), *_] | []:
                    pass  # what a test expects
                case [command, *_]:
                    raise InvalidEntry(
                        f"{command}: is not supported; use add, setdefault, packet, mirroring_add or mc_*"
                    )
        except (SoftswitchError, IndexError) as error:
            problem = "a part is missing" if isinstance(error, IndexError) else error
            raise InvalidEntry(f"line {number}: {problem}") from None
    return packets


def _stf_entry(switch: Switch, command: str, table_name: str, rest: str) -> None:
    """Insert an entry `[PRIORITY] FIELD:VALUE ... ACTION(NAME:VALUE, ...)`, or set a default action."""
    call = _STF_CALL.search(rest)
    if call is None:
        raise InvalidEntry(f"{rest!r}: has no action; end the line with one, as forward(port:1)")
    table = switch.tables[_name(table_name, switch.tables, "table")]
    arguments = dict(part.strip().rpartition(":")[::2] for part in call[2].split(",") if part.strip())
    action, params = _action(switch, table.name, call[1], arguments)
    if command == "setdefault":
        table.set_default(action, params)
        return
    words = rest[: call.start()].split()
    priority = -int(words.pop(0)) if words and words[0].isdecimal() else 0  # the smallest goes first
    match = {}
    for word in words:
        field, _, value = word.rpartition(":")
        match[field] = _stf_value(value)
    table.insert(_key(table.name, table.keys, match), action, params, priority)


def _stf_value(text: str) -> Any:
    """Return a value, or two: of VALUE/LENGTH, VALUE&&&MASK, LOW..HIGH, or 0x with * for any digit."""
    if "*" in text:
        digits = text.removeprefix("0x")
        return ["0x" + digits.replace("*", "0"), "0x" + re.sub("[^*]", "f", digits).replace("*", "0")]
    parts = re.split(r"/|&&&|\.\.", text)
    return parts if len(parts) == 2 else text


def packet_bytes(text: str) -> bytes:
    """Return the bytes of hexadecimal digits, which may have spaces or colons between them."""
    digits = re.sub(r"[\s:]|^0x", "", text)
    with suppress(ValueError):
        return bytes.fromhex(digits)
    problem = f"{len(digits)} hexadecimal digits" if re.fullmatch("[0-9a-fA-F]*", digits) else repr(text[:40])
    raise InvalidEntry(f"packet: {problem}: give two hexadecimal digits for each byte")


def read_pcap(path: Path, port: int) -> list[Arrival]:
    """Return the packets of a pcap file, which arrive at `port`. Raises SoftswitchError."""
    try:
        data = read_bytes(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        raise SoftswitchError(f"{path}: {error}; give a pcap file") from None
    orders: dict[bytes, tuple[Any, int]] = {
        b"\xd4\xc3\xb2\xa1": ("little", 1), b"\xa1\xb2\xc3\xd4": ("big", 1),
        b"\x4d\x3c\xb2\xa1": ("little", 1000), b"\xa1\xb2\x3c\x4d": ("big", 1000),
    }  # fmt: skip
    if data[:4] not in orders:
        raise SoftswitchError(
            f"{path}: is not a pcap file; if it is pcapng, convert it: editcap -F pcap IN OUT"
        )
    order, per_us = orders[data[:4]]
    packets, position = list[Arrival](), 24
    while position < len(data):
        seconds, fraction, length = (
            int.from_bytes(data[position + at : position + at + 4], order) for at in (0, 4, 8)
        )
        packet = data[position + 16 : position + 16 + length]
        position += 16 + length
        if position > len(data):
            raise SoftswitchError(f"{path}: ends within packet {len(packets) + 1}; copy the whole file")
        packets.append((port, packet, seconds * 10**6 + fraction // per_us))
    return packets
