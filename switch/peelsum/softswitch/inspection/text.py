"""Writes expressions as in P4, and a packet's trace as text, with places in the P4 source."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import PurePath
from typing import Any, TypeAlias, TypeVar

from peelsum.softswitch.program import operations as ops
from peelsum.softswitch.program.load_actions import VALID
from peelsum.softswitch.program.model import Program

#: A part of a trace.
Step: TypeAlias = dict[str, Any]
_Item = TypeVar("_Item")
#: A line, and the place in the source that belongs to it.
_Line: TypeAlias = tuple[str, Step | None]
#: The column of places in the source, and the width of lines of fields.
_SOURCE_COLUMN, _WIDTH = 64, 100
#: Of more statements or fields than the first number, the first and last ones are written.
_MOST, _FIRST, _LAST = 32, 12, 4
#: The lines of steps and statements that need one.
_STEPS = {
    "ingress": "ingress",
    "egress": "egress to port {port}",
    "clone": "  clone to session {session}: ports {ports}",
    "multicast": "  multicast to group {group}: ports {ports}",
    "forward": "  forward to port {port}",
    "drop": "  drop: {reason}",
    "resubmit": "  resubmit",
}
_STATEMENTS = {
    "read_register": "read {register}[{index}]: {before}",
    "write_register": "write {register}[{index}]: {before} -> {after}",
    "count_at": "count {counter}[{index}]",
    "execute_meter": "meter {meter}[{index}]",
    "clone": "clone to session {session}, at the end of the pipeline",
    "truncate": "truncate to {length} bytes",
    "jump_if_zero": "if: {outcome}",
    "assert": "assert: {outcome}",
    "verify": "verify: {outcome}",
    "send_digest": "digest {digest}, at the end of ingress",
    "log": "log {text!r} {values}",
}


class TraceWriter:
    """Writes traces of one program. full: write all of long actions and headers."""

    def __init__(self, program: Program, full: bool = False) -> None:
        self._full = full
        headers, actions = program.headers.values(), program.actions.values()
        #: The widths of parameters, keys and fields, by the names that traces have.
        self._bits = {param.name: param.bits for action in actions for param in action.params}
        self._bits |= {key.name: key.bits for table in program.tables.values() for key in table.keys}
        self._bits |= {
            field_name(item.name, part.name): part.bits for item in headers for part in item.fields
        }

    def text(self, trace: Step) -> str:
        """Return the lines of a trace."""
        lines = [f"packet: {len(trace['bytes']) // 2} bytes at port {trace['port']}"]
        for text, source in (line for step in trace["steps"] for line in self._lines(step)):
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
        source = step.get("source")
        match step:
            case {"step": "clone", "ports": []}:
                yield f"  clone to session {step['session']}: is not set, so there is no clone", None
            case {"step": kind} if kind in _STEPS:
                yield _STEPS[kind].format_map(step), None
            case {"step": "pass", "packet": packet}:
                if packet != "arrived":
                    yield f"again: {packet}, {step['size']} bytes", None
            case {"step": "state", "operations": operations}:
                yield f"parser state {step['state']}", None
                for operation in operations:
                    yield from self._statement(operation)
                key = "".join(f"{self._pair(part['field'], part['value'])} " for part in step["key"])
                if not step["failed"]:
                    yield f"    {key}-> {step['next'] or 'end of the parser'}", None
            case {"step": "parser_end", "error": error, "payload_bytes": payload}:
                if error:
                    yield f"    the parser stops with the error {error}", None
                yield f"    payload: {payload} bytes", None
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
            case {"step": "action", "statements": statements}:
                arguments = ", ".join(self._pair(*item) for item in step["parameters"].items())
                yield f"  action {step['action']}({arguments})", None
                lines = self._shortened([list(self._statement(statement)) for statement in statements])
                for part in lines:
                    yield from [(f"    {part}", None)] if isinstance(part, str) else part
            case {"step": "send" | "recirculate" as kind, "headers": headers}:
                yield f"deparser emits {', '.join(headers) or 'no header'}", None
                for change in step.get("changed", ()):
                    yield f"    checksum {self._change(change)}", None
                yield f"  {kind}" + (f" to port {step['port']}" if kind == "send" else ""), None

    def _statement(self, step: Step) -> Iterator[_Line]:
        """Yield the lines of a statement of an action or of a parser state."""
        kind, source = step["step"], step.get("source")
        if "header" in step:
            fields = step["fields"] or {}
            pairs = [self._pair(f"{step['header']}.{name}", value, name) for name, value in fields.items()]
            text = f"    extract {step['header']}: {', '.join(self._shortened(pairs)) or 'fails'}"
            yield from ((line, None) for line in textwrap.wrap(text, _WIDTH, subsequent_indent=" " * 8))
            return
        outcome = str(step.get("outcome")).lower()
        texts = [_STATEMENTS[kind].format_map({**step, "outcome": outcome})] if kind in _STATEMENTS else []
        if step.get("before", 0) is None:
            verb = "reads 0" if kind == "read_register" else "writes nothing"
            texts = [f"{step['register']}[{step['index']}]: is past the register's end, so it {verb}"]
        if not step.get("exists", True):
            texts[0] += ": is past its end, so nothing happens"
        texts += map(self._change, step["changed"])
        if not texts and "field" in step:
            texts = [f"{self._pair(step['field'], step['value'])}, as before"]
        if kind != "jump":
            for number, text in enumerate(texts or [kind.replace("_", " ")]):
                yield f"    {text}", None if number else source

    def _shortened(self, items: list[_Item]) -> list[_Item | str]:
        """Return items, or of many the first and the last ones with a remark between them."""
        if self._full or len(items) <= _MOST:
            return [*items]
        return [*items[:_FIRST], f"... {len(items) - _FIRST - _LAST} more (--full) ...", *items[-_LAST:]]

    def _change(self, change: Step) -> str:
        name = change["field"]
        return f"{name}: {self._value(name, change['before'])} -> {self._value(name, change['after'])}"

    def _match(self, part: Step) -> str:
        """Return one field of an entry's key."""
        text = self._value(part["field"], part["value"])
        if 0 in (part.get("prefix_length"), part.get("mask")):
            return "*"
        if "prefix_length" in part:
            return f"{text}/{part['prefix_length']}"
        if "mask" in part:
            return f"{part['value']:#x} &&& {part['mask']:#x}"
        return f"{text}..{self._value(part['field'], part['high'])}" if "high" in part else text

    def _pair(self, field: str, value: int, name: str = "") -> str:
        return f"{name or field}={self._value(field, value)}"

    def _value(self, field: str, value: int) -> str:
        """Return a value as users write it: an address, or a number, if large also in hexadecimal."""
        if isinstance(value, bool):
            return str(value).lower()
        bits, name = self._bits.get(field), field.rpartition(".")[2]
        if bits == 48 and re.search("addr|mac|src|dst", name, re.IGNORECASE):
            return ":".join(re.findall("..", f"{value:012x}"))
        if bits in (32, 128) and re.search("addr|ip|^src$|^dst$", name, re.IGNORECASE):
            return str((IPv4Address if bits == 32 else IPv6Address)(value))
        return str(value) if -256 < value < 256 else f"{value} ({value:#x})"


_UNARY = {"not": "!", "~": "~", "d2b": "", "b2d": ""}
_NAMES = {"and": "&&", "or": "||"}


def field_name(header: str, field: str) -> str:
    """Return what a user calls a field. p4c collects metadata in a header called scalars."""
    if field == VALID:
        return f"{header}.isValid()"
    return field if header == "scalars" else f"{header}.{field}"


def expression_text(expression: ops.Expr) -> str:
    """Return an expression as in P4, without the brackets around all of it."""
    match expression:
        case ops.FieldRef(header, field):
            return field_name(header, field)
        case ops.IsValid(header):
            return field_name(header, VALID)
        case ops.Const(value) | ops.Bool(value):
            return str(value).lower() if isinstance(value, bool) else str(value)
        case ops.Hit(table):
            return f"{table}.hit"
        case ops.InValueSet(value_set):
            return f"in {value_set}"
        case ops.Lookahead(offset, bits):
            return f"lookahead[{offset}:{offset + bits - 1}]"
        case ops.StackCount(stack):
            return f"{stack}.nextIndex"
        case ops.Unary(op, operand):
            text = expression_text(operand)
            return f"{_UNARY[op]}({text})" if _UNARY[op] and " " in text else _UNARY[op] + text
        case ops.Ternary(ops.Binary("==", ops.StackCount(stack)), ops.FieldRef(_, field)):
            return f"{stack}.last.{field}"
        case ops.Ternary(condition, if_true, if_false):
            return " ".join(
                (expression_text(condition), "?", expression_text(if_true), ":", expression_text(if_false))
            )
        case ops.Binary(op, left, right):
            texts = (f"({text})" if " " in text else text for text in map(expression_text, (left, right)))
            return f" {_NAMES.get(op, op)} ".join(texts)
    return type(expression).__name__
