"""Reads what a switch needs before a packet: entries of tables, multicast groups, clone sessions, packets.

Entries are in the JSON of p4lang's tutorials (`s1-runtime.json`), or in the commands of p4c's tests (`.stf`),
among which are packets. Other packets are in pcap files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
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
_MOST_BYTES = 64 << 20
_MAC = re.compile(r"[0-9a-fA-F]{1,2}(?:[:-][0-9a-fA-F]{1,2}){5}")
#: An action with its arguments at the end of a command of an `.stf` file.
_CALL = re.compile(r"([^\s()]+)\s*\(([^()]*)\)")
#: Commands of `.stf` files that say what a test expects.
_EXPECTATIONS = ("wait", "expect", "no_packet", "check_counter", "counter_check", "register_check")
#: By the first bytes of a pcap file, the order of bytes and the fractions of time in a microsecond.
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
    try:
        data = _read(path)
        if data.lstrip()[:1] != b"{":
            return _load_stf(data.decode(), switch)
        document = parse_json(data, _MOST_BYTES)
        for item in document.get("table_entries", ()):
            _insert(item, switch)
        for kind, groups in (("multicast_group", switch.groups), ("clone_session", switch.sessions)):
            for item in document.get(f"{kind}_entries", ()):
                ports = (_number(part["egress_port"], 9, "egress_port") for part in item["replicas"])
                instances = (_number(part.get("instance", 0), 16, "instance") for part in item["replicas"])
                number = _number(item[f"{kind}_id"], 16, f"{kind}_id")
                groups.set(number, list(zip(ports, instances, strict=True)))
    except (SoftswitchError, ValueError) as error:
        raise SoftswitchError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise SoftswitchError(
            f"{path}: {error}: is missing or of another type; write it as p4lang's s1-runtime.json"
        ) from None
    return []


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise SoftswitchError(f"{path}: {error.strerror}; give a file that can be read") from None


def _insert(item: Mapping[str, Any], switch: Switch) -> None:
    """Insert an entry, or set a default action."""
    declared = switch.program.tables.items()
    known = [name for name, table in declared if table.keys or not table.const_default]
    table = switch.tables[_name(item["table"], known, "table")]
    numbers = switch.program.tables[table.name].actions
    actions = {action.name: action for action in map(switch.program.actions.__getitem__, numbers)}
    action = actions[_name(item["action_name"], actions, f"table {table.name}: action")]
    arguments, expected = item.get("action_params") or {}, [param.name for param in action.params]
    if sorted(arguments) != sorted(expected):
        raise InvalidEntry(
            f"table {table.name}: action {action.name}: parameters {sorted(arguments)}; "
            f"give {', '.join(expected) or 'none'}"
        )
    values = [_number(arguments[param.name], param.bits, param.name) for param in action.params]
    if item.get("default_action"):
        table.set_default(action.name, values)
        return
    names = [key.name for key in table.keys]
    match = {_name(name, names, f"table {table.name}: key"): value for name, value in item["match"].items()}
    keys = tuple(_key(match.get(key.name), key, f"table {table.name}: key {key.name}") for key in table.keys)
    table.insert(keys, action.name, values, item.get("priority") or 0)


def _name(name: str, known: Collection[str], what: str) -> str:
    """Return the full name of a table, action or field that may be given by its last parts."""
    matches = [full for full in known if full == name or full.endswith(f".{name}")]
    if name in known:
        return name
    if len(matches) != 1:
        raise InvalidEntry(f"{what}: {name!r}; give one of {', '.join(sorted(matches or known)) or 'none'}")
    return matches[0]


def _key(value: Any, key: TableKey, where: str) -> KeyValue:
    """Return one field of an entry's key; without a value, it matches everything unless it is exact.

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


def _load_stf(text: str, switch: Switch) -> list[Arrival]:
    packets: list[Arrival] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"#.*|=\s*\$\w+\s*$", "", line).replace('"', "").split(None, 2)
        try:
            match words:
                case ["add" | "setdefault" as command, table, rest]:
                    _insert(_stf_entry(command, table, rest), switch)
                case ["packet", port, digits]:
                    packets.append((_number(port, 9, "port"), packet_bytes(digits), 0))
                case ["mirroring_add", session, port]:
                    switch.sessions.set(_number(session, 15, "session"), [(_number(port, 9, "port"), 0)])
                case [command, *_] if command not in _EXPECTATIONS:
                    raise InvalidEntry(
                        f"{command}: is not known or incomplete; use add, setdefault, packet, mirroring_add"
                    )
        except SoftswitchError as error:
            raise InvalidEntry(f"line {number}: {error}") from None
    return packets


def _stf_entry(command: str, table: str, rest: str) -> Mapping[str, Any]:
    """Return `[PRIORITY] FIELD:VALUE ... ACTION(NAME:VALUE, ...)` in the form of the JSON."""
    call = _CALL.search(rest)
    if call is None:
        raise InvalidEntry(f"table {table}: {rest!r} has no action; end it with one, as forward(port:1)")
    words = rest[: call.start()].split()
    # In these files, the smallest priority goes first.
    priority = -int(words.pop(0)) if words and words[0].isdecimal() else 0
    match = {}
    for field, _, value in (word.rpartition(":") for word in words):
        parts = re.split(r"/|&&&|\.\.", value)
        if "*" in value:  # hexadecimal digits that may be anything
            digits = value.removeprefix("0x")
            parts = [f"0x{digits.replace('*', '0')}", f"0x{re.sub('[^*]', 'f', digits).replace('*', '0')}"]
        match[field] = parts if len(parts) == 2 else value
    params = dict(part.strip().rpartition(":")[::2] for part in call[2].split(",") if part.strip())
    return {
        "table": table, "match": match, "action_name": call[1], "action_params": params,
        "priority": priority, "default_action": command == "setdefault",
    }  # fmt: skip


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
    packets, position = list[Arrival](), 24
    while position < len(data):
        record = data[position : position + 12]
        seconds, fraction, length = (int.from_bytes(record[at : at + 4], order) for at in (0, 4, 8))
        position += 16 + length
        if position > len(data):
            raise SoftswitchError(f"{path}: ends within packet {len(packets) + 1}; copy the whole file")
        time_us = seconds * 10**6 + fraction // per_us
        packets.append((port, data[position - length : position], time_us))
    return packets
