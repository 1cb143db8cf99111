"""Reads what a switch needs before a packet: entries of tables, multicast groups, clone sessions, packets.

Entries are in the JSON of p4lang's tutorials (`s1-runtime.json`), or in the commands of p4c's tests (`.stf`),
among which are packets. Other packets are in pcap files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from peelsum.reading import parse_json, read_bytes
from peelsum.softswitch.errors import DuplicateEntry, InvalidEntry, SoftswitchError
from peelsum.softswitch.program.model import KeyValue, TableKey
from peelsum.softswitch.runtime.switch import Switch
from peelsum.softswitch.runtime.tables import Table
from peelsum.wire import DROP_PORT

_T = TypeVar("_T")
#: A packet: the port at which it arrives, its bytes, and when, in microseconds.
Arrival: TypeAlias = tuple[int, bytes, int]
_MOST_BYTES = 64 << 20
#: The keys of a runtime.json. The first three are not used.
_DOCUMENT = (
    "target", "p4info", "bmv2_json",
    "table_entries", "multicast_group_entries", "clone_session_entries",
)  # fmt: skip
#: The keys of an entry and of a replica, and whether each is required.
_ENTRY = {
    "table": True, "match": False, "action_name": True, "action_params": False,
    "default_action": False, "priority": False,
}  # fmt: skip
_REPLICA = {"egress_port": True, "instance": False}
_MAC = re.compile(r"[0-9a-fA-F]{1,2}(?:[:-][0-9a-fA-F]{1,2}){5}")
#: An action with its arguments at the end of a command of an `.stf` file.
_CALL = re.compile(r"([^\s()]+)\s*\(([^()]*)\)")
#: Commands of `.stf` files that say what a test expects.
_EXPECTATIONS = ("wait", "expect", "no_packet", "check_counter", "counter_check", "register_check")
#: By the first bytes of a pcap file, the order of bytes and the time units per microsecond.
_PCAP: dict[bytes, tuple[Any, int]] = {
    b"\xd4\xc3\xb2\xa1": ("little", 1),
    b"\xa1\xb2\xc3\xd4": ("big", 1),
    b"\x4d\x3c\xb2\xa1": ("little", 1000),
    b"\xa1\xb2\x3c\x4d": ("big", 1000),
}


def load_entries(path: Path, switch: Switch) -> list[Arrival]:
    """Put a file's entries into a switch; return the packets that an `.stf` file has.

    Raises SoftswitchError, which names the file and what is wrong.
    """
    data = _read(path)
    try:
        if data.lstrip()[:1] != b"{":
            return _load_stf(data.decode(), switch)
        document = parse_json(data, _MOST_BYTES, _unique)
        _check_names(document, _DOCUMENT)
        _load_runtime(document, switch)
    except SoftswitchError as error:
        raise SoftswitchError(f"{path}: {error}") from None
    except ValueError as error:
        raise SoftswitchError(
            f"{path}: {error}; give a runtime.json of p4lang's tutorials, or .stf in UTF-8"
        ) from None
    return []


def _load_runtime(document: Mapping[str, Any], switch: Switch) -> None:
    """Put the entries, groups and sessions of a runtime.json into a switch."""
    for where, item in _objects(document, "table_entries", _ENTRY):
        with _prefixed(where):
            _insert(item, switch)
    for kind, groups in (("multicast_group", switch.groups), ("clone_session", switch.sessions)):
        for where, item in _objects(document, f"{kind}_entries", {f"{kind}_id": True, "replicas": True}):
            with _prefixed(where):
                replicas = [part for _, part in _objects(item, "replicas", _REPLICA)]
                ports = (_port(part["egress_port"], "egress_port") for part in replicas)
                instances = (_number(part.get("instance", 0), 16, "instance") for part in replicas)
                number = _number(item[f"{kind}_id"], 16, f"{kind}_id")
                groups.set(number, list(zip(ports, instances, strict=True)))


@contextmanager
def _prefixed(where: str) -> Iterator[None]:
    """Name the place in a file at the beginning of errors."""
    try:
        yield
    except DuplicateEntry as error:
        text = str(error).replace("already exists; modify it instead", "is given twice; remove one")
        raise InvalidEntry(f"{where}: {text}") from None
    except SoftswitchError as error:
        raise InvalidEntry(f"{where}: {error}") from None


def _objects(
    parent: Mapping[str, Any], name: str, keys: Mapping[str, bool]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the place and value of each object in a list. keys: its keys, and whether each is required."""
    items = parent.get(name, [])
    if not isinstance(items, list):
        raise InvalidEntry(f"{name}: {items!r}; give a list of objects")
    for number, item in enumerate(items):
        where = f"{name}[{number}]"
        if not isinstance(item, dict):
            raise InvalidEntry(f"{where}: {item!r}; give an object")
        with _prefixed(where):
            _check_names(item, keys)
            for key, required in keys.items():
                if required and key not in item:
                    raise InvalidEntry(f"{key}: is missing; add it")
        yield where, item


def _check_names(item: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise InvalidEntry for a key that is not known; name the most similar one."""
    for key in item:
        if key not in known:
            similar = get_close_matches(key, known, 1)
            remedy = f"call it {similar[0]!r}" if similar else f"use {', '.join(known)}"
            raise InvalidEntry(f"{key!r}: is not known; {remedy}, or remove it")


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise SoftswitchError(f"{path}: {error.strerror}; give a file that can be read") from None


def _insert(item: Mapping[str, Any], switch: Switch, stf: bool = False) -> None:
    """Insert an entry, or set a default action. stf: the entry is from an `.stf` file."""
    declared = switch.program.tables.items()
    known = [name for name, table in declared if table.keys or not table.const_default]
    table = switch.tables[_name(item["table"], known, "table")]
    numbers = switch.program.tables[table.name].actions
    actions = {action.name: action for action in map(switch.program.actions.__getitem__, numbers)}
    action = actions[_name(item["action_name"], actions, f"table {table.name}: action")]
    where = f"table {table.name}: action {action.name}"
    arguments, expected = _fields(item, "action_params", where), [param.name for param in action.params]
    if sorted(arguments) != sorted(expected):
        raise InvalidEntry(f"{where}: parameters {sorted(arguments)}; give {', '.join(expected) or 'none'}")
    values = [_number(arguments[param.name], param.bits, f"{where}: {param.name}") for param in action.params]
    if item.get("default_action"):
        table.set_default(action.name, values)
        return
    where = f"table {table.name}"
    names, match = [key.name for key in table.keys], dict[str, Any]()
    for name, value in _fields(item, "match", where).items():
        full = _name(name, names, f"{where}: key")
        if full in match:
            raise InvalidEntry(f"{where}: key {full}: is given twice; remove one")
        match[full] = value
    keys = tuple(_key(match.get(key.name), key, f"{where}: key {key.name}") for key in table.keys)
    table.insert(keys, action.name, values, _priority(item.get("priority"), table, stf))


def _fields(item: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """Return an object within an item; an empty one if it is missing."""
    value = item.get(name) or {}
    if not isinstance(value, dict):
        raise InvalidEntry(f"{where}: {name}: {value!r}; give an object")
    return value


def _priority(priority: Any, table: Table, stf: bool) -> int:
    """Return an entry's priority. Raises InvalidEntry for one that a switch would refuse."""
    if not any(key.kind in ("ternary", "range") for key in table.keys):
        if stf or priority in (None, 0):
            return 0
        remedy = "leave it out, since entries cannot overlap"
    else:
        if type(priority) is int and (stf or 0 < priority < 1 << 31):
            return priority
        remedy = f"give {'one before the fields' if stf else 'a positive integer'}, since entries can overlap"
    raise InvalidEntry(f"table {table.name}: priority: {priority!r}; {remedy}")


def _name(name: str, known: Collection[str], what: str) -> str:
    """Return the full name of a table, action or field that may be given by its last parts."""
    matches = [full for full in known if full == name or full.endswith(f".{name}")]
    if name in list(known):
        return name
    if len(matches) != 1:
        raise InvalidEntry(f"{what}: {name!r}; give one of {', '.join(sorted(matches or known)) or 'none'}")
    return matches[0]


def _key(value: Any, key: TableKey, where: str) -> KeyValue:
    """Return one field of an entry's key. A missing value matches everything; exact fields need one.

    Bits that a mask or a prefix ignores are cleared.
    """
    all_ones = (1 << key.bits) - 1
    if key.kind == "exact":
        return _number(value[0] if isinstance(value, list) and len(value) == 1 else value, key.bits, where)
    if value is None:
        return 0, all_ones if key.kind == "range" else 0
    if not isinstance(value, list):
        value = [value, {"lpm": key.bits, "ternary": all_ones, "range": value}[key.kind]]
    if len(value) != 2:
        raise InvalidEntry(f"{where}: {value}; give a value, or a value and its mask, prefix length or end")
    first, second = _number(value[0], key.bits, where), _number(value[1], max(key.bits, 8), where)
    masks = {"lpm": ~(all_ones >> min(second, key.bits)), "ternary": second, "range": all_ones}
    return first & masks[key.kind], second


def _number(value: Any, bits: int, what: str) -> int:
    """Return a number that is given as such, or as text: decimal, 0x, MAC or IP address."""
    number = value if type(value) is int else None
    if isinstance(value, str):
        with suppress(ValueError):
            if _MAC.fullmatch(value):
                number = int("".join(part.zfill(2) for part in re.split("[:-]", value)), 16)
            else:
                number = int(ip_address(value)) if re.search(r"\d\.\d|:", value) else int(value, 0)
    if number is None or not 0 <= number < 1 << bits:
        raise InvalidEntry(f"{what}: {value!r}; give {bits} bits, as 10, 0xa, 10.0.1.1 or 08:00:00:00:01:11")
    return number


def _port(value: Any, what: str) -> int:
    port = _number(value, 9, what)
    if port == DROP_PORT:
        raise InvalidEntry(f"{what}: {value!r}; give 0 to {DROP_PORT - 1}, since {DROP_PORT} drops packets")
    return port


def _load_stf(text: str, switch: Switch) -> list[Arrival]:
    packets: list[Arrival] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"#.*|=\s*\$\w+\s*$", "", line).replace('"', "").split(None, 2)
        with _prefixed(f"line {number}"):
            match words:
                case ["add" | "setdefault" as command, table, rest]:
                    _insert(_stf_entry(command, table, rest), switch, stf=True)
                case ["packet", port, digits]:
                    packets.append((_port(port, "port"), packet_bytes(digits), 0))
                case ["mirroring_add", session, port]:
                    switch.sessions.set(_number(session, 15, "session"), [(_port(port, "port"), 0)])
                case [command, *_] if command not in _EXPECTATIONS:
                    raise InvalidEntry(
                        f"{command}: is not known or incomplete; use add, setdefault, packet, mirroring_add"
                    )
    return packets


def _stf_entry(command: str, table: str, rest: str) -> Mapping[str, Any]:
    """Return `[PRIORITY] FIELD:VALUE ... ACTION(NAME:VALUE, ...)` in the form of the JSON."""
    call = _CALL.search(rest)
    if call is None:
        raise InvalidEntry(f"table {table}: {rest!r} has no action; end it with one, as forward(port:1)")
    if after := rest[call.end() :].strip():
        raise InvalidEntry(f"table {table}: {after!r} follows the action; remove it")
    words = rest[: call.start()].split()
    priority = int(words.pop(0)) if words and words[0].isdecimal() else None
    # The elements of stacks are called stack$0, stack$1.
    match: dict[str, Any] = _stf_pairs(re.sub(r"\$(\d+)", r"[\1]", word) for word in words)
    for field, value in match.items():
        parts = re.split(r"/|&&&|\.\.", value)
        if "*" in value:  # hexadecimal digits that may be anything
            digits = value.removeprefix("0x")
            parts = [f"0x{digits.replace('*', '0')}", f"0x{re.sub('[^*]', 'f', digits).replace('*', '0')}"]
        match[field] = parts if len(parts) == 2 else value
    params = _stf_pairs(part.strip() for part in call[2].split(",") if part.strip())
    return {
        "table": table, "match": match, "action_name": call[1], "action_params": params,
        "priority": priority, "default_action": command == "setdefault",
    }  # fmt: skip


def _stf_pairs(words: Iterable[str]) -> dict[str, str]:
    """Return the names and values of `NAME:VALUE` words. Raises InvalidEntry for a name given twice."""
    return _unique((name, text) for name, _, text in (word.partition(":") for word in words))


def _unique(pairs: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Return pairs of names and values as a dictionary. Raises InvalidEntry for a name given twice."""
    values: dict[str, _T] = {}
    for name, value in pairs:
        if name in values:
            raise InvalidEntry(f"{name}: is given twice; remove one")
        values[name] = value
    return values


def packet_bytes(text: str) -> bytes:
    """Return the bytes of hexadecimal digits, which may have spaces or colons between them."""
    digits = re.sub(r"[\s:]|^0x", "", text)
    with suppress(ValueError):
        return bytes.fromhex(digits)
    problem = f"{len(digits)} hexadecimal digits" if re.fullmatch("[0-9a-fA-F]*", digits) else repr(text[:40])
    raise InvalidEntry(f"packet: {problem}; give two hexadecimal digits for each byte")


def read_pcap(path: Path, port: int) -> list[Arrival]:
    """Return the packets of a pcap file, which arrive at `port`. Raises SoftswitchError."""
    data = _read(path)
    if data[:4] not in _PCAP:
        raise SoftswitchError(f"{path}: is not pcap; convert pcapng by `editcap -F pcap IN OUT`")
    order, per_us = _PCAP[data[:4]]
    if len(data) < 24:
        raise SoftswitchError(f"{path}: ends within its header; copy the whole file")
    link_type = int.from_bytes(data[20:24], order) & 0xFFFF  # above are flags
    if link_type != 1:
        raise SoftswitchError(f"{path}: has link type {link_type}; capture Ethernet, link type 1")
    packets, position = list[Arrival](), 24
    while position < len(data):
        record = data[position : position + 16]
        seconds, fraction, length, original = (
            int.from_bytes(record[at : at + 4], order) for at in range(0, 16, 4)
        )
        position += 16 + length
        if position > len(data):
            raise SoftswitchError(f"{path}: ends within packet {len(packets) + 1}; copy the whole file")
        if length < original:
            raise SoftswitchError(
                f"{path}: packet {len(packets) + 1}: has {length} of {original} bytes; "
                "capture whole packets, as `tcpdump -s 0` does"
            )
        time_us = seconds * 10**6 + fraction // per_us
        packets.append((port, data[position - length : position], time_us))
    if not packets:
        raise SoftswitchError(f"{path}: has no packets; capture some")
    return packets
