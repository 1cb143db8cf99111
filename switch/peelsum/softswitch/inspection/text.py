"""Writes a packet's trace as text: a line for each thing that happens, with its place in the P4 source."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import PurePath
from typing import TypeAlias

from peelsum.softswitch.inspection.observe import field_name
from peelsum.softswitch.inspection.trace import Step
from peelsum.softswitch.program.model import Program

#: A line, and the place in the source that belongs to it.
_Line: TypeAlias = "tuple[str, Step | None]"
#: The column of places in the source, and the width of lines of fields.
_SOURCE_COLUMN, _WIDTH = 64, 100
#: Of an action with more statements than the first number, the first and last ones are written.
_MOST_STATEMENTS, _FIRST, _LAST = 32, 12, 4
_HINTS = {
    "read_register": "read {name}[{index}]: {before}",
    "write_register": "write {name}[{index}]: {before} -> {after}",
}


class TraceWriter:
    """Writes traces of one program. full: write all statements of long actions."""

    def __init__(self, program: Program, full: bool = False) -> None:
        self._full = full
        #: The widths of fields, keys and parameters, by the names that traces have.
        self._bits = {
            field_name(header.name, field.name): field.bits
            for header in program.headers.values()
            for field in header.fields
        }
        self._bits |= {key.name: key.bits for table in program.tables.values() for key in table.keys}

    def text(self, trace: Step) -> str:
        """Return the lines of a trace."""
        lines = [f"packet: {len(trace['bytes']) // 2} bytes at port {trace['port']}"]
        for step in trace["steps"]:
            for text, source in self._lines(step):
                if source is not None:
                    place = f"{PurePath(source['file']).name}:{source['line']}"
                    text = f"{text:<{_SOURCE_COLUMN}}  {place:<18}  {source['text']}".rstrip()
                lines.append(text)
        for digest in trace["digests"]:
            lines.append(f"digest {digest['digest']}: {', '.join(map(str, digest['values']))}")
        for packet in trace["packets"]:
            lines.append(f"leaves: {len(packet['bytes']) // 2} bytes at port {packet['port']}")
            lines += textwrap.wrap(packet["bytes"], 64, initial_indent="  ", subsequent_indent="  ")
        return "\n".join(lines if trace["packets"] else [*lines, "leaves: nothing"])

    def _lines(self, step: Step) -> Iterator[_Line]:
        """Yield the lines of a step."""
        source = step.get("source")
        match step:
            case {"step": "pass", "packet": packet}:
                if packet != "arrived":
                    yield f"again: {packet}, {step['size']} bytes", None
            case {"step": "state", "state": state}:
                yield f"parser state {state}", None
                for operation in step["operations"]:
                    yield from self._statement(operation)
                key = "".join(f"{self._pair(part['field'], part['value'])} " for part in step["key"])
                yield f"    {key}-> {step['next'] or 'end of the parser'}", None
            case {"step": "parser_end", "error": error}:
                yield f"    {step['payload_bytes']} more bytes are the payload", None
                if error:
                    yield f"    the parser stops with the error {error}", None
            case {"step": "condition"}:
                yield f"  if ({step['condition']}): {str(step['outcome']).lower()}", source
            case {"step": "table", "key": [_, *_] as key, "entry": entry}:
                yield f"  table {step['table']}: {'hit' if step['hit'] else 'miss'}", source
                pairs = (f"{self._pair(part['field'], part['value'])} ({part['match']})" for part in key)
                yield f"    key {', '.join(pairs)}", None
                if entry:
                    parts = ", ".join(map(self._match, entry["match"]))
                    priority = f", priority {entry['priority']}" if entry["priority"] else ""
                    yield f"    entry {parts}{priority} => {entry['action']}", None
            case {"step": "action", "action": action, "statements": statements}:
                arguments = ", ".join(self._pair(*item) for item in step["parameters"].items())
                yield f"  action {action}({arguments})", None
                skipped = len(statements) - _FIRST - _LAST
                if self._full or len(statements) <= _MOST_STATEMENTS:
                    skipped = 0
                for number, statement in enumerate(statements):
                    if not skipped or not _FIRST <= number < _FIRST + skipped:
                        yield from self._statement(statement)
                    elif number == _FIRST:
                        yield f"    ... {skipped} more statements; --full writes them all", None
            case {"step": "ingress"}:
                yield "ingress", None
            case {"step": "egress", "port": port}:
                yield f"egress to port {port}" + (f", copy {step['rid']}" if step["rid"] else ""), None
            case {"step": "clone"}:
                yield f"  clone to session {step['session']}: ports {step['ports'] or 'none'}", None
            case {"step": "multicast"}:
                yield f"  multicast to group {step['group']}: ports {step['ports']}", None
            case {"step": "forward"}:
                yield f"  forward to port {step['port']}", None
            case {"step": "drop"}:
                yield f"  drop: {step['reason']}", None
            case {"step": "resubmit"}:
                yield "  resubmit", None
            case {"step": "send" | "recirculate" as kind, "headers": headers}:
                yield f"deparser emits {', '.join(headers) or 'no header'}", None
                for change in step.get("changed", ()):
                    yield f"    checksum {self._change(change)}", None
                yield f"  {kind}" + (f" to port {step['port']}" if kind == "send" else ""), None

    def _statement(self, step: Step) -> Iterator[_Line]:
        """Yield the lines of a statement of an action or of a parser state; none if it has no effect."""
        source, kind, texts = step.get("source"), step["step"].replace("_", " "), []
        match step:
            case {"header": header, "fields": fields}:
                if fields is None:
                    yield f"    extract {header}: fails", None
                    return
                pairs = [self._pair(f"{header}.{name}", value, name) for name, value in fields.items()]
                yield from ((line, None) for line in _wrapped(f"    extract {header}: ", pairs))
                return
            case {"register": register}:
                if register["before"] is None:
                    texts = [f"{kind} {register['name']}[{register['index']}]: past its end"]
                else:
                    texts = [_HINTS[step["step"]].format_map(register)]
            case {"cell": cell}:
                texts = [f"{kind} {cell['name']}[{cell['index']}]"]
            case {"clone": clone}:
                texts = [f"clone to session {clone['session']}, at the end of the pipeline"]
            case {"outcome": outcome}:
                texts = [f"{'if' if kind.startswith('jump') else kind}: {str(outcome).lower()}"]
            case {"log": log}:
                texts = [f"log {log['text']!r} {log['values'] or ''}".rstrip()]
            case {"digest": digest}:
                texts = [f"digest {digest}, at the end of ingress"]
            case {"target": target} if not step["changed"]:
                texts = [f"{self._pair(target['field'], target['value'])}, as before"]
            case {"step": "jump"}:
                return
        texts += [self._change(change) for change in step.get("changed", ())]
        for number, text in enumerate(texts or [kind]):
            yield f"    {text}", None if number else source

    def _change(self, change: Step) -> str:
        """Return a field's values before and after."""
        name = change["field"]
        return f"{name}: {self._value(name, change['before'])} -> {self._value(name, change['after'])}"

    def _match(self, part: Step) -> str:
        """Return one field of an entry's key."""
        text = self._value(part["field"], part["value"])
        if "prefix_length" in part:
            return f"{text}/{part['prefix_length']}"
        if "mask" in part:
            return f"{part['value']:#x} &&& {part['mask']:#x}"
        return f"{text}..{self._value(part['field'], part['high'])}" if "high" in part else text

    def _pair(self, field: str, value: int, name: str = "") -> str:
        return f"{name or field}={self._value(field, value)}"

    def _value(self, field: str, value: int) -> str:
        """Return a value as its field's users write it: an address, or a number, if large also in hex."""
        if isinstance(value, bool):
            return str(value).lower()
        bits, is_address = self._bits.get(field, 0), re.search("addr|mac|ip", field, re.IGNORECASE)
        if bits == 48 or (not bits and is_address and value >> 32):
            return ":".join(re.findall("..", f"{value:012x}"))
        if bits in (32, 128) and re.search("addr|ip$", field.rpartition(".")[2], re.IGNORECASE):
            return str((IPv4Address if bits == 32 else IPv6Address)(value))
        return str(value) if -256 < value < 256 else f"{value} ({value:#x})"


def _wrapped(head: str, pairs: list[str]) -> list[str]:
    """Return lines of pairs; those after the first are indented below it."""
    return textwrap.wrap(
        head + ", ".join(pair.replace(" ", "\0") for pair in pairs), _WIDTH, subsequent_indent=" " * 8
    )
