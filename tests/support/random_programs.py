"""Random P4 programs for v1model, and what they should do.

A program is written twice at once: as P4, and as Python functions that compute with Python's integers. The
latter, and what is around them here, know nothing of p4c's output and of the softswitch.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

DROP_PORT = 511
WIDTHS = (1, 2, 3, 5, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 40, 47, 48, 63, 64)
WIDE = (65, 72, 96, 127, 128)
ERRORS = ("NoError", "PacketTooShort", "StackOutOfBounds", "HeaderTooShort")
#: Multicast groups and clone sessions: (port, replication number) of each copy.
GROUPS = {1: [(1, 7), (2, 0)], 2: [(3, 65535), (3, 1), (4, 2)]}
SESSIONS = {100: [(4, 11), (5, 12)]}
_ARGUMENTS = "(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {"
_ALWAYS = frozenset(["hdr.h0"])


class Type(NamedTuple):
    """bit<W>, int<W>, or bool with one bit."""

    kind: str
    bits: int

    def __str__(self) -> str:
        return "bool" if self.kind == "bool" else f"{self.kind}<{self.bits}>"


class Expr(NamedTuple):
    """An expression in P4 and in Python, and its type."""

    p4: str
    py: str
    type: Type


BOOL, BIT, PORT = Type("bool", 1), Type("bit", 1), Type("bit", 9)


class Exit(Exception):
    """The program executed `exit`."""


class ParserError(Exception):
    """The parser stopped."""


def wrap(kind: str, bits: int, value: int) -> int:
    """Return a number modulo 2**bits, in two's complement if it is an `int`."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind == "int" and value >> bits - 1 else value


def clamp(kind: str, bits: int, value: int) -> int:
    """Return the nearest number of a type."""
    low = -(1 << bits - 1) if kind == "int" else 0
    return max(low, min(value, low + (1 << bits) - 1))


def packed(*values: tuple[int, int]) -> bytes:
    """Return (value, bits) side by side, and zeros up to a whole byte."""
    number = total = 0
    for value, bits in values:
        number, total = number << bits | wrap("bit", bits, value), total + bits
    return (number << -total % 8).to_bytes(-(-total // 8), "big")


def crc16(data: bytes) -> int:
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ 0xA001 * (value & 1)
    return value


def csum16(data: bytes) -> int:
    value = sum(byte << 8 * (1 - position % 2) for position, byte in enumerate(data))
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    return value ^ 0xFFFF


class Table(NamedTuple):
    """A table's match kinds and widths; its entries, with a counter each; its default; what is in the text."""

    keys: list[tuple[str, int]]
    entries: list[tuple[list[Any], str, tuple[int, ...], int]]
    counts: list[list[int]]
    default: tuple[str, tuple[int, ...]]
    const: bool

    def lookup(self, values: Sequence[int]) -> int | None:
        """Return the number of the entry that matches with the highest priority, or the longest prefix."""
        best: tuple[int, int] | None = None
        for number, (patterns, _, _, priority) in enumerate(self.entries):
            if all(map(_fits, self.keys, patterns, values)):
                lengths = [p[1] for (kind, _), p in zip(self.keys, patterns, strict=True) if kind == "lpm"]
                ordered = any(kind in ("ternary", "range") for kind, _ in self.keys)
                best = max(best or (-1, 0), (priority if ordered else sum(lengths), number))
        return None if best is None else best[1]


def _fits(key: tuple[str, int], pattern: Any, value: int) -> bool:
    kind, bits = key
    match kind:
        case "exact":
            return wrap("bit", bits, value) == pattern  # type: ignore[no-any-return]
        case "lpm":
            return value >> bits - pattern[1] == pattern[0] >> bits - pattern[1]  # type: ignore[no-any-return]
        case "range":
            return pattern[0] <= value <= pattern[1]  # type: ignore[no-any-return]
    return value & pattern[1] == pattern[0]  # type: ignore[no-any-return]


class RandomProgram:
    """A program of P4 in `text`, with `tables`, and `registers` and `counters` as `process` left them.

    again: packets are cloned, resubmitted and recirculated.
    """

    def __init__(self, seed: int, size: int = 8, widths: Sequence[int] = WIDTHS, again: bool = False) -> None:
        self.rng, self.widths, self.size, self.again = random.Random(seed), widths, size, again
        self._numbers = itertools.count()
        self._pool = [self.rng.getrandbits(self.rng.choice([4, 8, 16, 32, 64])) for _ in range(6)]
        self._p4 = ["#include <core.p4>", "#include <v1model.p4>"]
        self._py: list[str] = []
        self._indent = ""
        self.registers: dict[str, list[int]] = {}
        self.counters: dict[str, list[list[int]]] = {}
        self.tables: dict[str, Table] = {}
        self._declare_types()
        self._parser()
        self._control("I", {"sm.ingress_port": PORT})
        self._control("E", {"sm.egress_rid": Type("bit", 16), "sm.egress_port": PORT})
        for name, extern in (("V", "verify_checksum"), ("C", "update_checksum")):
            self._checksum(name, extern)
        self._p4 += [
            "control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }",
            "V1Switch(P(), V(), I(), E(), C(), D()) main;",
        ]
        self.text = "\n".join(self._p4)
        functions = (wrap, clamp, packed, crc16, csum16, Exit, ParserError)
        self._code: dict[str, Any] = {item.__name__: item for item in functions} | {"crc32": zlib.crc32}
        self._code |= {"extract": self._extract, "lookahead": self._lookahead, "apply": self._apply}
        self._code |= {
            "shift": self._shift,
            "accept": lambda v: None,
            "registers": self.registers,
            "counters": self.counters,
        }
        exec("\n".join(self._py), self._code)

    # --- writing ---

    def _line(self, p4: str, *py: str) -> None:
        self._p4.append(p4)
        self._py += [self._indent + line for line in py]

    @contextmanager
    def _block(self, p4: str, py: str, valid: str = "") -> Iterator[None]:
        """Write a block; `valid` names a header that is valid at its start."""
        self._line(p4 + " {", py)
        before, self._indent = (self._valid, self._locals), self._indent + " "
        self._valid = self._valid | ({valid} if valid else set())
        self._line("", "pass")
        yield
        self._valid, self._locals, self._indent = before[0] & self._valid, before[1], self._indent[1:]
        self._line("}")

    # --- expressions ---

    def _type(self) -> Type:
        kind = self.rng.choice(["bit", "bit", "bit", "int"])
        return Type(kind, max(self.rng.choice(self.widths), 2 if kind == "int" else 1))

    def _bits(self) -> Type:
        return Type("bit", self.rng.choice(self.widths))

    def _number(self, type_: Type) -> int:
        """Return a number of a type, often an edge of its range, or one that occurs elsewhere, too."""
        edge = self.rng.choice([0, 1, -1, 2, (1 << type_.bits - 1) - 1, 1 << type_.bits - 1])
        value = self.rng.choice([edge, self.rng.choice(self._pool), self.rng.getrandbits(type_.bits)])
        return wrap(*type_, value)

    def _constant(self, type_: Type) -> Expr:
        value = self._number(type_)
        if type_ == BOOL:
            return Expr(str(bool(value)).lower(), str(value), type_)
        digits = f"{type_.bits}{'s' if type_.kind == 'int' else 'w'}{abs(value)}"
        return Expr(f"(-{digits})" if value < 0 else digits, f"({value})", type_)

    def _scope(self) -> dict[str, Type]:
        """Return the variables that may be read here."""
        fields = {f"{h}.{name}": t for h in sorted(self._valid) for name, t in self._headers[h].items()}
        return self._visible | self._locals | fields

    def _variable(self, name: str) -> Expr:
        return Expr(name, name if name in self._locals else f'v["{name}"]', self._scope()[name])

    def _cast(self, expr: Expr, type_: Type) -> Expr:
        """Return an expression cast to a type, by as many casts as P4 needs."""
        source = expr.type
        if source == type_:
            return expr
        if type_ == BOOL:
            other = self._constant(source)
            return Expr(f"({expr.p4} != {other.p4})", f"int({expr.py} != {other.py})", BOOL)
        step = Type(source.kind, type_.bits)
        if source == BOOL:
            step = BIT
        elif source.kind == type_.kind or source.bits == type_.bits:
            step = type_
        return self._cast(
            Expr(f"(({step}){expr.p4})", f"wrap{(*step,)}".replace(")", f", {expr.py})"), step), type_
        )

    def _expr(self, type_: Type, depth: int) -> Expr:
        rng, depth = self.rng, depth - 1
        scope = self._scope()
        if depth < 0:
            if rng.random() < 0.2:
                return self._constant(type_)
            same = [name for name, declared in scope.items() if declared == type_]
            return self._cast(
                self._variable(rng.choice(same if same and rng.random() < 0.8 else list(scope))), type_
            )
        fit = f"{type_.kind!r}, {type_.bits}"
        if type_ == BOOL:
            form = rng.choice(["compare", "compare", "both", "not"])
            operand = self._type() if form == "compare" else BOOL
        else:
            forms = ["arithmetic", "arithmetic", "unary", "shift", "mux", "cast"]
            form = rng.choice(forms + (["slice", "join"] if type_.kind == "bit" else []))
            operand = type_
        a, b = self._expr(operand, depth), self._expr(operand, depth)
        match form:
            case "compare" | "both":
                op = rng.choice(
                    ["==", "!=", "<", "<=", ">", ">="] if form == "compare" else ["==", "!=", "&&", "||"]
                )
                word = {"&&": "and", "||": "or"}.get(op, op)
                return Expr(f"({a.p4} {op} {b.p4})", f"int({a.py} {word} {b.py})", BOOL)
            case "not":
                return Expr(f"(!{a.p4})", f"(1 - {a.py})", BOOL)
            case "arithmetic":
                op = rng.choice(["+", "-", "*", "&", "|", "^", "|+|", "|-|"])
                function = "clamp" if len(op) > 1 else "wrap"
                return Expr(
                    f"({a.p4} {op} {b.p4})", f"{function}({fit}, {a.py} {op.strip('|') or op} {b.py})", type_
                )
            case "unary":
                op = rng.choice("~-")
                return Expr(f"({op}{a.p4})", f"wrap({fit}, {op}{a.py})", type_)
            case "shift":
                count = rng.randrange(type_.bits + 2)
                by = rng.choice(
                    [Expr(str(count), str(count), BIT), self._expr(Type("bit", rng.choice([3, 6, 8])), depth)]
                )
                op = rng.choice(["<<", ">>"])
                return Expr(f"({a.p4} {op} {by.p4})", f"wrap({fit}, {a.py} {op} {by.py})", type_)
            case "mux":
                test = self._expr(BOOL, depth)
                return Expr(f"({test.p4} ? {a.p4} : {b.p4})", f"({a.py} if {test.py} else {b.py})", type_)
            case "slice":
                wide = self._expr(
                    Type("bit", rng.choice([w for w in (*self.widths, type_.bits) if w >= type_.bits])), depth
                )
                low = rng.randrange(wide.type.bits - type_.bits + 1)
                return Expr(
                    f"{wide.p4}[{low + type_.bits - 1}:{low}]", f"wrap({fit}, {wide.py} >> {low})", type_
                )
            case "join" if type_.bits > 1:
                low = rng.randrange(1, type_.bits)
                a, b = self._expr(Type("bit", type_.bits - low), depth), self._expr(Type("bit", low), depth)
                return Expr(f"({a.p4} ++ {b.p4})", f"({a.py} << {low} | {b.py})", type_)
        return self._cast(self._expr(rng.choice([self._type(), self._type(), BOOL]), depth), type_)

    # --- declarations and the parser ---

    def _declare_types(self) -> None:
        kinds: list[dict[str, Type]] = []
        for fields in ({"check": Type("bit", 16)}, {}, {}, {"more": BIT}):
            fields |= {f"f{n}": self._type() for n in range(self.rng.randrange(1, 5))}
            pad = -sum(type_.bits for type_ in fields.values()) % 8
            kinds.append(fields | ({"pad": Type("bit", pad)} if pad else {}))
        for number, fields in enumerate(kinds):
            self._line(
                f"header kind{number} {{ {' '.join(f'{type_} {name};' for name, type_ in fields.items())} }}"
            )
        self._stack = [f"hdr.s[{n}]" for n in range(self.rng.randrange(1, 4))]
        names = [*(f"hdr.h{n}" for n in range(4)), *self._stack]
        self._headers = dict(
            zip(names, [kinds[0], kinds[1], kinds[1], kinds[2], *[kinds[3]] * 3], strict=False)
        )
        self._line(
            f"struct headers_t {{ kind0 h0; kind1 h1; kind1 h2; kind2 h3; kind3[{len(self._stack)}] s; }}"
        )
        types = [
            Type("bit", 2),
            self._type(),
            *(self.rng.choice([self._type(), self._type(), BOOL]) for _ in range(5)),
        ]
        self._metadata = {f"md.m{n}": type_ for n, type_ in enumerate(types)}
        fields_text = " ".join(f"{'@field_list(1) ' * (n < 2)}{type_} m{n};" for n, type_ in enumerate(types))
        self._line(f"struct metadata_t {{ {fields_text} }}")
        self._valid: frozenset[str] = frozenset()
        self._locals: dict[str, Type] = {}
        self._visible: dict[str, Type] = dict(self._metadata)

    def _parser(self) -> None:
        self._line(
            "parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {"
        )
        names = ["start", "s1", "s2", "s3", "s4"]
        for number, name in enumerate(names):
            header, last = (f"hdr.h{number}", False) if number < 4 else ("hdr.s.last", True)
            with self._block(f"state {name}", f"def {name}(v):"):
                self._line(f"packet.extract({'hdr.s.next' if last else header});", f'extract(v, "{header}")')
                fields = self._headers[self._stack[0] if last else header]
                self._visible = self._metadata | {
                    f"{header}.{field}": type_ for field, type_ in fields.items()
                }
                if self.rng.random() < 0.5:
                    self._assign(list(self._metadata))
                if self.rng.random() < 0.3:
                    test = self._expr(BOOL, 2)
                    self._line(
                        f"verify({test.p4}, error.HeaderTooShort);", f"if not {test.py}: raise ParserError(3)"
                    )
                if self.rng.random() < 0.2:
                    skipped = self.rng.choice([8, 16, 24])
                    self._line(
                        f"packet.advance({skipped});", f"lookahead(v, {skipped})", f'v["at"] += {skipped}'
                    )
                following = [*names[number + 1 :], *([name] * 4 if last else []), "accept"]
                self._select([self._variable("hdr.s.last.more")] if last else [], following)
        self._line("}")

    def _select(self, keys: list[Expr], following: list[str]) -> None:
        """Write a transition; the last state, which is in `following` alone, always can accept."""
        rng = self.rng
        names = [name for name, type_ in self._scope().items() if type_.kind == "bit"]
        keys += [self._variable(rng.choice(names)) for _ in range(rng.randrange(1, 3) - len(keys))]
        if rng.random() < 0.3 and len(keys) < 3:
            bits = rng.choice([1, 3, 8, 16])
            keys.append(Expr(f"packet.lookahead<bit<{bits}>>()", f"lookahead(v, {bits})", Type("bit", bits)))
        self._line(
            f"transition select({', '.join(key.p4 for key in keys)}) {{",
            f"k = [{', '.join(key.py for key in keys)}]",
        )
        for _ in range(rng.randrange(1, 4)):
            rows = [self._pattern(f"k[{n}]", key.type) for n, key in enumerate(keys)]
            target = rng.choice(following)
            texts, tests = zip(*rows, strict=True)
            self._line(f"({', '.join(texts)}): {target};", f"if {' and '.join(tests)}: return {target}(v)")
        target = "accept" if following[-2:-1] == ["s4"] else rng.choice(following)
        self._line(f"default: {target}; }}", f"return {target}(v)")

    def _pattern(self, key: str, type_: Type) -> tuple[str, str]:
        """Return a pattern of a select, and the test that it means."""
        value, other = sorted((self._number(type_), self._number(type_)))
        match self.rng.choice(["value", "value", "mask", "range", "any"]):
            case "mask":
                return f"{value} &&& {other}", f"{key} & {other} == {value & other}"
            case "range" if type_.bits <= 8:
                return f"{value}..{other}", f"{value} <= {key} <= {other}"
            case "any":
                return "_", "True"
        return str(value), f"{key} == {value}"

    # --- controls ---

    def _checksum(self, name: str, extern: str) -> None:
        fields = {field: type_ for field, type_ in self._headers["hdr.h0"].items() if field != "check"}
        chosen = self.rng.sample(sorted(fields), self.rng.randrange(1, len(fields) + 1))
        inputs = ", ".join(f"hdr.h0.{field}" for field in chosen)
        call = f"{extern}(hdr.h0.isValid(), {{ {inputs} }}, hdr.h0.check, HashAlgorithm.csum16);"
        used = self.rng.random() < 0.5
        self._line(
            f"control {name}(inout headers_t hdr, inout metadata_t md) {{ apply {{ {call * used} }} }}"
        )
        values = ", ".join(f'(v["hdr.h0.{field}"], {fields[field].bits})' for field in chosen)
        self._line("", f"def {name}(v): return csum16(packed({values})) if {used} and v['hdr.h0'] else None")

    def _control(self, name: str, readable: dict[str, Type]) -> None:
        self._name, self._applied, self._actions = name, [], {}
        self._visible = (
            self._metadata | readable | {"sm.instance_type": Type("bit", 32), "sm.checksum_error": BIT}
        )
        self._visible["sm.egress_spec"] = PORT
        self._valid, self._locals, self._in_action = _ALWAYS, {}, True
        self._line(f"control {name}{_ARGUMENTS}")
        self._cells = {f"r{next(self._numbers)}": self._bits() for _ in range(2)}
        for cell, type_ in self._cells.items():
            size = self.rng.choice([1, 4, 8])
            self.registers[f"{name}.{cell}"] = [0] * size
            self.counters[f"{name}.{cell}_c"] = [[0, 0] for _ in range(size)]
            self._line(f"register<{type_}>({size}) {cell}; counter({size}, CounterType.packets) {cell}_c;")
        for _ in range(self.rng.randrange(1, 4)):
            self._action()
        self._unapplied = [self._table() for _ in range(self.rng.randrange(1, 4))]
        self._in_action = False
        with self._block("apply", f"def {name}(v):"):
            if name == "I":
                # p4c leaves out the parser's assignments that only packets with an error would show.
                zeros = [
                    f"{field} = {'false' if type_ == BOOL else 0};" for field, type_ in self._metadata.items()
                ]
                self._line("sm.egress_spec = sm.ingress_port;", 'v["sm.egress_spec"] = v["sm.ingress_port"]')
                zeroed = f"v.update(dict.fromkeys({list(self._metadata)}, 0))"
                self._line(
                    f"if (sm.parser_error != error.NoError) {{ {' '.join(zeros)} }}",
                    f'if v["error"]: {zeroed}',
                )
            with self._block("if (hdr.h0.isValid())", 'if v["hdr.h0"]:'):
                for _ in range(self.size):
                    self._statement(3)
        self._line("}")

    def _action(self) -> None:
        name = f"a{next(self._numbers)}"
        params = {f"{name}_p{n}": self._bits() for n in range(self.rng.randrange(3))}
        declared = ", ".join(f"{type_} {param}" for param, type_ in params.items())
        with self._block(
            f"action {name}({declared})", f"def {self._name}_{name}({', '.join(['v', *params])}):"
        ):
            self._locals = dict(params)
            for _ in range(self.rng.randrange(1, 4)):
                self._statement(2)
        self._actions[name] = list(params.values())

    def _choice(self, actions: Sequence[str]) -> tuple[str, tuple[int, ...]]:
        name = self.rng.choice(actions)
        return name, tuple(map(self._number, self._actions[name]))

    def _table(self) -> str:
        rng, name, keys = self.rng, f"t{next(self._numbers)}", []
        for number in range(rng.randrange(1, 4)):
            kind = rng.choice(["exact", "exact", "ternary", "range"] + ["lpm", "lpm"] * (number == 0))
            type_ = Type("bit", rng.choice([bits for bits in self.widths if bits <= 64]))
            keys.append((kind, self._expr(type_, rng.choice([0, 0, 2]))))
        actions = rng.sample(sorted(self._actions), rng.randrange(1, len(self._actions) + 1))
        table = Table(
            [(kind, key.type.bits) for kind, key in keys], [], [], self._choice(actions), rng.random() < 0.3
        )
        texts: list[str] = []
        for priority in range(50, 50 - rng.randrange(1, 7), -1):
            text, patterns = zip(*(self._match(*key) for key in table.keys), strict=True)
            if all(list(patterns) != entry[0] for entry in table.entries):
                action, arguments = self._choice(actions)
                table.entries.append((list(patterns), action, arguments, priority))
                table.counts.append([0, 0])
                texts.append(f"({', '.join(text)}): {action}({', '.join(map(str, arguments))});")
        self.tables[f"{self._name}.{name}"] = table
        key_text = " ".join(f'{key.p4}: {kind} @name("k{n}");' for n, (kind, key) in enumerate(keys))
        action, arguments = table.default
        entries = f"const entries = {{ {' '.join(texts)} }}" if table.const else ""
        self._line(
            f"direct_counter(CounterType.packets_and_bytes) {name}_c; table {name} {{ key = {{ {key_text} }} "
            f"actions = {{ {'; '.join(actions)}; }} {entries} counters = {name}_c; size = 64; "
            f"default_action = {action}({', '.join(map(str, arguments))}); }}"
        )
        key_values = "".join(f"{key.py}, " for _, key in keys)
        self._line(
            "", f'def {self._name}_{name}(v): return apply(v, "{self._name}", "{name}", ({key_values}))'
        )
        return name

    def _match(self, kind: str, bits: int) -> tuple[str, Any]:
        """Return what an entry has for a key, in P4 and for the softswitch."""
        top, (low, high) = (1 << bits) - 1, sorted(self._number(Type("bit", bits)) for _ in range(2))
        match kind:
            case "exact":
                return str(low), low
            case "lpm":
                length = self.rng.randrange(bits + 1)
                mask = top ^ top >> length
                return f"{low & mask} &&& {mask}", (low & mask, length)
            case "range":
                return f"{low}..{high}", (low, high)
        return f"{low & high} &&& {high}", (low & high, high)

    # --- statements ---

    def _assign(self, names: Sequence[str]) -> None:
        """Write an assignment to one of these variables, or to some of its bits."""
        target = self._variable(self.rng.choice(names))
        if target.type.kind == "bit" and target.type.bits > 2 and self.rng.random() < 0.25:
            low, high = sorted(self.rng.sample(range(target.type.bits), 2))
            part, mask = self._expr(Type("bit", high - low + 1), 3), (1 << high + 1) - (1 << low)
            value = f"{target.py} & ~{mask} | {part.py} << {low}"
            self._line(f"{target.p4}[{high}:{low}] = {part.p4};", f"{target.py} = {value}")
        else:
            self._set(target.p4, self._expr(target.type, self.rng.randrange(4)))

    def _set(self, name: str, expr: Expr) -> None:
        self._line(f"{name} = {expr.p4};", f"{name if name in self._locals else f'v[{name!r}]'} = {expr.py}")

    def _writable(self, kind: str = "") -> list[str]:
        """Return the variables that may be changed here, of one kind; parameters of actions may not."""
        return [
            name
            for name, type_ in self._scope().items()
            if not name.startswith(("sm.", "a")) and kind in type_.kind
        ]

    def _statement(self, depth: int) -> None:
        kinds = ["assign"] * 4 + ["register", "count", "hash", "local", "validity", "port"]
        kinds += ["branch", "branch", "guard", "guard"] * (depth > 0) + ["leave"] * (depth < 3)
        kinds += [] if self._in_action else ["apply"] * 3 + ["call", "shift"] + ["again"] * self.again
        getattr(self, f"_write_{self.rng.choice(kinds)}")(depth)

    def _body(self, depth: int) -> None:
        for _ in range(self.rng.randrange(1, 3)):
            self._statement(depth - 1)

    def _write_assign(self, depth: int) -> None:
        self._assign(self._writable())

    def _write_local(self, depth: int) -> None:
        name, type_ = f"x{next(self._numbers)}", self.rng.choice([self._type(), BOOL])
        expr = self._expr(type_, 2)
        self._locals = {**self._locals, name: type_}
        self._line(f"{type_} {name} = {expr.p4};", f"{name} = {expr.py}")

    def _write_branch(self, depth: int) -> None:
        test = self._expr(BOOL, 2)
        if self._name == "I" and self.rng.random() < 0.2:
            code = self.rng.randrange(len(ERRORS))
            test = Expr(f"sm.parser_error == error.{ERRORS[code]}", f'v["error"] == {code}', BOOL)
        with self._block(f"if ({test.p4})", f"if {test.py}:"):
            self._body(depth)
        with self._block("else", "else:"):
            self._body(depth)

    def _write_guard(self, depth: int) -> None:
        header = self.rng.choice(list(self._headers))
        with self._block(f"if ({header}.isValid())", f'if v["{header}"]:', header):
            self._body(depth)

    def _write_validity(self, depth: int) -> None:
        header = self.rng.choice([name for name in self._headers if name != "hdr.h0"])
        match self.rng.choice(["valid", "invalid", "copy"]):
            case "valid":
                values = {name: self._expr(type_, 1) for name, type_ in self._headers[header].items()}
                self._valid |= {header}
                self._line(f"{header}.setValid();", f'v["{header}"] = 1')
                for name, expr in values.items():
                    self._set(f"{header}.{name}", expr)
            case "copy" if header in ("hdr.h1", "hdr.h2"):
                other = "hdr.h2" if header == "hdr.h1" else "hdr.h1"
                self._valid = self._valid - {header} | ({header} if other in self._valid else set())
                names = ["", *(f".{name}" for name in self._headers[header])]
                self._line(
                    f"{header} = {other};", *(f"v['{header}{name}'] = v['{other}{name}']" for name in names)
                )
            case _:
                self._valid -= {header}
                self._line(f"{header}.setInvalid();", f'v["{header}"] = 0')

    def _write_shift(self, depth: int) -> None:
        self._valid -= set(self._stack)
        count, pushed = self.rng.randrange(1, len(self._stack) + 1), self.rng.random() < 0.5
        self._line(
            f"hdr.s.{'push' if pushed else 'pop'}_front({count});", f"shift(v, {count if pushed else -count})"
        )

    def _write_port(self, depth: int) -> None:
        match self.rng.choice(["drop", "group", "port", "port", "port"]):
            case "drop":
                self._line("mark_to_drop(sm);", f'v["sm.egress_spec"], v["sm.mcast_grp"] = {DROP_PORT}, 0')
            case "group" if self._name == "I":
                self._set("sm.mcast_grp", self._cast(self._expr(Type("bit", 2), 2), Type("bit", 16)))
            case _:
                self._set("sm.egress_spec", self._expr(PORT, 2))

    def _write_register(self, depth: int) -> None:
        name, type_ = self.rng.choice(list(self._cells.items()))
        cells = f"{self._name}.{name}"
        index = self._index(len(self.registers[cells]))
        cell = f"registers['{cells}'][{index.py}]"
        targets = [target for target in self._writable() if self._scope()[target] == type_]
        if targets and self.rng.random() < 0.6:
            target = self._variable(self.rng.choice(targets))
            self._line(f"{name}.read({target.p4}, {index.p4});", f"{target.py} = {cell}")
        else:
            value = self._expr(type_, 2)
            self._line(f"{name}.write({index.p4}, {value.p4});", f"{cell} = {value.py}")

    def _index(self, size: int) -> Expr:
        index = self._expr(Type("bit", 32), 2)
        return Expr(f"({index.p4} & {size - 1})", f"{index.py} & {size - 1}", index.type)

    def _write_count(self, depth: int) -> None:
        name = self.rng.choice(list(self._cells))
        index = self._index(len(self.registers[f"{self._name}.{name}"]))
        cell = f'counters["{self._name}.{name}_c"][{index.py}]'
        self._line(f"{name}_c.count({index.p4});", f"c = {cell}", "c[0] += 1", 'c[1] += v["size"] // 8')

    def _write_hash(self, depth: int) -> None:
        target = self._variable(self.rng.choice(self._writable("bit") or ["hdr.h0.check"]))
        inputs = [self._expr(self._bits(), 1) for _ in range(self.rng.randrange(1, 4))]
        name, base = self.rng.choice(["crc16", "crc32", "csum16"]), self._number(target.type) & (1 << 64) - 1
        most = self.rng.choice([1, 7, 256, 65535, 1 << 31])
        p4, py = ", ".join(expr.p4 for expr in inputs), ", ".join(f"({e.py}, {e.type.bits})" for e in inputs)
        self._line(
            f"hash({target.p4}, HashAlgorithm.{name}, {target.type.bits}w{base}, {{ {p4} }}, 32w{most});",
            f"{target.py} = wrap('bit', {target.type.bits}, {base} + {name}(packed({py})) % {most})",
        )

    def _write_leave(self, depth: int) -> None:
        test, (p4, py) = self._expr(BOOL, 1), self.rng.choice([("exit", "raise Exit"), ("return", "return")])
        self._line(f"if ({test.p4}) {{ {p4}; }}", f"if {test.py}: {py}")

    def _write_call(self, depth: int) -> None:
        name = self.rng.choice(sorted(self._actions))
        arguments = [self._expr(type_, 2) for type_ in self._actions[name]]
        values = "".join(f", {expr.py}" for expr in arguments)
        self._line(f"{name}({', '.join(expr.p4 for expr in arguments)});", f"{self._name}_{name}(v{values})")
        self._valid = _ALWAYS

    def _write_apply(self, depth: int) -> None:
        if not self._unapplied:
            return self._write_assign(depth)
        name = self._unapplied.pop()
        call, self._valid = f"{self._name}_{name}(v)", _ALWAYS
        match self.rng.choice(["plain", "hit", "miss", "switch"] if depth else ["plain"]):
            case "plain":
                self._line(f"{name}.apply();", call)
            case "switch":
                self._line(f"switch ({name}.apply().action_run) {{", f"_, ran = {call}")
                named = {entry[1] for entry in self.tables[f"{self._name}.{name}"].entries}
                for action in self.rng.sample(sorted(named), self.rng.randrange(1, len(named) + 1)):
                    with self._block(f"{action}:", f"if ran == '{action}':"):
                        self._line("", "ran = None")
                        self._body(depth)
                with self._block("default:", "if ran:"):
                    self._body(depth)
                self._line("}")
            case form:
                test = f"{call}[0]" if form == "hit" else f"not {call}[0]"
                with self._block(f"if ({name}.apply().{form})", f"if {test}:"):
                    self._body(depth)
                with self._block("else", "else:"):
                    self._body(depth)

    def _write_again(self, depth: int) -> None:
        """Write a clone, a resubmission or a recirculation, at most three times for each packet."""
        calls = {
            "I": {"resubmit": "resubmit_preserving_field_list(1)"},
            "E": {"recirculate": "recirculate_preserving_field_list(1)"},
        }
        clone = f"clone_preserving_field_list(CloneType.{self._name}2E, 100, 1)"
        word, call = self.rng.choice([*calls[self._name].items(), ("clone", clone)])
        with self._block(
            "if (md.m0 < 3 && (sm.instance_type != 1 && sm.instance_type != 2))",
            'if v["md.m0"] < 3 and v["sm.instance_type"] not in (1, 2):',
        ):
            self._line(f"md.m0 = md.m0 + 1; {call};", 'v["md.m0"] += 1', f'v["{word}"] = 1')

    # --- what generated functions call ---

    def _extract(self, v: dict[str, Any], header: str) -> None:
        """Extract a header; hdr.s.last is the next element of the stack."""
        element = header
        if header == "hdr.s.last":
            if v["next"] == len(self._stack):
                raise ParserError(2)
            element = self._stack[v["next"]]
        fields = self._headers[element]
        self._lookahead(v, sum(type_.bits for type_ in fields.values()))
        for name, type_ in fields.items():
            v["at"] += type_.bits
            value = wrap(*type_, v["frame"] >> v["size"] - v["at"])
            v[f"{element}.{name}"] = v[f"{header}.{name}"] = value
        v[element], v["next"] = 1, v["next"] + (element != header)

    def _lookahead(self, v: dict[str, Any], bits: int) -> int:
        if v["at"] + bits > v["size"]:
            raise ParserError(1)
        return wrap("bit", bits, v["frame"] >> v["size"] - v["at"] - bits)

    def _apply(self, v: dict[str, Any], control: str, name: str, keys: Sequence[int]) -> tuple[bool, str]:
        table = self.tables[f"{control}.{name}"]
        number = table.lookup(keys)
        action, arguments = table.default
        if number is not None:
            _, action, arguments, _ = table.entries[number]
            table.counts[number][0] += 1
            table.counts[number][1] += v["size"] // 8
        self._code[f"{control}_{action}"](v, *arguments)
        return number is not None, action

    def _shift(self, v: dict[str, Any], count: int) -> None:
        """Push elements of the stack, or pop them if `count` is negative."""
        old = dict(v)
        for number, header in enumerate(self._stack):
            source = number - count
            for name in ("", *(f".{name}" for name in self._headers[header])):
                v[header + name] = old[f"hdr.s[{source}]{name}"] if 0 <= source < len(self._stack) else 0

    # --- packets ---

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Return what leaves of a frame; a packet's clones leave before it, or after if egress made them."""
        sent: list[tuple[int, bytes]] = []
        # Packets that wait: their kind, and their variables, or what makes them: port, bytes, and metadata.
        waiting: list[tuple[int, Any]] = [(0, (port, frame, {}))]
        while waiting:
            kind, item = waiting.pop(0)
            v = item if isinstance(item, dict) else self._parsed(*item)
            copies = [(kind, *copy) for copy in SESSIONS[100]] if kind in (1, 2) else v.get("copies", [])
            if kind == 1:
                v |= self._kept_metadata(item[2])
            if kind in (0, 4, 6):
                v["sm.instance_type"] = kind
                self._run("I", v)
                copies = self._copies(v)
                kept = {name: v[name] for name in ("md.m0", "md.m1")}
                if v.pop("clone", 0):
                    waiting.append((1, (0, v["bytes"], kept)))
                    if copies and not v["resubmit"]:
                        waiting.append((8, v | {"copies": copies}))
                        copies = []
                if v["resubmit"]:
                    waiting.append((6, (0, v["bytes"], kept)))
                    copies = []
            for instance, egress_port, rid in copies:
                copy = {"sm.instance_type": instance, "sm.egress_port": egress_port, "sm.egress_rid": rid}
                self._egress(v | copy | {"sm.egress_spec": 0, "clone": 0}, waiting, sent)
        return sent

    def _copies(self, v: dict[str, Any]) -> list[tuple[int, int, int]]:
        """Return instance type, port and replication number of each copy that leaves ingress."""
        if v["sm.mcast_grp"]:
            return [(5, *copy) for copy in GROUPS.get(v["sm.mcast_grp"], [])]
        return [] if v["sm.egress_spec"] == DROP_PORT else [(0, v["sm.egress_spec"], 0)]

    def _egress(self, v: dict[str, Any], waiting: list[Any], sent: list[Any]) -> None:
        """Run egress, and send what leaves it."""
        self._run("E", v)
        kept = {name: v[name] for name in ("md.m0", "md.m1")}
        if v["clone"]:
            waiting.append((2, v | self._kept_metadata(kept)))
        if v["sm.egress_spec"] != DROP_PORT:
            if (checksum := self._code["C"](v)) is not None:
                v["hdr.h0.check"] = checksum
            headers = [header for header in self._headers if v[header]]
            data = b"".join(
                packed(*((v[f"{h}.{name}"], t.bits) for name, t in self._headers[h].items())) for h in headers
            )
            data += v["bytes"][v["at"] // 8 :]
            if v["recirculate"]:
                waiting.append((4, (0, data, kept)))
            else:
                sent.append((v["sm.egress_port"], data))

    def _kept_metadata(self, kept: dict[str, int]) -> dict[str, int]:
        """Return all metadata of a clone, which keeps only some."""
        intrinsic = (
            "checksum_error",
            "egress_rid",
            "egress_spec",
            "mcast_grp",
            "ingress_port",
            "instance_type",
        )
        zeros = dict.fromkeys([*self._metadata, *(f"sm.{name}" for name in intrinsic)], 0)
        return zeros | kept | {"clone": 0, "resubmit": 0, "recirculate": 0}

    def _run(self, control: str, v: dict[str, Any]) -> None:
        try:
            self._code[control](v)
        except Exit:
            pass

    def _parsed(self, port: int, frame: bytes, kept: dict[str, int]) -> dict[str, Any]:
        """Return the variables of a packet that has passed the parser and the verification of checksums."""
        v: dict[str, Any] = self._kept_metadata(kept) | {"sm.ingress_port": port, "error": 0}
        v |= {f"{header}.{name}": 0 for header, fields in self._headers.items() for name in fields}
        v |= dict.fromkeys(self._headers, 0) | {"at": 0, "next": 0, "size": 8 * len(frame), "bytes": frame}
        v["frame"] = int.from_bytes(frame, "big")
        try:
            self._code["start"](v)
        except ParserError as error:
            v["error"] = error.args[0]
        if (checksum := self._code["V"](v)) is not None:
            v["sm.checksum_error"] = int(checksum != v["hdr.h0.check"])
        return v
