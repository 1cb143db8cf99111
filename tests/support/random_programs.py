"""Random P4 programs for v1model, and what they should do.

A program is written twice at once: as P4, and as Python functions that compute with Python's integers. The
latter, and what calls them here, know nothing of p4c's output and of the softswitch.
"""

import itertools
import random
import zlib
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

DROP_PORT = 511
WIDTHS = (1, 2, 3, 5, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 40, 47, 48, 63, 64)
WIDE = (65, 72, 96, 127, 128)
ERRORS = ("NoError", "PacketTooShort", "StackOutOfBounds", "HeaderTooShort")
#: Multicast groups and clone sessions: (port, replication number) of each copy.
GROUPS = {1: [(1, 7), (2, 0)], 2: [(3, 65535), (3, 1), (4, 2)]}
SESSIONS = {100: [(4, 11), (5, 12)]}
_FRESH, _INGRESS_CLONE, _EGRESS_CLONE, _RECIRCULATED, _REPLICA, _RESUBMITTED, _DEFERRED = 0, 1, 2, 4, 5, 6, 8
_ARGUMENTS = "inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {"
_ALWAYS = frozenset(["hdr.h0"])
#: Variables that statements must not assign to: parameters, and what limits the copies of a packet.
_READ_ONLY = ("sm.", "a", "md.m0", "hdr.s.last")
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
#: Expressions of a type in P4 and in Python: a and b are of the same type, c is a count, t and u are Boolean.
_NUMBERS = [(f"({{a}} {op} {{b}})", f"wrap(%s, {{a}} {op} {{b}})") for op in ("+", "-", "*", "&", "|", "^")]
_NUMBERS += [(f"({{a}} |{op}| {{b}})", f"clamp(%s, {{a}} {op} {{b}})") for op in "+-"]
_NUMBERS += [(f"({op}{{a}})", f"wrap(%s, {op}{{a}})") for op in "~-"]
_NUMBERS += [(f"({{a}} {op} {{c}})", f"wrap(%s, {{a}} {op} {{c}})") for op in ("<<", ">>")] * 2
_NUMBERS += [("({t} ? {a} : {b})", "({a} if {t} else {b})")] * 2
_BOOLEANS = [(f"({{a}} {op} {{b}})", f"int({{a}} {op} {{b}})") for op in _COMPARISONS]
_BOOLEANS += [("({t} && {u})", "({t} & {u})"), ("({t} || {u})", "({t} | {u})"), ("(!{t})", "(1 - {t})")]
_BOOLEANS += [("({t} == {u})", "int({t} == {u})"), ("({t} != {u})", "({t} ^ {u})")]


class Type(NamedTuple):
    """bit<W>, int<W>, or bool with one bit."""

    kind: str
    bits: int

    def __str__(self):
        return "bool" if self.kind == "bool" else f"{self.kind}<{self.bits}>"


BOOL, BIT, PORT = Type("bool", 1), Type("bit", 1), Type("bit", 9)


class Expr(NamedTuple):
    """An expression in P4 and in Python, and its type."""

    p4: str
    py: str
    type: Type


class Table(NamedTuple):
    """The match kinds and widths of a table's keys, its entries with their counters, and its default.

    const: the entries are in the program's text.
    """

    keys: list[tuple[str, int]]
    entries: list[tuple[tuple[Any, ...], str, tuple[int, ...], int]]
    counts: list[list[int]]
    default: tuple[str, tuple[int, ...]]
    const: bool

    def lookup(self, values):
        """Return the number of the matching entry with the highest priority or the longest prefix."""
        ordered = any(kind in ("ternary", "range") for kind, _ in self.keys)
        ranks = []
        for number, (patterns, _, _, priority) in enumerate(self.entries):
            if all(map(matches, self.keys, patterns, values)):
                prefixes = [p[1] for p, (kind, _) in zip(patterns, self.keys, strict=True) if kind == "lpm"]
                ranks.append((priority if ordered else sum(prefixes), number))
        return max(ranks)[1] if ranks else None


def matches(key, pattern, value):
    """Return whether a table's key, of a kind and of so many bits, matches a value."""
    match key:
        case "exact", _:
            return bool(value == pattern)
        case "lpm", bits:
            return bool(value >> bits - pattern[1] == pattern[0] >> bits - pattern[1])
        case "range", _:
            return bool(pattern[0] <= value <= pattern[1])
    return bool(value & pattern[1] == pattern[0])


# --- what generated functions call ----------------------------------------------------------------


class Exit(Exception):  # noqa: N818 - not an error
    """The program executed `exit`."""


class ParserError(Exception):
    """The parser stopped with an error, by its number."""


def wrap(kind, bits, value):
    """Return a number modulo 2**bits, in two's complement if it is an `int`."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind == "int" and value >> bits - 1 else value


def clamp(kind, bits, value):
    """Return the nearest number of a type."""
    low = -(1 << bits - 1) if kind == "int" else 0
    return max(low, min(value, low + (1 << bits) - 1))


def packed(*values):
    """Return (value, bits) side by side, and zeros up to a whole byte."""
    text = "".join(f"{value & (1 << bits) - 1:0{bits}b}" for value, bits in values)
    text += "0" * (-len(text) % 8)
    return int(text or "0", 2).to_bytes(len(text) // 8, "big")


def crc16(data):
    """Return CRC-16/ARC, by its definition: the bits of each byte from the lowest."""
    value = 0
    for bit in (byte >> place & 1 for byte in data for place in range(8)):
        value = value >> 1 ^ 0xA001 * ((value ^ bit) & 1)
    return value


def csum16(data):
    value = sum(byte << 8 * (1 - position % 2) for position, byte in enumerate(data))
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    return value ^ 0xFFFF


def lookahead(v, bits):
    """Return the next bits of the packet."""
    if v["at"] + bits > v["size"]:
        raise ParserError(1)
    return wrap("bit", bits, v["frame"] >> v["size"] - v["at"] - bits)


class RandomProgram:
    """A program of P4 in `text`, with `tables`, and `registers` and `counters` as `process` left them.

    again: packets are cloned, resubmitted and recirculated.
    """

    def __init__(self, seed, size=8, widths=WIDTHS, again=False):
        self.rng, self._widths, self._size, self._again = random.Random(seed), widths, size, again
        self._numbers = itertools.count()
        self._pool = [self.rng.getrandbits(self.rng.choice([4, 8, 16, 32, 64])) for _ in range(6)]
        self._p4, self._py, self._indent = ["#include <core.p4>", "#include <v1model.p4>"], [""], ""
        self.registers = {}
        self.counters = {}
        self.tables = {}
        self._write_types()
        self._write_parser()
        self._write_control("I", {"sm.ingress_port": PORT})
        self._write_control("E", {"sm.egress_rid": Type("bit", 16), "sm.egress_port": PORT})
        self._write_checksum("V", "verify_checksum")
        self._write_checksum("C", "update_checksum")
        self._line("control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }")
        self._line("V1Switch(P(), V(), I(), E(), C(), D()) main;")
        self.text = "\n".join(self._p4)
        self._code = globals() | {
            "crc32": zlib.crc32, "accept": lambda v: None, "extract": self._extract, "apply": self._apply,
            "shift": self._shift, "registers": self.registers, "counters": self.counters,
        }  # fmt: skip
        exec("\n".join(self._py), self._code)

    # --- writing ---

    def _line(self, p4, *py):
        self._p4.append(p4)
        self._py += [self._indent + line for line in py]

    @contextmanager
    def _block(self, p4, py, valid=""):
        """Write a block; `valid` names a header that is valid at its start."""
        before, local = self._valid, self._locals
        self._line(p4 + " {", py, " pass")
        self._valid, self._indent = before | ({valid} if valid else set()), self._indent + " "
        yield
        self._valid, self._locals, self._indent = before & self._valid, local, self._indent[1:]
        self._line("}")

    # --- expressions ---

    def _type(self, kinds=("bit", "bit", "bit", "int")):
        kind = self.rng.choice(kinds)
        return Type(kind, max(self.rng.choice(self._widths), 2 if kind == "int" else 1))

    def _number(self, type_):
        """Return a number of a type, often an edge of its range, or one that occurs elsewhere, too."""
        edges = [0, 1, -1, 2, (1 << type_.bits - 1) - 1, 1 << type_.bits - 1]
        return wrap(*type_, self.rng.choice([*edges, *self._pool, *[self.rng.getrandbits(type_.bits)] * 6]))

    def _constant(self, type_):
        value = self._number(type_)
        if type_ == BOOL:
            return Expr(str(bool(value)).lower(), str(value), type_)
        digits = f"{type_.bits}{'s' if type_.kind == 'int' else 'w'}{abs(value)}"
        return Expr(f"(-{digits})" if value < 0 else digits, f"({value})", type_)

    def _scope(self):
        """Return the variables that may be read here."""
        fields = {f"{h}.{name}": t for h in sorted(self._valid) for name, t in self._headers[h].items()}
        return self._visible | self._locals | fields

    def _variable(self, name):
        return Expr(name, name if name in self._locals else f'v["{name}"]', self._scope()[name])

    def _cast(self, expr, type_):
        """Return an expression cast to a type, by as many casts as P4 needs."""
        source = expr.type
        if source == type_:
            return expr
        if type_ == BOOL:
            other = self._constant(source)
            return Expr(f"({expr.p4} != {other.p4})", f"int({expr.py} != {other.py})", BOOL)
        step = Type(source.kind, type_.bits) if source != BOOL else BIT
        if source != BOOL and type_.kind != source.kind and source.bits == type_.bits:
            step = type_
        py = f"wrap('{step.kind}', {step.bits}, {expr.py})"
        return self._cast(Expr(f"(({step}){expr.p4})", py, step), type_)

    def _leaf(self, type_):
        if self.rng.random() < 0.2:
            return self._constant(type_)
        scope = self._scope()
        names = [name for name, declared in scope.items() if declared == type_ or self.rng.random() < 0.1]
        return self._cast(self._variable(self.rng.choice(names or list(scope))), type_)

    def _expr(self, type_, depth=2):
        if depth == 0:
            return self._leaf(type_)
        rng, bits = self.rng, type_.bits
        match rng.choice(["cast", "slice", "join", *["operator"] * 6]):
            case "cast":
                return self._cast(self._expr(rng.choice([self._type(), BOOL]), depth - 1), type_)
            case "slice" if type_.kind == "bit" and bits <= max(self._widths):
                whole = self._expr(Type("bit", rng.choice([w for w in self._widths if w >= bits])), depth - 1)
                low = rng.randrange(whole.type.bits - bits + 1)
                p4 = f"{whole.p4}[{low + bits - 1}:{low}]"
                return Expr(p4, f"wrap('bit', {bits}, {whole.py} >> {low})", type_)
            case "join" if type_.kind == "bit" and bits > 1:
                low = rng.randrange(1, bits)
                left, right = (self._expr(Type("bit", part), depth - 1) for part in (bits - low, low))
                return Expr(f"({left.p4} ++ {right.p4})", f"({left.py} << {low} | {right.py})", type_)
        forms = rng.choice(_BOOLEANS if type_ == BOOL else _NUMBERS)
        operand = self._type() if type_ == BOOL else type_
        count = rng.choice([Type("bit", 3), Type("bit", 6), Type("bit", 8), None])
        kinds = {"a": operand, "b": operand, "c": count, "t": BOOL, "u": BOOL}
        places = str(rng.randrange(bits + 2))
        used = {name: kind for name, kind in kinds.items() if f"{{{name}}}" in forms[0]}
        count = Expr(places, places, BIT)
        parts = {name: self._expr(kind, depth - 1) if kind else count for name, kind in used.items()}
        p4 = forms[0].format(**{name: part.p4 for name, part in parts.items()})
        py = forms[1].replace("%s", f"'{type_.kind}', {bits}")
        return Expr(p4, py.format(**{name: part.py for name, part in parts.items()}), type_)

    # --- types and the parser ---

    def _write_types(self):
        kinds = []
        for number, first in enumerate([{"check": Type("bit", 16)}, {}, {}, {"more": BIT}]):
            fields = first | {f"f{n}": self._type() for n in range(self.rng.randrange(1, 5))}
            pad = -sum(type_.bits for type_ in fields.values()) % 8
            fields |= {"pad": Type("bit", pad)} if pad else {}
            kinds.append(fields)
            text = " ".join(f"{type_} {name};" for name, type_ in fields.items())
            self._line(f"header kind{number} {{ {text} }}")
        self._stack = [f"hdr.s[{n}]" for n in range(self.rng.randrange(1, 4))]
        names = ["hdr.h0", "hdr.h1", "hdr.h2", "hdr.h3", *self._stack]
        order = [0, 1, 1, 2, 3, 3, 3]
        self._headers = {name: kinds[number] for name, number in zip(names, order, strict=False)}
        elements = f"kind3[{len(self._stack)}] s;"
        self._line(f"struct headers_t {{ kind0 h0; kind1 h1; kind1 h2; kind2 h3; {elements} }}")
        types = [Type("bit", 2), self._type(), BOOL, *(self._type() for _ in range(4))]
        self._metadata = {f"md.m{n}": type_ for n, type_ in enumerate(types)}
        text = " ".join(f"{'@field_list(1) ' * (n < 2)}{type_} m{n};" for n, type_ in enumerate(types))
        self._line(f"struct metadata_t {{ {text} }}")
        self._valid = frozenset()
        self._locals = {}
        self._visible = dict(self._metadata)

    def _write_parser(self):
        self._line(f"parser P(packet_in packet, {_ARGUMENTS[2:]}")
        states, rng = ["start", "s1", "s2", "s3", "s4"], self.rng
        for number, state in enumerate(states):
            header, target = (f"hdr.h{number}",) * 2 if state != "s4" else ("hdr.s.last", "hdr.s.next")
            fields = self._headers[header if state != "s4" else self._stack[0]]
            self._visible = self._metadata | {f"{header}.{name}": type_ for name, type_ in fields.items()}
            with self._block(f"state {state}", f"def {state}(v):"):
                self._line(f"packet.extract({target});", f'extract(v, "{header}")')
                if rng.random() < 0.5:
                    self._write_assign()
                if rng.random() < 0.3:
                    test = self._expr(BOOL)
                    error = f"if not {test.py}: raise ParserError(3)"
                    self._line(f"verify({test.p4}, error.HeaderTooShort);", error)
                if rng.random() < 0.2:
                    bits = rng.choice([8, 16, 24])
                    self._line(f"packet.advance({bits});", f"lookahead(v, {bits})", f'v["at"] += {bits}')
                self._write_select([*states[number + 1 :], "accept"] if state != "s4" else [state, "accept"])
        self._line("}")

    def _write_select(self, following):
        rng = self.rng
        names = [name for name, type_ in self._scope().items() if type_.kind == "bit"]
        keys = [self._variable(rng.choice(names)) for _ in range(rng.randrange(1, 3))]
        last = "hdr.s.last.more" in names
        keys += [self._variable("hdr.s.last.more")] if last else []
        if rng.random() < 0.3:
            bits = rng.choice([1, 3, 8, 16])
            keys[0] = Expr(f"packet.lookahead<bit<{bits}>>()", f"lookahead(v, {bits})", Type("bit", bits))
        values = ", ".join(key.py for key in keys)
        self._line(f"transition select({', '.join(key.p4 for key in keys)}) {{", f"k = [{values}]")
        # A parser that cannot accept is refused. p4c leaves out rows to the default's state, even before rows
        # that match the same packets.
        default = "accept" if last else rng.choice(following)
        others = [state for state in following if state != default]
        for _ in range(rng.randrange(1, 4) if others else 0):
            patterns = [self._pattern(f"k[{n}]", key.type) for n, key in enumerate(keys)]
            target, texts = rng.choice(others), ", ".join(text for text, _ in patterns)
            tests = " and ".join(test for _, test in patterns)
            self._line(f"({texts}): {target};", f"if {tests}: return {target}(v)")
        self._line(f"default: {default}; }}", f"return {default}(v)")

    def _pattern(self, key, type_):
        """Return a pattern of a select, and the test that it means."""
        low, high = sorted((self._number(type_), self._number(type_)))
        forms = [(str(low), f"{key} == {low}")] * 2 + [("_", "True")]
        forms.append((f"{low} &&& {high}", f"{key} & {high} == {low & high}"))
        if type_.bits <= 8:
            forms.append((f"{low}..{high}", f"{low} <= {key} <= {high}"))
        return self.rng.choice(forms)

    # --- controls ---

    def _write_checksum(self, name, extern):
        fields = {field: type_.bits for field, type_ in self._headers["hdr.h0"].items() if field != "check"}
        chosen = self.rng.sample(sorted(fields), self.rng.randrange(len(fields) + 1))
        inputs = ", ".join(f"hdr.h0.{field}" for field in chosen)
        call = f"{extern}(hdr.h0.isValid(), {{ {inputs} }}, hdr.h0.check, HashAlgorithm.csum16);"
        body = call if chosen else ""
        values = ", ".join(f'(v["hdr.h0.{field}"], {fields[field]})' for field in chosen)
        test = f'if v["hdr.h0"] and {len(chosen)} else None'
        self._line(
            f"control {name}(inout headers_t hdr, inout metadata_t md) {{ apply {{ {body} }} }}",
            f"def {name}(v): return csum16(packed({values})) {test}",
        )

    def _write_control(self, name, readable):
        self._name, self._actions, self._unapplied = name, {}, []
        intrinsic = {"sm.instance_type": Type("bit", 32), "sm.checksum_error": BIT, "sm.egress_spec": PORT}
        self._visible = self._metadata | readable | intrinsic
        self._valid, self._locals = _ALWAYS, {}
        self._line(f"control {name}({_ARGUMENTS}")
        self._cells = {f"r{next(self._numbers)}": self._type(("bit",)) for _ in range(2)}
        for cell, type_ in self._cells.items():
            size = self.rng.choice([1, 4, 8])
            self.registers[f"{name}.{cell}"] = [0] * size
            self.counters[f"{name}.{cell}_c"] = [[0, 0] for _ in range(size)]
            self._line(f"register<{type_}>({size}) {cell}; counter({size}, CounterType.packets) {cell}_c;")
        for _ in range(self.rng.randrange(1, 4)):
            self._write_action()
        for _ in range(self.rng.randrange(1, 4)):
            self._write_table()
        with self._block("apply", f"def {name}(v):"):
            if name == "I":
                self._line("sm.egress_spec = sm.ingress_port;", 'v["sm.egress_spec"] = v["sm.ingress_port"]')
                # p4c leaves out the parser's assignments that only packets with an error would show.
                with self._block("if (sm.parser_error != error.NoError)", 'if v["error"]:'):
                    for field, type_ in [*self._metadata.items()][1:]:
                        self._set(field, Expr("false" if type_ == BOOL else "0", "0", type_))
            with self._block("if (hdr.h0.isValid())", 'if v["hdr.h0"]:'):
                for _ in range(self._size):
                    self._statement(3, False)
        self._line("}")

    def _write_action(self):
        name = f"a{next(self._numbers)}"
        params = {f"{name}_p{n}": self._type(("bit",)) for n in range(self.rng.randrange(3))}
        declared = ", ".join(f"{type_} {param}" for param, type_ in params.items())
        with self._block(
            f"action {name}({declared})", f"def {self._name}_{name}({', '.join(['v', *params])}):"
        ):
            self._locals = dict(params)
            for _ in range(self.rng.randrange(1, 4)):
                self._statement(2, True)
        self._actions[name] = list(params.values())

    def _choice(self, actions):
        name = self.rng.choice(actions)
        return name, tuple(map(self._number, self._actions[name]))

    def _write_table(self):
        rng, name = self.rng, f"t{next(self._numbers)}"
        kinds = [
            rng.choice(["exact", "exact", "ternary", "range", "lpm"]) for _ in range(rng.randrange(1, 4))
        ]
        kinds = [
            kind if kind != "lpm" or kinds.index("lpm") == n else "exact" for n, kind in enumerate(kinds)
        ]
        narrow = [bits for bits in self._widths if bits <= 64]
        keys = [self._expr(Type("bit", rng.choice(narrow)), rng.choice([0, 0, 2])) for _ in kinds]
        widths = list(zip(kinds, (key.type.bits for key in keys), strict=True))
        actions = rng.sample(sorted(self._actions), rng.randrange(1, len(self._actions) + 1))
        table = Table(widths, [], [], self._choice(actions), rng.random() < 0.3)
        texts = {}
        for priority in range(50, 50 - rng.randrange(1, 7), -1):
            text, patterns = zip(*(self._match(*key) for key in widths), strict=True)
            if patterns not in texts:
                table.entries.append((patterns, *self._choice(actions), priority))
                table.counts.append([0, 0])
                texts[patterns] = f"({', '.join(text)}): {_call(*table.entries[-1][1:3])};"
        self.tables[f"{self._name}.{name}"] = table
        self._unapplied.append(name)
        key_text = " ".join(
            f'{key.p4}: {kind} @name("k{n}");' for n, (kind, key) in enumerate(zip(kinds, keys, strict=True))
        )
        entries = f"const entries = {{ {' '.join(texts.values())} }}" if table.const else ""
        values = "".join(f"{key.py}, " for key in keys)
        self._line(
            f"direct_counter(CounterType.packets_and_bytes) {name}_c; table {name} {{ key = {{ {key_text} }} "
            f"actions = {{ {'; '.join(actions)}; }} {entries} counters = {name}_c; size = 64; "
            f"default_action = {_call(*table.default)}; }}",
            f'def {self._name}_{name}(v): return apply(v, "{self._name}", "{name}", ({values}))',
        )

    def _match(self, kind, bits):
        """Return what an entry has for a key, in P4 and for the softswitch."""
        low, high = sorted(self._number(Type("bit", bits)) for _ in range(2))
        if kind == "exact":
            return str(low), low
        if kind == "range":
            return f"{low}..{high}", (low, high)
        length = self.rng.randrange(bits + 1)
        mask = high if kind == "ternary" else (1 << bits) - (1 << bits - length)
        return f"{low & mask} &&& {mask}", (low & mask, length if kind == "lpm" else mask)

    # --- statements ---

    def _statement(self, depth, in_action):
        self._in_action = in_action
        kinds = ["assign"] * 4 + ["register", "count", "hash", "local", "validity", "port"]
        kinds += ["branch", "branch", "guard", "guard"] * (depth > 0) + ["leave"] * (depth < 3)
        kinds += [] if in_action else ["apply"] * 3 + ["call", "shift"] + ["again"] * self._again
        kind = self.rng.choice(kinds)
        writer = getattr(self, f"_write_{kind}")
        writer(depth) if kind in ("branch", "guard", "apply") else writer()

    def _body(self, depth, p4, py, header=""):
        in_action = self._in_action
        with self._block(p4, py, header):
            for _ in range(self.rng.randrange(1, 3)):
                self._statement(depth - 1, in_action)

    def _set(self, name, expr):
        self._line(f"{name} = {expr.p4};", f"{name if name in self._locals else f'v[{name!r}]'} = {expr.py}")

    def _target(self, kind="", type_=None):
        """Return a variable that may be changed here, of a kind or type; None if there is none."""
        kinds = {
            name: declared for name, declared in self._scope().items() if not name.startswith(_READ_ONLY)
        }
        names = [name for name, one in kinds.items() if kind in one.kind and type_ in (None, one)]
        return self._variable(self.rng.choice(names)) if names else None

    def _write_assign(self):
        """Write an assignment to a variable, or to some of its bits."""
        target = self._target()
        bits = target.type.bits
        if target.type.kind == "bit" and bits > 2 and self.rng.random() < 0.25:
            low, high = sorted(self.rng.sample(range(bits), 2))
            part, mask = self._expr(Type("bit", high - low + 1)), (1 << high + 1) - (1 << low)
            value = f"{target.py} & ~{mask} | {part.py} << {low}"
            self._line(f"{target.p4}[{high}:{low}] = {part.p4};", f"{target.py} = {value}")
        else:
            self._set(target.p4, self._expr(target.type, self.rng.randrange(4)))

    def _write_local(self):
        name, type_ = f"x{next(self._numbers)}", self.rng.choice([self._type(), BOOL])
        expr = self._expr(type_)
        self._locals = {**self._locals, name: type_}
        self._line(f"{type_} {name} = {expr.p4};", f"{name} = {expr.py}")

    def _write_branch(self, depth):
        test = self._expr(BOOL)
        if self._name == "I" and self.rng.random() < 0.2:
            code = self.rng.randrange(len(ERRORS))
            test = Expr(f"sm.parser_error == error.{ERRORS[code]}", f'v["error"] == {code}', BOOL)
        self._body(depth, f"if ({test.p4})", f"if {test.py}:")
        self._body(depth, "else", "else:")

    def _write_guard(self, depth):
        header = self.rng.choice(list(self._headers))
        self._body(depth, f"if ({header}.isValid())", f'if v["{header}"]:', header)

    def _write_validity(self):
        header = self.rng.choice([name for name in self._headers if name != "hdr.h0"])
        other = {"hdr.h1": "hdr.h2", "hdr.h2": "hdr.h1"}.get(header)
        index = self._index(len(self._stack))
        match self.rng.choice(["valid", "valid", "invalid", "copy", "element"]):
            case "valid":
                values = {name: self._expr(type_, 1) for name, type_ in self._headers[header].items()}
                self._valid |= {header}
                self._line(f"{header}.setValid();", f'v["{header}"] = 1')
                for name, expr in values.items():
                    self._set(f"{header}.{name}", expr)
            case "copy" if other is not None:
                self._valid = self._valid - {header} | ({header} if other in self._valid else set())
                names = ["", *(f".{name}" for name in self._headers[header])]
                self._line(f"{header} = {other};", *(f"v['{header}{n}'] = v['{other}{n}']" for n in names))
            case "element" if len(self._stack) != 3:  # selected at run time
                self._valid -= set(self._stack)
                self._line(f"hdr.s[{index.p4}].setInvalid();", f'v["hdr.s[%d]" % ({index.py})] = 0')
            case _:
                self._valid -= {header}
                self._line(f"{header}.setInvalid();", f'v["{header}"] = 0')

    def _write_shift(self):
        self._valid -= set(self._stack)
        count, way = self.rng.randrange(1, len(self._stack) + 1), self.rng.choice(["push", "pop"])
        self._line(f"hdr.s.{way}_front({count});", f"shift(v, {count if way == 'push' else -count})")

    def _write_port(self):
        match self.rng.choice(["drop", "group", "port", "port", "port"]):
            case "drop":
                self._line("mark_to_drop(sm);", f'v["sm.egress_spec"], v["sm.mcast_grp"] = {DROP_PORT}, 0')
            case "group" if self._name == "I":
                self._set("sm.mcast_grp", self._cast(self._expr(Type("bit", 2)), Type("bit", 16)))
            case _:
                self._set("sm.egress_spec", self._expr(PORT))

    def _write_register(self):
        name, type_ = self.rng.choice(list(self._cells.items()))
        cells = f"{self._name}.{name}"
        index, target = self._index(len(self.registers[cells])), self._target("", type_)
        cell = f"registers['{cells}'][{index.py}]"
        if target is not None and self.rng.random() < 0.6:
            self._line(f"{name}.read({target.p4}, {index.p4});", f"{target.py} = {cell}")
        else:
            value = self._expr(type_)
            self._line(f"{name}.write({index.p4}, {value.p4});", f"{cell} = {value.py}")

    def _index(self, size):
        index = self._expr(Type("bit", 32), self.rng.randrange(3))
        return Expr(f"({index.p4} & {size - 1})", f"{index.py} & {size - 1}", index.type)

    def _write_count(self):
        name = self.rng.choice(list(self._cells))
        index = self._index(len(self.registers[f"{self._name}.{name}"]))
        cell = f'counters["{self._name}.{name}_c"][{index.py}]'
        self._line(f"{name}_c.count({index.p4});", f"c = {cell}", "c[0] += 1", 'c[1] += v["size"] // 8')

    def _write_hash(self):
        target = self._target("bit") or self._variable("hdr.h0.check")
        inputs = [self._expr(self._type(("bit",)), 1) for _ in range(self.rng.randrange(1, 4))]
        name, bits = self.rng.choice(["crc16", "crc32", "csum16"]), target.type.bits
        # BMv2 adds the base to the hash in 64 bits.
        base, most = self._number(target.type) % (1 << 63), self.rng.choice([1, 7, 256, 65535, 1 << 31])
        p4, py = ", ".join(e.p4 for e in inputs), ", ".join(f"({e.py}, {e.type.bits})" for e in inputs)
        self._line(
            f"hash({target.p4}, HashAlgorithm.{name}, {bits}w{base}, {{ {p4} }}, 32w{most});",
            f"{target.py} = wrap('bit', {bits}, {base} + {name}(packed({py})) % {most})",
        )

    def _write_leave(self):
        test, (p4, py) = self._expr(BOOL, 1), self.rng.choice([("exit", "raise Exit"), ("return", "return")])
        self._line(f"if ({test.p4}) {{ {p4}; }}", f"if {test.py}: {py}")

    def _write_call(self):
        name = self.rng.choice(sorted(self._actions))
        arguments = [self._expr(type_) for type_ in self._actions[name]]
        values = "".join(f", {expr.py}" for expr in arguments)
        self._line(f"{name}({', '.join(expr.p4 for expr in arguments)});", f"{self._name}_{name}(v{values})")
        self._valid = _ALWAYS

    def _write_apply(self, depth):
        if not self._unapplied:
            self._write_assign()
            return
        name, self._valid = self._unapplied.pop(), _ALWAYS
        self._line("", f"hit, ran = {self._name}_{name}(v)")
        match self.rng.choice(["plain", "hit", "miss", "switch"] if depth else ["plain"]):
            case "plain":
                self._line(f"{name}.apply();")
            case "switch":
                actions = sorted({entry[1] for entry in self.tables[f"{self._name}.{name}"].entries})
                self._line(f"switch ({name}.apply().action_run) {{", f"x{name} = ran")
                for action in actions[: self.rng.randrange(1, len(actions) + 1)]:
                    self._body(depth, f"{action}:", f"if x{name} == '{action}':")
                    self._line("", f"x{name} = '' if x{name} == '{action}' else x{name}")
                self._body(depth, "default:", f"if x{name}:")
                self._line("}")
            case form:
                self._body(depth, f"if ({name}.apply().{form})", f"if hit == {form == 'hit'}:")
                self._body(depth, "else", "else:")

    def _write_again(self):
        """Write a clone, a resubmission or a recirculation; md.m0 limits how often."""
        word = self.rng.choice(["clone", "resubmit" if self._name == "I" else "recirculate"])
        kind = f"CloneType.{self._name}2E, 100, " if word == "clone" else ""
        test = "if (md.m0 < 2 && sm.instance_type != 1 && sm.instance_type != 2)"
        with self._block(test, 'if v["md.m0"] < 2 and v["sm.instance_type"] not in (1, 2):'):
            self._line(f"md.m0 = md.m0 + 1; {word}_preserving_field_list({kind}1);", 'v["md.m0"] += 1')
            self._line("", f'v["{word}"] = 1')

    # --- packets ---

    def _extract(self, v, header):
        """Extract a header; hdr.s.last is the next element of the stack."""
        element = header
        if header == "hdr.s.last":
            if v["next"] == len(self._stack):
                raise ParserError(2)
            element = self._stack[v["next"]]
        fields = self._headers[element]
        lookahead(v, sum(type_.bits for type_ in fields.values()))
        for name, type_ in fields.items():
            v[f"{element}.{name}"] = v[f"{header}.{name}"] = wrap(*type_, lookahead(v, type_.bits))
            v["at"] += type_.bits
        v[element], v["next"] = 1, v["next"] + (element != header)

    def _apply(self, v, control, name, keys):
        """Run the action of a table; return whether there was a hit, and the action."""
        table = self.tables[f"{control}.{name}"]
        number = table.lookup(keys)
        action, arguments = table.default
        if number is not None:
            _, action, arguments, _ = table.entries[number]
            table.counts[number][0] += 1
            table.counts[number][1] += v["size"] // 8
        self._code[f"{control}_{action}"](v, *arguments)
        return number is not None, action

    def _shift(self, v, count):
        """Push elements of the stack, or pop them if `count` is negative."""
        old = dict(v)
        for number, header in enumerate(self._stack):
            for name in ("", *(f".{name}" for name in self._headers[header])):
                v[header + name] = old.get(f"hdr.s[{number - count}]{name}", 0)

    def process(self, port, frame):
        """Return what leaves of a frame; a packet's clones leave before it, or after if egress made them."""
        sent = []
        # Packets that wait: the kind, the port, the bytes, the metadata kept, and variables if not parsed.
        waiting = [(_FRESH, port, frame, {}, {})]
        while waiting:
            kind, port, data, kept, v = waiting.pop(0)
            # As in simple_switch, the parser does not see what an ingress clone keeps.
            v = v or self._parsed(port, data, {} if kind == _INGRESS_CLONE else kept)
            clones = [(kind, *copy) for copy in SESSIONS[100]]
            copies = clones if kind in (_INGRESS_CLONE, _EGRESS_CLONE) else v.get("copies", [])
            if kind == _INGRESS_CLONE:
                v |= self._cleared(kept)
            elif kind in (_FRESH, _RECIRCULATED, _RESUBMITTED):
                v["sm.instance_type"] = kind
                copies = self._ingress(v, waiting)
            for instance, egress_port, rid in copies:
                copy = {"sm.instance_type": instance, "sm.egress_port": egress_port, "sm.egress_rid": rid}
                self._egress(v | copy | {"sm.egress_spec": 0, "clone": 0}, waiting, sent)
        return sent

    def _ingress(self, v, waiting):
        """Run ingress; return instance type, port and replication number of each copy that goes to egress."""
        with suppress(Exit):
            self._code["I"](v)
        kept = {name: v[name] for name in ("md.m0", "md.m1")}
        copies = [] if v["sm.egress_spec"] == DROP_PORT else [(_FRESH, v["sm.egress_spec"], 0)]
        if v["sm.mcast_grp"]:
            copies = [(_REPLICA, *copy) for copy in GROUPS.get(v["sm.mcast_grp"], [])]
        if v["resubmit"]:
            copies = []
        if v["clone"]:
            waiting.append((_INGRESS_CLONE, 0, v["bytes"], kept, {}))
            if copies:
                waiting.append((_DEFERRED, 0, b"", {}, v | {"copies": copies}))
                copies = []
        if v["resubmit"]:
            waiting.append((_RESUBMITTED, 0, v["bytes"], kept, {}))
        return copies

    def _egress(self, v, waiting, sent):
        """Run egress for a copy, and send or recirculate it."""
        with suppress(Exit):
            self._code["E"](v)
        kept = {name: v[name] for name in ("md.m0", "md.m1")}
        if v["clone"]:
            waiting.append((_EGRESS_CLONE, 0, b"", {}, v | self._cleared(kept)))
        if v["sm.egress_spec"] == DROP_PORT:
            return
        if (checksum := self._code["C"](v)) is not None:
            v["hdr.h0.check"] = checksum
        data = b"".join(
            packed(*((v[f"{header}.{name}"], type_.bits) for name, type_ in fields.items()))
            for header, fields in self._headers.items()
            if v[header]
        )
        data += v["bytes"][v["at"] // 8 :]
        if v["recirculate"]:
            waiting.append((_RECIRCULATED, 0, data, kept, {}))
        else:
            sent.append((v["sm.egress_port"], data))

    def _cleared(self, kept):
        """Return the metadata of a packet that keeps only some of it."""
        names = ["checksum_error", "egress_rid", "egress_spec", "mcast_grp", "ingress_port", "instance_type"]
        names = [*(f"sm.{name}" for name in names), "clone", "resubmit", "recirculate"]
        return dict.fromkeys([*self._metadata, *names], 0) | kept

    def _parsed(self, port, frame, kept):
        """Return the variables of a packet that has passed the parser and the verification of checksums."""
        v = self._cleared(kept) | {"sm.ingress_port": port, "error": 0}
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


def _call(action, arguments):
    """Return an action with arguments in P4."""
    return f"{action}({', '.join(map(str, arguments))})"
