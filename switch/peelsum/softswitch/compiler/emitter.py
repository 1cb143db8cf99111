"""Collects the generated code: its lines, its constants, and the variables of the program's fields."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate

from peelsum.softswitch.compiler.emit_expressions import (
    BoundedValue,
    ExactExpressions,
    Expressions,
    unsigned,
)
from peelsum.softswitch.compiler.extern_layout import ExternLayout
from peelsum.softswitch.compiler.layout import FULL, Array, Storage, TablePlan, words_of
from peelsum.softswitch.errors import NotCompilable, UnsupportedConstruct
from peelsum.softswitch.program.load_actions import VALID
from peelsum.softswitch.program.model import FieldDeclaration, Program
from peelsum.softswitch.program.operations import Expr, FieldElement, FieldRef, Lookahead, Param, Target

#: Bytes that one load or store of the generated code takes.
SIZES = (8, 4, 2, 1)
#: A number in generated code that is not part of a name.
_NUMBER = re.compile(r"\b(?:0x[0-9A-F]+|\d+)\b")
#: Python allows 100 levels of indentation.
_DEPTH_LIMIT = 90
#: Python allows 200 open brackets.
_NESTING_LIMIT = 200
#: Python takes 2.5 kB of memory for a line that it loads.
_LINE_LIMIT = 300_000
#: The variable with the packet's length, which `set_validity` updates.
CURRENT_SIZE = "current_size"


class Emitter:
    """Collects the source text of one function.

    Where egress runs once per copy of a packet, `copied` has the variables of which it uses copies.
    exact: write code for the interpreter, in which numbers have any width and sign.
    observed: let an observer of this code see the row that a table finds.
    """

    def __init__(
        self,
        program: Program,
        storage: Storage,
        plans: dict[str, TablePlan],
        externs: ExternLayout,
        exact: bool,
        observed: bool = False,
    ) -> None:
        self.program = program
        self.storage = storage
        self.plans = plans
        self.externs = externs
        self.exact, self.observed = exact, observed
        self.expressions = ExactExpressions(self) if exact else Expressions(self)
        self.lines: list[str] = []
        self.copied: frozenset[str] = frozenset()
        self._depth = 0
        self._constants: dict[int, str] = {}
        self._temporaries = 0
        self.hit_variables: dict[str, str] = {}
        #: The number of elements of a stack that are filled here, if all paths of the parser agree on it.
        self.filled: dict[str, int] = {}
        self.validity_variables = _variable_names(
            "v_", (name for name, item in program.headers.items() if not item.metadata)
        )
        self.stack_variables = _variable_names("n_", program.stacks)
        self.varbit_variables = _variable_names(
            "w_", (name for name, item in program.headers.items() if item.varbit)
        )

    def variables(self) -> dict[tuple[str, str], str]:
        """Return the variables of exact code.

        Those of (header, field); of (header, VALID), whether it is valid; of (stack, ""), how many elements
        are filled.
        """
        fields = self.storage.fields
        return {
            **{(ref.header, ref.field): self.storage.variables(ref)[0].name for ref in fields},
            **{(header, VALID): name for header, name in self.validity_variables.items()},
            **{(stack, ""): name for stack, name in self.stack_variables.items()},
        }

    def line(self, *texts: str) -> None:
        """Append lines at the current depth. Numbers in them become constants of the right type."""
        for text in texts:
            line = _NUMBER.sub(lambda match: self.constant(int(match[0], 0)), text)
            brackets = accumulate((character in "([") - (character in ")]") for character in line)
            if len(line) > _NESTING_LIMIT and max(brackets) > _NESTING_LIMIT:
                raise UnsupportedConstruct(
                    "expression: nested too deeply; assign its parts to variables first"
                )
            if len(self.lines) >= _LINE_LIMIT:
                raise UnsupportedConstruct(
                    f"program: takes more than {_LINE_LIMIT} lines of code; use shorter header stacks, "
                    "or fewer statements"
                )
            self.lines.append("    " * self._depth + line)

    def nested(self, head: str, *texts: str) -> None:
        """Append a block with these lines."""
        with self.block(head):
            self.line(*texts)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append `head` and indent what the body writes below it, or write `pass` if it writes nothing."""
        self.line(head)
        self._depth += 1
        if self._depth > _DEPTH_LIMIT:
            raise UnsupportedConstruct("control flow: branches nested too deeply; make tables of them")
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self._depth -= 1

    def constant(self, value: int) -> str:
        """Return the name of a constant."""
        if value not in self._constants:
            self._constants[value] = f"k_{value:x}" if value >= 0 else f"k_minus_{-value:x}"
        return self._constants[value]

    def constants(self) -> list[str]:
        """Return the lines that define the constants used."""
        return [f"{name} = K({value:#x})" for value, name in sorted(self._constants.items())]

    def temporary(self, hint: str) -> str:
        """Return a new variable name that starts with `hint`."""
        self._temporaries += 1
        return f"{hint}{self._temporaries}"

    def name(self, variable: str) -> str:
        """Return the current name of a variable: the variable itself or its copy."""
        return f"e_{variable}" if variable in self.copied else variable

    def validity(self, header: str) -> str:
        """Return the text of a header's validity."""
        if self.program.headers[header].metadata:
            return "True"
        return self.name(self.validity_variables[header])

    def stack_count(self, stack: str) -> str:
        """Return the variable that holds how many elements of a stack are filled."""
        return self.name(self.stack_variables[stack])

    def hit(self, table: str) -> str:
        """Return the variable that says whether a table's last application hit."""
        return self.hit_variables.setdefault(table, f"hit{len(self.hit_variables) + 1}")

    def varbit_bits(self, header: str) -> str:
        """Return the variable that holds the width of a header's varbit."""
        return self.name(self.varbit_variables[header])

    def param(self, param: Param, limb: int = 0) -> str:
        """Return the variable of a 64-bit limb of an action parameter, the highest being number 0."""
        return f"p{list(self.plans).index(param.table)}_{param.index}_{limb}"

    def load_bits(self, base: str, offset: int, bits: int) -> str:
        """Return the text of `bits` packet bits (at most 64), which start `offset` bits after byte `base`."""
        first, end = offset // 8, -(-(offset + bits) // 8)
        if end - first > 8 and self.exact:
            text = f"load_number(data, {base} + {first}, {end - first})"
            return f"(({text} >> {8 * end - offset - bits}) & {(1 << bits) - 1})"
        if end - first > 8:
            # They span nine bytes: load the last one separately.
            tail = offset + bits - 8 * (end - 1)
            head = self.load_bits(base, offset, bits - tail)
            low = self.load_bits(base, 8 * (end - 1), tail)
            return f"(({head} << {tail}) | {low})"
        text, byte = "", first
        for size in SIZES:
            while end - byte >= size:
                load = f"load{8 * size}(data, {f'{base} + {byte}' if byte else base})"
                text = f"(({text} << {8 * size}) | {load})" if text else load
                byte += size
        extra_bits = 8 * end - offset - bits
        if extra_bits:
            text = f"({text} >> {extra_bits})"
        if offset % 8:
            text = f"({text} & {(1 << bits) - 1})"
        return text

    def cell(self, array: Array, start: int, step: int = 0) -> str:
        """Return the text of an array's element: a fixed one or, in a loop, iteration `k`'s."""
        name = self.name(array.name)
        if not step:
            return f"{name}[{start}]"
        offset = "k" if abs(step) == 1 else f"k * {abs(step)}"
        if step < 0:
            return f"{name}[{start} - {offset}]"
        return f"{name}[{offset}]" if start == 0 else f"{name}[{start} + {offset}]"

    def declared(self, target: Target) -> FieldDeclaration:
        """Return a field's declaration."""
        fields = self.program.headers[target.header].fields
        if isinstance(target, FieldElement):
            return fields[target.first]
        return next(field for field in fields if field.name == target.field)

    def bits(self, target: Target) -> int:
        """Return a field's width."""
        return self.declared(target).bits

    def place(self, target: Target) -> str:
        """Return the variable or array element of a field of up to 64 bits."""
        element = self.storage.array(target)
        if element is not None:
            return self.cell(*element, target.step if isinstance(target, FieldElement) else 0)
        assert isinstance(target, FieldRef)
        if self.bits(target) > 64 and not self.exact:
            raise NotCompilable(
                f"field {target.header}.{target.field}: computing with {self.bits(target)} bits; "
                "use at most 64, or only copy and match the field"
            )
        return self.name(self.storage.variables(target)[0].name)

    def places(self, target: FieldRef) -> list[str]:
        """Return the variables of a field, most significant first."""
        if self.storage.array(target) is not None:
            return [self.place(target)]
        return [self.name(variable.name) for variable in self.storage.variables(target)]

    def limb_places(self, target: FieldRef) -> list[str]:
        """Return the text of a field's limbs of 64 bits, most significant first."""
        places, count = self.places(target), words_of(self.bits(target))
        if self.exact and count > 1:
            return [f"(({places[0]} >> {64 * number}) & {FULL})" for number in reversed(range(count))]
        return places

    def limb(self, source: Expr, number: int) -> str | None:
        """Return a 64-bit limb of a number, the lowest being number 0; None if it has at most 64 bits.

        Only unsigned fields, parameters and lookaheads have limbs, and none in exact code.
        """
        if self.exact:
            return None
        match source:
            case FieldRef() if not self.declared(source).signed:
                bits = self.bits(source)
            case Param() | Lookahead():
                bits = source.bits
            case _:
                return None
        if bits <= 64:
            return None
        position = words_of(bits) - 1 - number
        if position < 0:
            return self.constant(0)
        match source:
            case Param():
                return self.param(source, position)
            case Lookahead(offset, _):
                width = min(64, bits - 64 * number)
                return self.load_bits("(base + parsed)", offset + bits - 64 * number - width, width)
        return self.places(source)[position]

    def read(self, target: Target) -> BoundedValue:
        """Return a field's value."""
        bits = self.bits(target)
        limb = self.limb(target, 0)
        if limb is not None:
            return unsigned(limb, bits)
        value = unsigned(self.place(target), bits)
        if self.declared(target).signed:
            return self.expressions.sign_extended(value.text, bits)
        return value


def _variable_names(prefix: str, names: Iterable[str]) -> dict[str, str]:
    """Return a distinct variable name for each thing, made from the thing's name."""
    variables: dict[str, str] = {}
    for name in names:
        variable = prefix + "".join(
            letter if letter.isascii() and letter.isalnum() else "_" for letter in name
        )
        variables[name] = f"{variable}_{len(variables)}" if variable in variables.values() else variable
    return variables
