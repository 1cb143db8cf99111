"""Random P4 programs for v1model, each with an evaluator of its own.

A program is generated as P4 text together with Python functions that do the same with Python's integers, so
`RandomProgram.process` says what a switch must send without a compiler or a switch.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DROP_PORT = 511
#: A packet's variables by their names in P4; the name of a header is whether it is valid.
Values = dict[str, int]
HEAD = """#include <core.p4>
#include <v1model.p4>
"""
PIPELINE = """
control V(inout headers_t hdr, inout metadata_t md) {{ apply {{ {verify} }} }}
control C(inout headers_t hdr, inout metadata_t md) {{ apply {{ {update} }} }}
control D(packet_out packet, in headers_t hdr) {{ apply {{ packet.emit(hdr); }} }}
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""
WIDTHS = (1, 2, 3, 5, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 40, 47, 48, 63, 64)
WIDE = (65, 72, 96, 127, 128)


class Type(NamedTuple):
    """bit<W>, int<W>, or bool with one bit."""

    kind: str
    bits: int

    def __str__(self) -> str:
        return "bool" if self.kind == "bool" else f"{self.kind}<{self.bits}>"

    def wrap(self, value: int) -> int:
        """Return a number modulo 2**bits, in two's complement if it is signed."""
        value &= (1 << self.bits) - 1
        return value - (1 << self.bits) if self.kind == "int" and value >> self.bits - 1 else value

    def clamp(self, value: int) -> int:
        """Return the nearest number of this type."""
        low, high = (-(1 << self.bits - 1), (1 << self.bits - 1) - 1) if self.kind == "int" else (0, (1 << self.bits) - 1)
        return max(low, min(value, high))


BOOL = Type("bool", 1)


class Expr(NamedTuple):
    """An expression's text, its type, and its value for a packet."""

    text: str
    type: Type
    of: Callable[[Values], int]


class Statement(NamedTuple):
    """A statement's text, and what it does to a packet."""

    text: str
    run: Callable[[Values], None]


class Leave(Exception):
    """`exit`, or `return` of an action or a control; a parser that stops with an error."""


class Exit(Leave):
    """`exit`."""


def block(statements: list[Statement]) -> Statement:
    def run(values: Values) -> None:
        for statement in statements:
            statement.run(values)

    return Statement("{ " + "\n".join(statement.text for statement in statements) + " }", run)


# --- hashes, by their definitions -----------------------------------------------------------------


def crc16(data: bytes) -> int:
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ 0xA001 * (value & 1)
    return value


def csum16(data: bytes) -> int:
    data += bytes(len(data) % 2)
    value = sum(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    return value ^ 0xFFFF


HASHES: dict[str, Callable[[bytes], int]] = {"crc16": crc16, "crc32": zlib.crc32, "csum16": csum16}


def packed(exprs: list[Expr], values: Values) -> bytes:
    """Return the bits of values side by side, with zeros at the end."""
    number = bits = 0
    for expr in exprs:
        number = number << expr.type.bits | expr.of(values) & (1 << expr.type.bits) - 1
        bits += expr.type.bits
    return (number << -bits % 8).to_bytes(-(-bits // 8), "big")


# --- expressions ----------------------------------------------------------------------------------


class Expressions:
    """Makes random expressions of the variables that may be read where they stand.

    scope: readable variables and their types. headers: those known to be valid.
    """

    def __init__(self, rng: random.Random, widths: tuple[int, ...]) -> None:
        self.rng, self.widths = rng, widths
        self.scope: dict[str, Type] = {}
        self.pool = [rng.getrandbits(rng.choice([4, 8, 16, 32, 64])) for _ in range(6)]

    def type(self) -> Type:
        kind = self.rng.choice(["bit", "bit", "bit", "int"])
        # Of one bit, a signed number is not allowed everywhere.
        return Type(kind, max(self.rng.choice(self.widths), 2 if kind == "int" else 1))

    def number(self, type_: Type) -> int:
        """Return a number of a type, often an edge of its range or one that occurs elsewhere."""
        edge = self.rng.choice([0, 1, -1, 2, (1 << type_.bits - 1) - 1, 1 << type_.bits - 1])
        return type_.wrap(self.rng.choice([edge, self.rng.choice(self.pool), self.rng.getrandbits(type_.bits)]))

    def constant(self, type_: Type) -> Expr:
        value = self.number(type_)
        if type_ == BOOL:
            return Expr(str(bool(value)).lower(), type_, lambda _: value)
        digits = f"{type_.bits}{'s' if type_.kind == 'int' else 'w'}{abs(value)}"
        return Expr(f"(-{digits})" if value < 0 else digits, type_, lambda _: value)

    def variable(self, type_: Type) -> Expr:
        """Return a variable, cast to the type."""
        same = [name for name, declared in self.scope.items() if declared == type_]
        name = self.rng.choice(same if same and self.rng.random() < 0.8 else list(self.scope))
        return self.cast(Expr(name, self.scope[name], lambda values: values[name]), type_)

    def cast(self, expr: Expr, type_: Type) -> Expr:
        """Return an expression cast to a type, by as many casts as P4 needs."""
        source = expr.type
        if source == type_:
            return expr
        if type_ == BOOL:
            zero = self.constant(source)
            return Expr(f"({expr.text} != {zero.text})", BOOL, lambda v: int(expr.of(v) != zero.of(v)))
        if source == BOOL:
            step = Type("bit", 1)
        elif source.kind == type_.kind or source.bits == type_.bits:
            step = type_
        else:
            step = Type(source.kind, type_.bits)
        return self.cast(Expr(f"(({step}){expr.text})", step, lambda v: step.wrap(expr.of(v))), type_)

    def expr(self, type_: Type, depth: int) -> Expr:
        if depth <= 0:
            return (self.variable if self.scope and self.rng.random() < 0.8 else self.constant)(type_)
        if type_ == BOOL:
            return self._boolean(depth - 1)
        kinds = [self._arithmetic, self._arithmetic, self._unary, self._shift, self._mux, self._cast]
        kinds += [self._slice, self._concatenation] if type_.kind == "bit" else []
        return self.rng.choice(kinds)(type_, depth - 1)

    def _boolean(self, depth: int) -> Expr:
        rng = self.rng
        match rng.choice(["compare", "compare", "and", "or", "not", "equal"]):
            case "compare":
                type_ = self.type()
                left, right = self.expr(type_, depth), self.expr(type_, depth)
                op = rng.choice(["==", "!=", "<", "<=", ">", ">="])
            case "equal":
                left, right, op = self.expr(BOOL, depth), self.expr(BOOL, depth), rng.choice(["==", "!="])
            case "not":
                inner = self.expr(BOOL, depth)
                return Expr(f"(!{inner.text})", BOOL, lambda v: int(not inner.of(v)))
            case _ as word:
                left, right, op = self.expr(BOOL, depth), self.expr(BOOL, depth), "&&" if word == "and" else "||"
        return Expr(f"({left.text} {op} {right.text})", BOOL, lambda v: int(_COMPARE[op](left.of(v), right.of(v))))

    def _arithmetic(self, type_: Type, depth: int) -> Expr:
        left, right = self.expr(type_, depth), self.expr(type_, depth)
        op = self.rng.choice(list(_ARITHMETIC))
        function = _ARITHMETIC[op]
        fit = type_.clamp if op in ("|+|", "|-|") else type_.wrap
        return Expr(f"({left.text} {op} {right.text})", type_, lambda v: fit(function(left.of(v), right.of(v))))

    def _unary(self, type_: Type, depth: int) -> Expr:
        op, inner = self.rng.choice("~-"), self.expr(type_, depth)
        return Expr(
            f"({op}{inner.text})", type_, lambda v: type_.wrap(~inner.of(v) if op == "~" else -inner.of(v))
        )

    def _shift(self, type_: Type, depth: int) -> Expr:
        inner, op = self.expr(type_, depth), self.rng.choice(["<<", ">>"])
        if self.rng.random() < 0.5:
            count = self.rng.randrange(type_.bits + 2)
            by = Expr(str(count), Type("bit", 8), lambda _: count)
        else:
            by = self.expr(Type("bit", self.rng.choice([3, 6, 8])), depth)
        return Expr(
            f"({inner.text} {op} {by.text})",
            type_,
            lambda v: type_.wrap(inner.of(v) << by.of(v) if op == "<<" else inner.of(v) >> by.of(v)),
        )

    def _mux(self, type_: Type, depth: int) -> Expr:
        test, left, right = self.expr(BOOL, depth), self.expr(type_, depth), self.expr(type_, depth)
        return Expr(
            f"({test.text} ? {left.text} : {right.text})",
            type_,
            lambda v: left.of(v) if test.of(v) else right.of(v),
        )

    def _cast(self, type_: Type, depth: int) -> Expr:
        return self.cast(self.expr(self.rng.choice([self.type(), self.type(), BOOL]), depth), type_)

    def _slice(self, type_: Type, depth: int) -> Expr:
        wider = [width for width in self.widths if width >= type_.bits]
        if not wider:
            return self.expr(type_, depth)
        inner = self.expr(Type("bit", self.rng.choice(wider)), depth)
        low = self.rng.randrange(inner.type.bits - type_.bits + 1)
        return Expr(
            f"{inner.text}[{low + type_.bits - 1}:{low}]", type_, lambda v: type_.wrap(inner.of(v) >> low)
        )

    def _concatenation(self, type_: Type, depth: int) -> Expr:
        if type_.bits == 1:
            return self.expr(type_, depth)
        bits = self.rng.randrange(1, type_.bits)
        left, right = self.expr(Type("bit", type_.bits - bits), depth), self.expr(Type("bit", bits), depth)
        return Expr(f"({left.text} ++ {right.text})", type_, lambda v: left.of(v) << bits | right.of(v))


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "|+|": lambda a, b: a + b,
    "|-|": lambda a, b: a - b,
}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "&&": lambda a, b: bool(a and b),
    "||": lambda a, b: bool(a or b),
}


# --- programs -------------------------------------------------------------------------------------


@dataclass
class Table:
    """A table: its text, the match kinds and expressions of its keys, and its entries, the first match wins."""

    name: str
    keys: list[tuple[str, Expr]]
    actions: list[str]
    default: tuple[str, tuple[int, ...]]
    const: bool
    size: int = 64
    entries: list[tuple[list[Any], str, tuple[int, ...], int]] = field(default_factory=list)

    def matches(self, patterns: list[Any], values: Values) -> bool:
        for (kind, expr), pattern in zip(self.keys, patterns, strict=True):
            value, bits = expr.of(values) & (1 << expr.type.bits) - 1, expr.type.bits
            match kind:
                case "exact":
                    fits = value == pattern
                case "lpm":
                    fits = value >> bits - pattern[1] == pattern[0] >> bits - pattern[1]
                case "range":
                    fits = pattern[0] <= value <= pattern[1]
                case _:
                    fits = value & pattern[1] == pattern[0]
            if not fits:
                return False
        return True

    def lookup(self, values: Values) -> tuple[bool, str, tuple[int, ...]]:
        found = [entry for entry in self.entries if self.matches(entry[0], values)]
        if not found:
            return (False, *self.default)
        lpm = [number for number, (kind, _) in enumerate(self.keys) if kind == "lpm"]
        has_priority = any(kind in ("ternary", "range", "optional") for kind, _ in self.keys)
        if has_priority:
            best = max(found, key=lambda entry: entry[3])
        else:
            best = max(found, key=lambda entry: entry[0][lpm[0]][1] if lpm else 0)
        return True, best[1], best[2]


GROUPS = {1: [(1, 7), (2, 0)], 2: [(3, 65535), (3, 1), (4, 2)]}


class RandomProgram(Expressions):
    """A program: its `text`, the entries of its `tables`, and what it does."""

    def __init__(self, seed: int, statements: int = 10, widths: tuple[int, ...] = WIDTHS) -> None:
        super().__init__(random.Random(seed), widths)
        self.size = statements
        self.serial = itertools.count()
        self.registers: dict[str, list[int]] = {}
        self.counters: dict[str, list[list[int]]] = {}
        self.tables: dict[str, Table] = {}
        self.actions: dict[str, tuple[list[Type], Callable[[Values, tuple[int, ...]], None]]] = {}
        self.readonly: set[str] = set()
        self.valid: set[str] = set()
        types = self._headers()
        self.metadata = {f"md.m{n}": self.rng.choice([self.type(), self.type(), BOOL]) for n in range(6)}
        fields = " ".join(f"{type_} {name[3:]};" for name, type_ in self.metadata.items())
        types += f"struct metadata_t {{ {fields} }}\n"
        parser = self._parser()
        self.verify, verify = self._checksum("verify_checksum")
        self.update, update = self._checksum("update_checksum")
        self.ingress, ingress = self._control("I", {"sm.ingress_port": Type("bit", 9)})
        self.egress, egress = self._control("E", {"sm.egress_rid": Type("bit", 16), "sm.egress_port": Type("bit", 9)})
        self.text = HEAD + types + parser + ingress + egress + PIPELINE.format(verify=verify, update=update)

    # --- declarations ---

    def _headers(self) -> str:
        rng = self.rng
        kinds: dict[str, dict[str, Type]] = {}
        for number in range(4):
            fields = {"check": Type("bit", 16), "ttl": Type("bit", 8)} if number == 0 else {}
            fields |= {"more": Type("bit", 1)} if number == 3 else {}
            fields |= {f"f{n}": self.type() for n in range(rng.randrange(1, 5))}
            pad = -sum(type_.bits for type_ in fields.values()) % 8
            kinds[f"t{number}"] = fields | ({"pad": Type("bit", pad)} if pad else {})
        depth = rng.randrange(1, 4)
        self.stack = [f"hdr.s[{n}]" for n in range(depth)]
        self.headers = {"hdr.h0": kinds["t0"], "hdr.h1": kinds["t1"], "hdr.h2": kinds["t1"], "hdr.h3": kinds["t2"]}
        self.headers |= dict.fromkeys(self.stack, kinds["t3"])
        text = "".join(
            f"header {name} {{ {' '.join(f'{type_} {field};' for field, type_ in fields.items())} }}\n"
            for name, fields in kinds.items()
        )
        return text + f"struct headers_t {{ t0 h0; t1 h1; t1 h2; t2 h3; t3[{depth}] s; }}\n"

    def _read(self, values: Values, header: str) -> None:
        """Extract a header."""
        fields = self.headers[header]
        bits = sum(type_.bits for type_ in fields.values())
        if values["at"] + bits > values["size"]:
            self._stop(values, "PacketTooShort")
        values[header] = 1
        for name, type_ in fields.items():
            values["at"] += type_.bits
            values[f"{header}.{name}"] = type_.wrap(values["frame"] >> values["size"] - values["at"])

    def _stop(self, values: Values, error: str) -> None:
        values["sm.parser_error"] = ERRORS.index(error)
        raise Leave

    # --- parser ---

    def _parser(self) -> str:
        self.scope = dict(self.metadata)
        targets = ["hdr.h0", "hdr.h1", "hdr.h2", "hdr.h3", "stack"]
        self.states = [self._state(number, targets) for number in range(len(targets))]
        texts = []
        for number, (ops, select, _) in enumerate(self.states):
            name = "start" if number == 0 else f"s{number}"
            texts.append(f"state {name} {{ {' '.join(op.text for op in ops)} {select} }}\n")
        head = "parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {\n"
        return head + "".join(texts) + "}\n"

    def _state(self, number: int, targets: list[str]) -> tuple[list[Statement], str, Callable[[Values], int]]:
        """Return a state's operations, the text of its transition, and a function for the next state's number."""
        rng, ops, last = self.rng, [], number == len(targets) - 1
        self.scope = dict(self.metadata)
        if last:
            ops.append(Statement("packet.extract(hdr.s.next);", self._extract_next))
            fields = {f"hdr.s.last.{name}": type_ for name, type_ in self.headers[self.stack[0]].items()}
        else:
            header = targets[number]
            ops.append(Statement(f"packet.extract({header});", lambda v: self._read(v, header)))
            fields = {f"{header}.{name}": type_ for name, type_ in self.headers[header].items()}
        self.scope |= fields
        if rng.random() < 0.5:
            ops.append(self._assign([name for name in self.metadata if self.metadata[name] != BOOL]))
        if rng.random() < 0.3:
            condition = self.expr(BOOL, 2)
            ops.append(Statement(f"verify({condition.text}, error.HeaderTooShort);",
                lambda v: None if condition.of(v) else self._stop(v, "HeaderTooShort")))
        if rng.random() < 0.2:
            skipped = rng.choice([8, 16, 24])
            ops.append(Statement(f"packet.advance({skipped});", lambda v: self._advance(v, skipped)))
        names = [name for name, type_ in self.scope.items() if type_.kind == "bit"]
        keys = [self.variable_of(rng.choice(names)) for _ in range(rng.randrange(1, 3))]
        if rng.random() < 0.3:
            bits = rng.choice([1, 3, 8, 16])
            keys[0] = Expr(f"packet.lookahead<bit<{bits}>>()", Type("bit", bits), lambda v: self._lookahead(v, bits))
        if last:
            keys[0] = self.variable_of("hdr.s.last.more")
        following = [*range(number + 1, len(targets)), *([number] * 4 if last else []), -1]
        cases = [([self._pattern(key.type) for key in keys], rng.choice(following)) for _ in range(rng.randrange(1, 4))]
        otherwise = -1 if last else rng.choice(following)

        def next_state(values: Values) -> int:
            found = [key.of(values) for key in keys]
            for patterns, target in cases:
                if all(test(value) for (_, test), value in zip(patterns, found, strict=True)):
                    return target
            return otherwise

        rows = [(f"({', '.join(text for text, _ in patterns)})", target) for patterns, target in cases]
        rows.append(("default", otherwise))
        lines = " ".join(f"{text}: {'accept' if target < 0 else f's{target}'};" for text, target in rows)
        return ops, f"transition select({', '.join(key.text for key in keys)}) {{ {lines} }}", next_state

    def _pattern(self, type_: Type) -> tuple[str, Callable[[int], bool]]:
        value, other = self.number(type_), self.number(type_)
        match self.rng.choice(["value", "value", "mask", "range", "any"]):
            case "mask":
                return f"{value} &&& {other}", lambda v: v & other == value & other
            case "range" if type_.bits <= 16:
                low, high = sorted((value, other))
                return f"{low}..{high}", lambda v: low <= v <= high
            case "any":
                return "_", lambda v: True
        return str(value), lambda v: v == value

    def variable_of(self, name: str) -> Expr:
        return Expr(name, self.scope[name], lambda values: values[name])

    def _extract_next(self, values: Values) -> None:
        if values["next"] == len(self.stack):
            self._stop(values, "StackOutOfBounds")
        header = self.stack[values["next"]]
        self._read(values, header)
        values["next"] += 1
        for name in self.headers[header]:
            values[f"hdr.s.last.{name}"] = values[f"{header}.{name}"]

    def _advance(self, values: Values, bits: int) -> None:
        if values["at"] + bits > values["size"]:
            self._stop(values, "PacketTooShort")
        values["at"] += bits

    def _lookahead(self, values: Values, bits: int) -> int:
        if values["at"] + bits > values["size"]:
            self._stop(values, "PacketTooShort")
        return values["frame"] >> values["size"] - values["at"] - bits & (1 << bits) - 1

    # --- controls ---

    def _checksum(self, extern: str) -> tuple[Callable[[Values], int | None], str]:
        names = [f"hdr.h0.{name}" for name, type_ in self.headers["hdr.h0"].items() if name != "check"]
        self.scope = {f"hdr.h0.{name}": type_ for name, type_ in self.headers["hdr.h0"].items()}
        inputs = [self.variable_of(name) for name in self.rng.sample(names, self.rng.randrange(1, len(names) + 1))]
        if self.rng.random() < 0.5:
            return lambda values: None, ""
        fields = ", ".join(expr.text for expr in inputs)
        text = f"{extern}(hdr.h0.isValid(), {{ {fields} }}, hdr.h0.check, HashAlgorithm.csum16);"
        return lambda values: csum16(packed(inputs, values)) if values["hdr.h0"] else None, text

    def _control(self, name: str, read: dict[str, Type]) -> tuple[Callable[[Values], None], str]:
        self.name, self.declarations = name, []
        self.parser_errors = name == "I"
        self.base = self.metadata | read | {"sm.instance_type": Type("bit", 32), "sm.checksum_error": Type("bit", 1)}
        self.readonly |= {name for name in self.base if name.startswith("sm.")}
        self.base["sm.egress_spec"] = Type("bit", 9)
        self.valid = {"hdr.h0"}
        self.locals: dict[str, Type] = {}
        self.cells: dict[str, Type] = {}
        for _ in range(2):
            self._declare_cells()
        for _ in range(self.rng.randrange(1, 4)):
            self._declare_action()
        self.unapplied = [self._declare_table() for _ in range(self.rng.randrange(1, 4))]
        body = block([self._statement(3) for _ in range(self.size)])
        head = f"control {name}(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {{\n"
        first = ""
        if name == "I":
            # p4c leaves out assignments in the parser that are only visible after an error.
            reset = " ".join(f"{name} = {'false' if type_ == BOOL else 0};" for name, type_ in self.metadata.items())
            first = f"sm.egress_spec = sm.ingress_port; if (sm.parser_error != error.NoError) {{ {reset} }} "

        def run(values: Values) -> None:
            if first:
                values["sm.egress_spec"] = values["sm.ingress_port"]
                if values["sm.parser_error"]:
                    values.update(dict.fromkeys(self.metadata, 0))
            if values["hdr.h0"]:
                try:
                    body.run(values)
                except Leave:
                    pass

        text = f"apply {{ {first}if (hdr.h0.isValid()) {body.text} }}\n}}\n"
        return run, head + "".join(self.declarations) + text

    def _visible(self) -> None:
        """Set the scope to what may be read here."""
        self.scope = self.base | self.locals
        for header in self.valid:
            self.scope |= {f"{header}.{name}": type_ for name, type_ in self.headers[header].items()}

    def _declare_cells(self) -> None:
        name, bits = f"{self.name}_r{next(self.serial)}", self.rng.choice(self.widths)
        size = self.rng.choice([1, 4, 8])
        self.registers[f"{self.name}.{name}"] = [0] * size
        self.counters[f"{self.name}.{name}_c"] = [[0, 0] for _ in range(size)]
        self.cells[name] = Type("bit", bits)
        self.declarations.append(f"register<bit<{bits}>>({size}) {name}; counter({size}, CounterType.packets) {name}_c;\n")

    def _declare_action(self) -> None:
        name = f"a{next(self.serial)}"
        types = {f"{name}_p{n}": Type("bit", self.rng.choice(self.widths)) for n in range(self.rng.randrange(3))}
        saved = self.valid, self.locals
        self.valid, self.locals = {"hdr.h0"}, dict(types)
        self.readonly |= set(types)
        self.in_action = True
        body = block([self._statement(2) for _ in range(self.rng.randrange(1, 4))])
        self.in_action = False
        self.valid, self.locals = saved
        params = ", ".join(f"{type_} {param}" for param, type_ in types.items())

        def run(values: Values, arguments: tuple[int, ...]) -> None:
            values.update(zip(types, arguments, strict=True))
            try:
                body.run(values)
            except Exit:
                raise
            except Leave:
                pass

        self.declarations.append(f"action {name}({params}) {body.text}\n")
        self.actions[f"{self.name}.{name}"] = list(types.values()), run

    def _own_actions(self) -> list[str]:
        return [name for name in self.actions if name.startswith(f"{self.name}.")]

    def _choice(self, actions: list[str]) -> tuple[str, tuple[int, ...]]:
        name = self.rng.choice(actions)
        return name, tuple(self.number(type_) for type_ in self.actions[name][0])

    def _declare_table(self) -> str:
        rng = self.rng
        name = f"{self.name}_t{next(self.serial)}"
        self._visible()
        kinds = [rng.choice(["exact", "exact", "ternary", "range", "optional"]) for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.5:
            kinds[0] = "lpm"
        keys = []
        for kind in kinds:
            type_ = Type("bit", rng.choice([w for w in self.widths if w <= 64]))
            names = [n for n, declared in self.scope.items() if declared.kind == "bit" and declared.bits <= 64]
            keys.append((kind, self.variable_of(rng.choice(names)) if rng.random() < 0.7 else self.expr(type_, 2)))
        actions = rng.sample(self._own_actions(), rng.randrange(1, len(self._own_actions()) + 1))
        table = Table(f"{self.name}.{name}", keys, actions, self._choice(actions), rng.random() < 0.3)
        priority = 100
        for _ in range(rng.randrange(1, 7)):
            patterns = [self._match(kind, expr.type.bits) for kind, expr in keys]
            if not any(patterns == other[0] for other in table.entries):
                table.entries.append((patterns, *self._choice(actions), priority))
                priority -= 1
        self.tables[table.name] = table
        self.declarations.append(self._table_text(name, table))
        return name

    def _match(self, kind: str, bits: int) -> Any:
        top, value, other = (1 << bits) - 1, self.number(Type("bit", bits)), self.number(Type("bit", bits))
        match kind:
            case "exact":
                return value
            case "lpm":
                length = self.rng.randrange(bits + 1)
                return value & ~(top >> length), length
            case "range":
                return tuple(sorted((value, other)))
            case "optional":
                return (value, top) if self.rng.random() < 0.6 else (0, 0)
        return value & other, other

    def _table_text(self, name: str, table: Table) -> str:
        def pattern(kind: str, value: Any, bits: int) -> str:
            match kind:
                case "exact":
                    return str(value)
                case "lpm":
                    return f"{value[0]} &&& {(1 << bits) - (1 << bits - value[1])}"
                case "range":
                    return f"{value[0]}..{value[1]}"
                case "optional":
                    return str(value[0]) if value[1] else "_"
            return f"{value[0]} &&& {value[1]}"

        def call(action: str, arguments: tuple[int, ...]) -> str:
            return f"{action.partition('.')[2]}({', '.join(map(str, arguments))})"

        keys = " ".join(f'{expr.text} : {kind} @name("k{n}");' for n, (kind, expr) in enumerate(table.keys))
        names = " ".join(f"{action.partition('.')[2]};" for action in table.actions)
        entries = ""
        if table.const:
            rows = [
                f"({', '.join(pattern(kind, value, expr.type.bits) for (kind, expr), value in zip(table.keys, row[0], strict=True))})"
                f" : {call(row[1], row[2])};"
                for row in table.entries
            ]
            entries = f"const entries = {{ {' '.join(rows)} }}"
        return (
            f"table {name} {{ key = {{ {keys} }} actions = {{ {names} }} "
            f"{entries} default_action = {call(*table.default)}; size = 64; }}\n"
        )

    # --- statements ---

    in_action = False

    def _assign(self, names: list[str]) -> Statement:
        """Return an assignment to one of these variables, or to some of its bits."""
        name = self.rng.choice(names)
        type_ = self.scope[name]
        if type_.kind == "bit" and type_.bits > 2 and self.rng.random() < 0.25:
            low = self.rng.randrange(type_.bits - 1)
            high = self.rng.randrange(low, type_.bits)
            part = self.expr(Type("bit", high - low + 1), 3)
            mask = (1 << high + 1) - (1 << low)

            def run(values: Values) -> None:
                values[name] = values[name] & ~mask | part.of(values) << low

            return Statement(f"{name}[{high}:{low}] = {part.text};", run)
        expr = self.expr(type_, self.rng.randrange(4))
        return Statement(f"{name} = {expr.text};", lambda v: v.__setitem__(name, expr.of(v)))

    def _writable(self) -> list[str]:
        return [name for name in self.scope if name not in self.readonly and name != "sm.egress_spec"]

    def _statement(self, depth: int) -> Statement:
        self._visible()
        kinds = ["assign"] * 4 + ["register", "count", "hash", "local", "validity", "port"]
        if depth > 0:
            kinds += ["if", "if", "guard", "guard"]
        if not self.in_action:
            kinds += ["apply", "apply", "apply", "call", "shift"]
        elif depth < 2:
            kinds += ["leave"]
        if depth < 2 and self.rng.random() < 0.3:
            kinds += ["leave"]
        return getattr(self, f"_{self.rng.choice(kinds)}_statement")(depth)

    def _branch(self, depth: int, known: str = "") -> tuple[Statement, set[str]]:
        valid, local = set(self.valid), dict(self.locals)
        if known:
            self.valid.add(known)
        body = block([self._statement(depth - 1) for _ in range(self.rng.randrange(1, 3))])
        after, self.valid, self.locals = self.valid, valid, local
        return body, after

    def _assign_statement(self, depth: int) -> Statement:
        return self._assign(self._writable())

    def _local_statement(self, depth: int) -> Statement:
        name, type_ = f"x{next(self.serial)}", self.rng.choice([self.type(), BOOL])
        expr = self.expr(type_, 2)
        self.locals = {**self.locals, name: type_}
        return Statement(f"{type_} {name} = {expr.text};", lambda v: v.__setitem__(name, expr.of(v)))

    def _if_statement(self, depth: int) -> Statement:
        test = self.expr(BOOL, 2)
        if self.parser_errors and self.rng.random() < 0.2:
            code = self.rng.randrange(len(ERRORS))
            test = Expr(f"sm.parser_error == error.{ERRORS[code]}", BOOL, lambda v: int(v["sm.parser_error"] == code))
        yes, after_yes = self._branch(depth)
        no, after_no = self._branch(depth) if self.rng.random() < 0.5 else (block([]), set(self.valid))
        self.valid &= after_yes & after_no
        return Statement(
            f"if ({test.text}) {yes.text} else {no.text}", lambda v: (yes if test.of(v) else no).run(v)
        )

    def _guard_statement(self, depth: int) -> Statement:
        header = self.rng.choice(list(self.headers))
        body, after = self._branch(depth, header)
        self.valid &= after
        return Statement(f"if ({header}.isValid()) {body.text}", lambda v: body.run(v) if v[header] else None)

    def _validity_statement(self, depth: int) -> Statement:
        header = self.rng.choice([name for name in self.headers if name != "hdr.h0"])
        match self.rng.choice(["valid", "invalid", "copy"]):
            case "invalid":
                self.valid.discard(header)
                return Statement(f"{header}.setInvalid();", lambda v: v.__setitem__(header, 0))
            case "copy" if header in ("hdr.h1", "hdr.h2"):
                other = "hdr.h2" if header == "hdr.h1" else "hdr.h1"
                self.valid = self.valid - {header} | ({header} if other in self.valid else set())
                return Statement(f"{header} = {other};", lambda v: self._copy(v, header, other))
        values = {name: self.expr(type_, 1) for name, type_ in self.headers[header].items()}
        self.valid.add(header)
        lines = " ".join(f"{header}.{name} = {expr.text};" for name, expr in values.items())

        def run(v: Values) -> None:
            v[header] = 1
            for name, expr in values.items():
                v[f"{header}.{name}"] = expr.of(v)

        return Statement(f"{header}.setValid(); {lines}", run)

    def _copy(self, values: Values, header: str, other: str) -> None:
        values[header] = values[other]
        for name in self.headers[header]:
            values[f"{header}.{name}"] = values.get(f"{other}.{name}", 0)

    def _shift_statement(self, depth: int) -> Statement:
        self.valid -= set(self.stack)
        count = self.rng.randrange(1, len(self.stack) + 1)
        pushed = self.rng.random() < 0.5

        def run(values: Values) -> None:
            old = dict(values)
            for number, header in enumerate(self.stack):
                source = number - count if pushed else number + count
                if 0 <= source < len(self.stack):
                    other = self.stack[source]
                    values[header] = old[other]
                    for name in self.headers[header]:
                        values[f"{header}.{name}"] = old.get(f"{other}.{name}", 0)
                else:
                    values[header] = 0

        return Statement(f"hdr.s.{'push' if pushed else 'pop'}_front({count});", run)

    def _port_statement(self, depth: int) -> Statement:
        if self.rng.random() < 0.2:
            def drop(values: Values) -> None:
                values["sm.egress_spec"], values["sm.mcast_grp"] = DROP_PORT, 0

            return Statement("mark_to_drop(sm);", drop)
        if self.name == "I" and self.rng.random() < 0.3:
            group = self.expr(Type("bit", 2), 2)
            return Statement(f"sm.mcast_grp = (bit<16>){group.text};", lambda v: v.__setitem__("sm.mcast_grp", group.of(v)))
        port = self.expr(Type("bit", 9), 2)
        return Statement(f"sm.egress_spec = {port.text};", lambda v: v.__setitem__("sm.egress_spec", port.of(v)))

    def _index(self, cells: list[Any]) -> Expr:
        expr, mask = self.expr(Type("bit", 32), 2), len(cells) - 1
        return Expr(f"({expr.text} & {mask})", expr.type, lambda v: expr.of(v) & mask)

    def _cell(self) -> tuple[str, Type, list[int], list[list[int]]]:
        name = self.rng.choice(list(self.cells))
        full = f"{self.name}.{name}"
        return name, self.cells[name], self.registers[full], self.counters[f"{full}_c"]

    def _register_statement(self, depth: int) -> Statement:
        name, type_, cells, _ = self._cell()
        index = self._index(cells)
        targets = [target for target in self._writable() if self.scope[target] == type_]
        if targets and self.rng.random() < 0.6:
            target = self.rng.choice(targets)
            return Statement(f"{name}.read({target}, {index.text});",
                lambda v: v.__setitem__(target, cells[index.of(v)]))
        value = self.expr(type_, 2)
        return Statement(f"{name}.write({index.text}, {value.text});",
            lambda v: cells.__setitem__(index.of(v), value.of(v)))

    def _count_statement(self, depth: int) -> Statement:
        name, _, _, counts = self._cell()
        index = self._index(counts)

        def run(values: Values) -> None:
            cell = counts[index.of(values)]
            cell[0] += 1
            cell[1] += values["size"] // 8

        return Statement(f"{name}_c.count({index.text});", run)

    def _hash_statement(self, depth: int) -> Statement:
        targets = [name for name in self._writable() if self.scope[name].kind == "bit"]
        if not targets:
            return self._assign(self._writable())
        target = self.rng.choice(targets)
        type_ = self.scope[target]
        inputs = [self.expr(Type("bit", self.rng.choice(self.widths)), 1) for _ in range(self.rng.randrange(1, 4))]
        name, base, most = self.rng.choice(list(HASHES)), self.number(type_), self.rng.choice([1, 7, 256, 65535, 1 << 31])

        def run(values: Values) -> None:
            values[target] = type_.wrap(base + HASHES[name](packed(inputs, values)) % most)

        fields = ", ".join(expr.text for expr in inputs)
        return Statement(
            f"hash({target}, HashAlgorithm.{name}, {type_.bits}w{base}, {{ {fields} }}, 32w{most});", run
        )

    def _leave_statement(self, depth: int) -> Statement:
        word, error = self.rng.choice([("exit", Exit), ("return", Leave)])

        def run(values: Values) -> None:
            raise error

        return Statement(f"if ({(test := self.expr(BOOL, 1)).text}) {{ {word}; }}", lambda v: run(v) if test.of(v) else None)

    def _call_statement(self, depth: int) -> Statement:
        name = self.rng.choice(self._own_actions())
        types, run = self.actions[name]
        arguments = [self.expr(type_, 2) for type_ in types]
        self.valid = {"hdr.h0"}
        return Statement(
            f"{name.partition('.')[2]}({', '.join(expr.text for expr in arguments)});",
            lambda v: run(v, tuple(expr.of(v) for expr in arguments)),
        )

    def _apply_statement(self, depth: int) -> Statement:
        if not self.unapplied:
            return self._assign(self._writable())
        name = self.unapplied.pop()
        table = self.tables[f"{self.name}.{name}"]
        self.valid = {"hdr.h0"}

        def apply(values: Values) -> tuple[bool, str]:
            hit, action, arguments = table.lookup(values)
            self.actions[action][1](values, arguments)
            return hit, action

        form = self.rng.choice(["plain", "hit", "miss", "switch"]) if depth > 0 else "plain"
        if form == "plain":
            return Statement(f"{name}.apply();", lambda v: apply(v) and None)
        if form == "switch":
            cases = {action: self._branch(depth) for action in self.rng.sample(table.actions, self.rng.randrange(1, len(table.actions) + 1))}
            default, after = self._branch(depth)
            self.valid = {"hdr.h0"}
            lines = " ".join(f"{action.partition('.')[2]}: {body.text}" for action, (body, _) in cases.items())
            return Statement(
                f"switch ({name}.apply().action_run) {{ {lines} default: {default.text} }}",
                lambda v: cases.get(apply(v)[1], (default, after))[0].run(v),
            )
        yes, _ = self._branch(depth)
        no, _ = self._branch(depth)
        self.valid = {"hdr.h0"}
        return Statement(
            f"if ({name}.apply().{form}) {yes.text} else {no.text}",
            lambda v: (yes if apply(v)[0] == (form == "hit") else no).run(v),
        )

    # --- packets ---

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Return what leaves, and change registers and counters."""
        values: Values = dict.fromkeys([*self.metadata, *self.headers], 0)
        values |= {"at": 0, "size": 8 * len(frame), "frame": int.from_bytes(frame, "big"), "next": 0}
        names = ("instance_type", "checksum_error", "egress_rid", "egress_spec", "mcast_grp", "parser_error", "egress_port")
        values |= {f"sm.{name}": 0 for name in names} | {"sm.ingress_port": port}
        state = 0
        try:
            while state >= 0:
                ops, _, next_state = self.states[state]
                for op in ops:
                    op.run(values)
                state = next_state(values)
        except Leave:
            pass
        payload = frame[values["at"] // 8 :]
        if (checksum := self.verify(values)) is not None:
            values["sm.checksum_error"] = int(checksum != values["hdr.h0.check"])
        self.ingress(values)
        if values["sm.mcast_grp"]:
            copies = [(5, *copy) for copy in GROUPS.get(values["sm.mcast_grp"], [])]
        else:
            copies = [(0, values["sm.egress_spec"], 0)] if values["sm.egress_spec"] != DROP_PORT else []
        sent = []
        for instance, egress_port, rid in copies:
            copy = values | {"sm.instance_type": instance, "sm.egress_port": egress_port, "sm.egress_rid": rid, "sm.egress_spec": 0}
            self.egress(copy)
            if copy["sm.egress_spec"] != DROP_PORT:
                if (checksum := self.update(copy)) is not None:
                    copy["hdr.h0.check"] = checksum
                sent.append((egress_port, self._deparsed(copy) + payload))
        return sent

    def _deparsed(self, values: Values) -> bytes:
        data = b""
        for header, fields in self.headers.items():
            if values[header]:
                exprs = [Expr(name, type_, lambda v, name=name: v[f"{header}.{name}"]) for name, type_ in fields.items()]
                data += packed(exprs, values)
        return data


ERRORS = ("NoError", "PacketTooShort", "StackOutOfBounds", "HeaderTooShort")
