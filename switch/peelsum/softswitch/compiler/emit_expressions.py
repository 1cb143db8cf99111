"""Writes expressions as source text and tracks the range of each one's value.

BMv2 computes with integers of any size, generated code modulo 2**64. Both agree modulo 2**64 on sums,
products and bitwise operators. Comparisons and right shifts need the value itself: a program whose ranges do
not fit there is refused, so generated code needs no checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from peelsum.softswitch.compiler.layout import FULL, words_of
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program.operations import (
    Binary,
    Bool,
    Const,
    Element,
    Expr,
    FieldRef,
    Hit,
    IsValid,
    Lookahead,
    Param,
    StackCount,
    Ternary,
    Unary,
)

if TYPE_CHECKING:
    from peelsum.softswitch.compiler.emitter import Emitter

_TOP = 1 << 64
_HALF = 1 << 63
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})


@dataclass(frozen=True, slots=True)
class Value:
    """Source text of a number, equal modulo 2**64 to a value in low..high."""

    text: str
    low: int
    high: int

    @property
    def exact(self) -> bool:
        """Whether the text's value is the value itself."""
        return self.low >= 0 and self.high < _TOP

    @property
    def signed(self) -> bool:
        """Whether the text's value is the value in two's complement."""
        return self.low >= -_HALF and self.high < _HALF


def unsigned(text: str, bits: int) -> Value:
    """Return the value of `text` as an unsigned number of `bits` bits."""
    return Value(text, 0, (1 << bits) - 1)


class Expressions:
    """Writes expressions with the names of one generated function, which `Emitter` has.

    Numbers of more than 64 bits are written one limb of 64 bits at a time. Copies, constants, bitwise
    operators and shifts by a constant need no carry, so each limb stands for itself.
    """

    def __init__(self, names: Emitter) -> None:
        self._names = names

    # --- truth values -----------------------------------------------------------------------------

    def condition(self, expr: Expr) -> str:
        """Return the source text of a Boolean expression."""
        match expr:
            case Bool(value):
                return str(value)
            case IsValid(header):
                return self._names.validity(header)
            case Hit(table):
                return self._names.hit(table)
            case Unary("not", operand):
                return f"(not {self.condition(operand)})"
            case Unary("d2b", Unary("b2d", operand)):
                return self.condition(operand)
            case Unary("d2b", operand):
                return self._compare("!=", self.value(operand), self.constant(0))
            case Binary("and" | "or" as op, left, right):
                return f"({self.condition(left)} {op} {self.condition(right)})"
            case Binary(op, left, right) if op in _COMPARISONS:
                if _is_truth(left) and _is_truth(right):
                    return f"({self.condition(left)} {op} {self.condition(right)})"
                return self._comparison(op, left, right)
            case Ternary(condition, left, right):
                texts = (self.condition(part) for part in (left, condition, right))
                return "({} if {} else {})".format(*texts)
        raise UnsupportedConstruct(
            f"{_shown(expr)} as a truth value: not supported; compare it with a number"
        )

    def _comparison(self, op: str, left: Expr, right: Expr) -> str:
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Unary) and one.op == "b2d" and isinstance(other, Const) and op in ("==", "!="):
                # Validity compared with 0 or 1, as p4c writes it.
                wanted = (other.value == 1) == (op == "==")
                if other.value in (0, 1):
                    text = self.condition(one.operand)
                    return text if wanted else f"(not {text})"
        values = self.value(left), self.value(right)
        if op in ("==", "!=") and max(value.high for value in values) >= _TOP:
            return self._compare_wide(op, left, right, *values)
        return self._compare(op, *values)

    def _compare_wide(self, op: str, left: Expr, right: Expr, *values: Value) -> str:
        if min(value.low for value in values) < 0:
            raise UnsupportedConstruct(f"operator {op}: on signed numbers past 64 bits; cast them to bit<W>")
        count = words_of(max(value.high for value in values).bit_length())
        pairs = ((self.limb(left, number), self.limb(right, number)) for number in range(count))
        return f"({(' and ' if op == '==' else ' or ').join(f'{one} {op} {other}' for one, other in pairs)})"

    def _compare(self, op: str, left: Value, right: Value) -> str:
        if left.exact and right.exact:
            return f"({left.text} {op} {right.text})"
        if left.signed and right.signed:
            bias, whole = self._names.constant(_HALF), self._names.constant(_TOP - 1)
            sides = (f"(({side.text} + {bias}) & {whole})" for side in (left, right))
            return f"({next(sides)} {op} {next(sides)})"
        raise UnsupportedConstruct(
            f"operator {op}: on numbers that do not fit 64 bits; cast them to fewer bits"
        )

    # --- numbers ----------------------------------------------------------------------------------

    def constant(self, value: int) -> Value:
        """Return the value of a constant."""
        return Value(self._names.constant(value), value, value)

    def exact(self, expr: Expr, what: str) -> Value:
        """Return an expression's value. Raises UnsupportedConstruct naming `what` beyond 64 bits."""
        value = self.value(expr)
        if not value.exact:
            raise UnsupportedConstruct(
                f"{what}: may be negative or past 64 bits; cast it to an unsigned type"
            )
        return value

    def limb(self, expr: Expr, number: int) -> str:
        """Return the text of bits 64 * number to 64 * number + 63 of an expression."""
        names = self._names
        if number < 0:
            return names.constant(0)
        found = names.limb(expr, number)
        if found is not None:
            return found
        whole = names.constant(FULL)
        match expr:
            case Const(value):
                return names.constant(value >> 64 * number & FULL)
            case Binary("&" | "|" | "^" as op, left, right):
                return f"({self.limb(left, number)} {op} {self.limb(right, number)})"
            case Unary("~", operand):
                return f"(~{self.limb(operand, number)} & {whole})"
            case Binary(">>", operand, Const(count)) if count >= 0:
                low, bits = self.limb(operand, number + count // 64), count % 64
                high = self.limb(operand, number + count // 64 + 1)
            case Binary("<<", operand, Const(count)) if count >= 0:
                high, bits = self.limb(operand, number - count // 64), -count % 64
                low = self.limb(operand, number - count // 64 - 1)
                if not bits:
                    return high
            case _:
                return self.exact(expr, _shown(expr)).text if number == 0 else names.constant(0)
        if not bits:
            return low
        text = f"({low} >> {names.constant(bits)})"
        if high == names.constant(0):
            return text
        return f"({text} | (({high} << {names.constant(64 - bits)}) & {whole}))"

    def value(self, expr: Expr) -> Value:
        """Return an expression's value."""
        match expr:
            case Const(number):
                return self.constant(number)
            case FieldRef() | Element():
                return self._names.read(expr)
            case Param(_, bits, _, signed) if signed and bits <= 64:
                return self.sign_extended(self._names.param(expr), bits)
            case Param():
                return unsigned(self._names.limb(expr, 0) or self._names.param(expr), expr.bits)
            case Lookahead(offset, bits):
                return unsigned(self._names.limb(expr, 0) or self._names.peek(offset, bits), bits)
            case StackCount(stack):
                size = len(self._names.program.stacks[stack])
                return Value(self._names.stack_count(stack), 0, size)
            case Unary("b2d", operand):
                texts = self._names.constant(1), self.condition(operand), self._names.constant(0)
                return Value("({} if {} else {})".format(*texts), 0, 1)
            case Unary("~", operand):
                inner = self.value(operand)
                return Value(f"(~{inner.text})", -inner.high - 1, -inner.low - 1)
            case Ternary(condition, left, right):
                one, other = self.value(left), self.value(right)
                text = f"({one.text} if {self.condition(condition)} else {other.text})"
                return Value(text, min(one.low, other.low), max(one.high, other.high))
            case Binary(op, left, right):
                return self._binary(op, left, right)
        raise UnsupportedConstruct(f"{_shown(expr)} as a number: not supported; leave it out of the program")

    def _binary(self, op: str, left: Expr, right: Expr) -> Value:
        match op:
            case "+" | "-" | "*":
                return _arithmetic(op, self.value(left), self.value(right))
            case "&" | "|" | "^":
                return _bitwise(op, self.value(left), self.value(right))
            case "<<":
                return self._shifted_left(self.value(left), right)
            case ">>" if isinstance(right, Const) and self.value(left).high >= _TOP:
                value = self.value(left)
                if value.low < 0 or right.value < 0:
                    raise UnsupportedConstruct("operator >>: on signed numbers past 64 bits; cast to bit<W>")
                return Value(self.limb(Binary(op, left, right), 0), 0, value.high >> right.value)
            case ">>":
                return self._shifted_right(left, right)
            case "two_comp_mod" | "usat_cast" | "sat_cast":
                return self._cast(op, self.value(left), _width(op, right))
        raise UnsupportedConstruct(f"operator {op} as a number: not supported; leave it out of the program")

    def _shifted_left(self, value: Value, by: Expr) -> Value:
        if isinstance(by, Const) and 0 <= by.value < 64:
            text = f"({value.text} << {self._names.constant(by.value)})"
            return Value(text, value.low << by.value, value.high << by.value)
        count = self.exact(by, "operator <<")
        most = min(count.high, 4096)
        low, high = min(0, value.low << most), max(value.high, value.high << most)
        return Value(f"shl({value.text}, {count.text})", low, high)

    def _shifted_right(self, left: Expr, by: Expr) -> Value:
        value, count = self.value(left), self.exact(by, "operator >>")
        if value.low < 0 and value.signed:
            return self._shifted_right_signed(value, count)
        value = self.exact(left, "operator >>")
        if isinstance(by, Const) and by.value < 64:
            return Value(f"({value.text} >> {count.text})", 0, value.high >> by.value)
        return Value(f"shr({value.text}, {count.text})", 0, value.high)

    def _shifted_right_signed(self, value: Value, count: Value) -> Value:
        """Return the quotient rounded down: an unsigned number is shifted, 2**63 larger than the value."""
        half, whole, top = map(self._names.constant, (_HALF, _TOP - 1, 63))
        places = count.text
        if count.high > 63:
            places = top if count.low > 63 else f"({places} if {places} < {top} else {top})"
        text = f"((({value.text} + {half}) & {whole}) >> {places}) - ({half} >> {places})"
        return Value(f"({text})", value.low, max(value.high, -1))

    def _cast(self, op: str, value: Value, bits: int) -> Value:
        half = 1 << bits - 1
        if op == "two_comp_mod":
            return self.sign_extended(self._cut(value, bits).text, bits)
        low, high = (0, 2 * half - 1) if op == "usat_cast" else (-half, half - 1)
        if low <= value.low and value.high <= high:
            return value
        if not value.signed or not Value("", low, high).signed:
            raise UnsupportedConstruct(
                f"operator {op}: on numbers that do not fit 63 bits; cast them to fewer bits"
            )
        ends = ", ".join(self._names.constant(end) for end in (low, high))
        return Value(
            f"clamp({value.text}, {ends})", max(low, min(value.low, high)), min(high, max(value.high, low))
        )

    def sign_extended(self, text: str, bits: int) -> Value:
        """Return the unsigned `text` of `bits` bits as a signed value."""
        half = self._names.constant(1 << bits - 1)
        return Value(f"(({text} ^ {half}) - {half})", -(1 << bits - 1), (1 << bits - 1) - 1)

    def _cut(self, value: Value, bits: int) -> Value:
        if value.low >= 0 and value.high < 1 << bits:
            return value
        return unsigned(f"({value.text} & {self._names.constant((1 << bits) - 1)})", bits)

    def stored(self, expr: Expr, bits: int) -> str:
        """Return the source text of an expression truncated to `bits` bits (at most 64)."""
        return self._cut(self.value(expr), bits).text


def _is_truth(expr: Expr) -> bool:
    match expr:
        case Bool() | IsValid() | Hit() | Unary("not" | "d2b", _):
            return True
        case Binary(op, _, _):
            return op in _COMPARISONS or op in ("and", "or")
        case Ternary(_, left, _):
            return _is_truth(left)
    return False


def _arithmetic(op: str, left: Value, right: Value) -> Value:
    text = f"({left.text} {op} {right.text})"
    if op == "+":
        return Value(text, left.low + right.low, left.high + right.high)
    if op == "-":
        return Value(text, left.low - right.high, left.high - right.low)
    ends = [one * other for one in (left.low, left.high) for other in (right.low, right.high)]
    return Value(text, min(ends), max(ends))


def _bitwise(op: str, left: Value, right: Value) -> Value:
    text = f"({left.text} {op} {right.text})"
    if op == "&":
        bounds = [side.high for side in (left, right) if side.low >= 0]
        if bounds:
            return Value(text, 0, min(bounds))
    elif left.low >= 0 and right.low >= 0:
        return Value(text, 0, (1 << max(left.high, right.high).bit_length()) - 1)
    bits = max(abs(end).bit_length() for side in (left, right) for end in (side.low, side.high))
    return Value(text, -(1 << bits), (1 << bits) - 1)


def _width(op: str, expr: Expr) -> int:
    if not isinstance(expr, Const) or not 1 <= expr.value <= 64:
        raise UnsupportedConstruct(f"operator {op}: to more than 64 bits; use up to 64")
    return expr.value


def _shown(expr: Expr) -> str:
    return f"operator {expr.op}" if isinstance(expr, (Unary, Binary)) else type(expr).__name__
