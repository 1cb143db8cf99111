"""Writes expressions as source text and tracks the range of each one's value.

BMv2 computes with integers of any size, generated code modulo 2**64. For sums, products and bitwise operators
both results are equal modulo 2**64. Comparisons and right shifts need the exact value: if a range exceeds 64
bits there, the program is not compiled but interpreted, with the integers of Python that
`ExactExpressions` writes. So generated code needs no checks.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from peelsum.softswitch.compiler.layout import FULL, words_of
from peelsum.softswitch.errors import NotCompilable, UnsupportedConstruct
from peelsum.softswitch.program import operations as ops

if TYPE_CHECKING:
    from peelsum.softswitch.compiler.emitter import Emitter

_TOP = 1 << 64
_HALF = 1 << 63
#: Ranges are tracked for shifts up to this many bits; so far shifted, a range exceeds 64 bits anyway.
_RANGE_SHIFT = 4096
_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})


@dataclass(frozen=True, slots=True)
class BoundedValue:
    """Source text of a number, equal modulo 2**64 to a value in low..high."""

    text: str
    low: int
    high: int

    @property
    def exact(self) -> bool:
        """Whether the text's value equals the value, without wrapping."""
        return self.low >= 0 and self.high < _TOP

    @property
    def signed(self) -> bool:
        """Whether the text's value is the value in two's complement of 64 bits."""
        return self.low >= -_HALF and self.high < _HALF


def unsigned(text: str, bits: int) -> BoundedValue:
    """Return the value of `text` as an unsigned number of `bits` bits."""
    return BoundedValue(text, 0, (1 << bits) - 1)


class Expressions:
    """Writes expressions for one generated function, with the names of its `Emitter`.

    Numbers of more than 64 bits are written as limbs of 64 bits. Only operations without carries are
    supported for them: copies, constants, bitwise operators, and shifts by a constant.
    """

    #: Constants below this are written as shifts of numbers.
    _constant_shifts = 64

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def condition(self, expr: ops.Expr) -> str:
        """Return the source text of a Boolean expression."""
        match expr:
            case ops.Bool(value):
                return str(value)
            case ops.IsValid(header):
                return self._emitter.validity(header)
            case ops.Hit(table):
                return self._emitter.hit(table)
            case ops.InValueSet(name, value):
                plan = self._emitter.externs.value_sets[name]
                bits = plan.table.keys[0].bits
                words = ", ".join(self.limbs(value, bits))
                place = f"memory, {plan.region}, {plan.row_words}, {plan.key_offset}"
                return f"(find_first({place}, ({words},), {words_of(bits)}, 0, 0, 0) != 0)"
            case ops.Unary("not", operand):
                return f"(not {self.condition(operand)})"
            case ops.Unary("d2b", ops.Unary("b2d", operand)):
                return self.condition(operand)
            case ops.Unary("d2b", operand):
                return self._compare("!=", self.value(operand), self.constant(0))
            case ops.Binary("and" | "or" as op, left, right):
                return f"({self.condition(left)} {op} {self.condition(right)})"
            case ops.Binary(op, left, right) if op in _COMPARISONS:
                if _is_boolean(left) and _is_boolean(right):
                    return f"({self.condition(left)} {op} {self.condition(right)})"
                return self._comparison(op, left, right)
            case ops.Ternary(condition, if_true, if_false):
                texts = (self.condition(part) for part in (if_true, condition, if_false))
                return "({} if {} else {})".format(*texts)
        raise UnsupportedConstruct(
            f"{_describe(expr)} as a truth value: not supported; compare it with a number"
        )

    def _comparison(self, op: str, left: ops.Expr, right: ops.Expr) -> str:
        """Return the text of a comparison of two numbers."""
        for operand, other in ((left, right), (right, left)):
            match op, operand, other:
                case "==" | "!=", ops.Unary("b2d", boolean), ops.Const(0 | 1 as number):
                    # A header's validity compared with 0 or 1, as p4c writes it.
                    text = self.condition(boolean)
                    return text if (number == 1) == (op == "==") else f"(not {text})"
        values = self.value(left), self.value(right)
        if op not in ("==", "!=") or max(value.high for value in values) < _TOP:
            return self._compare(op, *values)
        # Numbers of more than 64 bits are compared limb by limb.
        if min(value.low for value in values) < 0:
            raise NotCompilable(f"operator {op}: on signed numbers past 64 bits; cast them to bit<W>")
        count = words_of(max(value.high for value in values).bit_length())
        tests = [f"{self.limb(left, number)} {op} {self.limb(right, number)}" for number in range(count)]
        return f"({(' and ' if op == '==' else ' or ').join(tests)})"

    def _compare(self, op: str, left: BoundedValue, right: BoundedValue) -> str:
        """Return the text of a comparison; if an operand may be negative, both are shifted by 2**63 first."""
        if left.exact and right.exact:
            return f"({left.text} {op} {right.text})"
        if left.signed and right.signed:
            bias, all_ones = self._emitter.constant(_HALF), self._emitter.constant(_TOP - 1)
            sides = (f"(({side.text} + {bias}) & {all_ones})" for side in (left, right))
            return f"({next(sides)} {op} {next(sides)})"
        raise NotCompilable(f"operator {op}: on numbers that do not fit 64 bits; cast them to fewer bits")

    def constant(self, value: int) -> BoundedValue:
        """Return the value of a constant."""
        return BoundedValue(self._emitter.constant(value), value, value)

    def exact(self, expr: ops.Expr, what: str) -> BoundedValue:
        """Return an expression's value. Raises UnsupportedConstruct, with the name `what`, beyond 64 bits."""
        value = self.value(expr)
        if not value.exact:
            raise NotCompilable(f"{what}: may be negative or past 64 bits; cast it to an unsigned type")
        return value

    def limbs(self, expr: ops.Expr, bits: int) -> list[str]:
        """Return the text of an expression of `bits` bits in limbs of 64 bits, most significant first."""
        if bits <= 64:
            return [self.truncated(expr, bits)]
        count = words_of(bits)
        texts = [self.limb(expr, number) for number in reversed(range(count))]
        value = self.value(expr)
        if bits % 64 and (value.low < 0 or value.high >> bits):
            texts[0] = f"({texts[0]} & {(1 << bits % 64) - 1})"
        return texts

    def limb(self, expr: ops.Expr, number: int) -> str:
        """Return the text of bits 64 * number to 64 * number + 63 of an expression."""
        emitter = self._emitter
        if number < 0:
            return emitter.constant(0)
        stored_limb = emitter.limb(expr, number)
        if stored_limb is not None:
            return stored_limb
        all_ones = emitter.constant(FULL)
        match expr:
            case ops.Const(value):
                return emitter.constant(value >> 64 * number & FULL)
            case ops.Binary("&" | "|" | "^" as op, left, right):
                return f"({self.limb(left, number)} {op} {self.limb(right, number)})"
            case ops.Unary("~", operand):
                return f"(~{self.limb(operand, number)} & {all_ones})"
            case ops.Binary(">>", operand, ops.Const(count)) if count >= 0:
                low, bits = self.limb(operand, number + count // 64), count % 64
                high = self.limb(operand, number + count // 64 + 1)
            case ops.Binary("<<", operand, ops.Const(count)) if count >= 0:
                high, bits = self.limb(operand, number - count // 64), -count % 64
                low = self.limb(operand, number - count // 64 - 1)
                if not bits:
                    return high
            case _:
                return self.exact(expr, _describe(expr)).text if number == 0 else emitter.constant(0)
        if not bits:
            return low
        text = f"({low} >> {emitter.constant(bits)})"
        if high == emitter.constant(0):
            return text
        return f"({text} | (({high} << {emitter.constant(64 - bits)}) & {all_ones}))"

    def value(self, expr: ops.Expr) -> BoundedValue:
        """Return an expression's value."""
        match expr:
            case ops.Const(number):
                return self.constant(number)
            case ops.FieldRef() | ops.FieldElement():
                return self._emitter.read(expr)
            case ops.Param(_, bits, _, signed) if signed and bits <= 64:
                return self.sign_extended(self._emitter.param(expr), bits)
            case ops.Param():
                return unsigned(self._emitter.limb(expr, 0) or self._emitter.param(expr), expr.bits)
            case ops.Lookahead(offset, bits):
                return unsigned(
                    self._emitter.limb(expr, 0) or self._emitter.load_bits("(base + parsed)", offset, bits),
                    bits,
                )
            case ops.StackCount(stack):
                size = len(self._emitter.program.stacks[stack])
                return BoundedValue(self._emitter.stack_count(stack), 0, size)
            case ops.Unary("b2d", operand):
                texts = self._emitter.constant(1), self.condition(operand), self._emitter.constant(0)
                return BoundedValue("({} if {} else {})".format(*texts), 0, 1)
            case ops.Unary("~", operand):
                inner = self.value(operand)
                return BoundedValue(f"(~{inner.text})", -inner.high - 1, -inner.low - 1)
            case ops.Ternary(condition, if_true, if_false):
                yes, no = self.value(if_true), self.value(if_false)
                text = f"({yes.text} if {self.condition(condition)} else {no.text})"
                return BoundedValue(text, min(yes.low, no.low), max(yes.high, no.high))
            case ops.Binary(op, left, right):
                return self._binary(op, left, right)
        raise UnsupportedConstruct(
            f"{_describe(expr)} as a number: not supported; leave it out of the program"
        )

    def _binary(self, op: str, left: ops.Expr, right: ops.Expr) -> BoundedValue:
        match op:
            case "+" | "-" | "*":
                first, second = self.value(left), self.value(right)
                operands = product((first.low, first.high), (second.low, second.high))
                ends = [_ARITHMETIC[op](*pair) for pair in operands]
                return BoundedValue(f"({first.text} {op} {second.text})", min(ends), max(ends))
            case "&" | "|" | "^":
                return _bitwise(op, self.value(left), self.value(right))
            case "<<":
                return self._shift_left(self.value(left), right)
            case ">>":
                return self._shift_right(left, right)
            case "two_comp_mod" | "usat_cast" | "sat_cast":
                if not isinstance(right, ops.Const) or not 1 <= right.value <= _RANGE_SHIFT:
                    raise UnsupportedConstruct(f"operator {op}: to {right}; use a constant width")
                return self._cast(op, self.value(left), right.value)
        raise UnsupportedConstruct(f"operator {op} as a number: not supported; leave it out of the program")

    def _shift_left(self, value: BoundedValue, shift: ops.Expr) -> BoundedValue:
        """Return `value` << `shift`: text that is equal modulo 2**64, with the range of the exact result.

        Refuses the program if the shift itself may exceed 64 bits.
        """
        if isinstance(shift, ops.Const) and 0 <= shift.value < self._constant_shifts:
            text = f"({value.text} << {self._emitter.constant(shift.value)})"
            return BoundedValue(text, value.low << shift.value, value.high << shift.value)
        count = self.exact(shift, "operator <<")
        range_shift = min(count.high, _RANGE_SHIFT)
        low, high = min(0, value.low << range_shift), max(value.high, value.high << range_shift)
        return BoundedValue(f"shl({value.text}, {count.text})", low, high)

    def _shift_right(self, left: ops.Expr, shift: ops.Expr) -> BoundedValue:
        """Return `left` >> `shift`, which is an arithmetic shift if `left` may be negative."""
        value = self.value(left)
        if isinstance(shift, ops.Const) and value.high >= _TOP:
            if value.low < 0 or shift.value < 0:
                raise NotCompilable("operator >>: on signed numbers past 64 bits; cast to bit<W>")
            return BoundedValue(self.limb(ops.Binary(">>", left, shift), 0), 0, value.high >> shift.value)
        count = self.exact(shift, "operator >>")
        if value.low < 0 and value.signed:  # an unsigned shift of value + 2**63
            half, all_ones, most = map(self._emitter.constant, (_HALF, _TOP - 1, 63))
            places = count.text
            if count.high > 63:
                places = most if count.low > 63 else f"({places} if {places} < {most} else {most})"
            text = f"((({value.text} + {half}) & {all_ones}) >> {places}) - ({half} >> {places})"
            return BoundedValue(f"({text})", value.low, max(value.high, -1))
        value = self.exact(left, "operator >>")
        if isinstance(shift, ops.Const) and shift.value < 64:
            return BoundedValue(f"({value.text} >> {count.text})", 0, value.high >> shift.value)
        return BoundedValue(f"shr({value.text}, {count.text})", 0, value.high)

    def _cast(self, op: str, value: BoundedValue, bits: int) -> BoundedValue:
        """Return a value cast to `bits` bits: wrapped, or saturated to an unsigned or a signed type."""
        half = 1 << bits - 1
        if bits > 64:
            raise NotCompilable(f"operator {op}: to more than 64 bits")
        if op == "two_comp_mod":
            return self.sign_extended(self._truncate(value, bits).text, bits)
        low, high = (0, 2 * half - 1) if op == "usat_cast" else (-half, half - 1)
        if low <= value.low and value.high <= high:
            return value
        if not value.signed or not BoundedValue("", low, high).signed:
            raise NotCompilable(f"operator {op}: on numbers that do not fit 63 bits; cast them to fewer bits")
        ends = ", ".join(self._emitter.constant(end) for end in (low, high))
        return BoundedValue(
            f"clamp({value.text}, {ends})", max(low, min(value.low, high)), min(high, max(value.high, low))
        )

    def sign_extended(self, text: str, bits: int) -> BoundedValue:
        """Return the unsigned `text` of `bits` bits as a signed value."""
        half = self._emitter.constant(1 << bits - 1)
        return BoundedValue(f"(({text} ^ {half}) - {half})", -(1 << bits - 1), (1 << bits - 1) - 1)

    def _truncate(self, value: BoundedValue, bits: int) -> BoundedValue:
        """Return a value modulo 2**bits; the same text if it is in that range anyway."""
        if value.low >= 0 and value.high < 1 << bits:
            return value
        return unsigned(f"({value.text} & {self._emitter.constant((1 << bits) - 1)})", bits)

    def truncated(self, expr: ops.Expr, bits: int) -> str:
        """Return the source text of an expression truncated to `bits` bits (at most 64)."""
        return self._truncate(self.value(expr), bits).text


class ExactExpressions(Expressions):
    """Writes expressions for the interpreter, whose integers have any width and sign."""

    _constant_shifts = _RANGE_SHIFT

    def _compare(self, op: str, left: BoundedValue, right: BoundedValue) -> str:
        return f"({left.text} {op} {right.text})"

    def _comparison(self, op: str, left: ops.Expr, right: ops.Expr) -> str:
        return self._compare(op, self.value(left), self.value(right))

    def exact(self, expr: ops.Expr, what: str) -> BoundedValue:
        """Return an expression's value, modulo 2**64 as in BMv2; negative numbers become large ones."""
        return self._truncate(self.value(expr), 64)

    def limb(self, expr: ops.Expr, number: int) -> str:
        """Return the text of bits 64 * number to 64 * number + 63 of an expression."""
        return f"(({self.value(expr).text} >> {64 * number}) & {FULL})"

    def _shift_left(self, value: BoundedValue, shift: ops.Expr) -> BoundedValue:
        if isinstance(shift, ops.Const):
            return super()._shift_left(value, shift)
        # Longer shifts would take memory without limit, and no field is so wide.
        ranges = super()._shift_left(value, shift)
        count = f"min({self.exact(shift, 'operator <<').text}, {_RANGE_SHIFT})"
        return BoundedValue(f"({value.text} << {count})", ranges.low, ranges.high)

    def _shift_right(self, left: ops.Expr, shift: ops.Expr) -> BoundedValue:
        value, count = self.value(left), self.exact(shift, "operator >>")
        return BoundedValue(f"({value.text} >> {count.text})", min(0, value.low), max(0, value.high))

    def _cast(self, op: str, value: BoundedValue, bits: int) -> BoundedValue:
        if op == "two_comp_mod":
            return self.sign_extended(self._truncate(value, bits).text, bits)
        low, high = (0, (1 << bits) - 1) if op == "usat_cast" else (-(1 << bits - 1), (1 << bits - 1) - 1)
        ends = (self._emitter.constant(end) for end in (low, high))
        return BoundedValue("clamp({}, {}, {})".format(value.text, *ends), low, high)


def _is_boolean(expr: ops.Expr) -> bool:
    match expr:
        case ops.Bool() | ops.IsValid() | ops.Hit() | ops.InValueSet() | ops.Unary("not" | "d2b", _):
            return True
        case ops.Binary(op, _, _):
            return op in _COMPARISONS or op in ("and", "or")
        case ops.Ternary(_, if_true, _):
            return _is_boolean(if_true)
    return False


def _bitwise(op: str, left: BoundedValue, right: BoundedValue) -> BoundedValue:
    """Return `&`, `|` or `^` of two values, with a range that contains the result."""
    text = f"({left.text} {op} {right.text})"
    if op == "&":
        bounds = [side.high for side in (left, right) if side.low >= 0]
        if bounds:
            return BoundedValue(text, 0, min(bounds))
    elif left.low >= 0 and right.low >= 0:
        return BoundedValue(text, 0, (1 << max(left.high, right.high).bit_length()) - 1)
    bits = max(abs(end).bit_length() for side in (left, right) for end in (side.low, side.high))
    return BoundedValue(text, -(1 << bits), (1 << bits) - 1)


def _describe(expr: ops.Expr) -> str:
    return f"operator {expr.op}" if isinstance(expr, (ops.Unary, ops.Binary)) else type(expr).__name__
