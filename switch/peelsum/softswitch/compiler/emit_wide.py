"""Writes numbers of more than 64 bits as source text, one limb of 64 bits at a time.

Copies, constants, bitwise operators and shifts by a constant need no carry, so each limb stands for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from peelsum.softswitch.compiler.layout import FULL
from peelsum.softswitch.program.operations import Binary, Const, Expr, Unary


class Limbs(Protocol):
    """Where limbs come from; `Emitter` provides them."""

    def constant(self, value: int) -> str:
        """Return the name of a constant."""

    def limb(self, source: Expr, number: int) -> str | None:
        """Return a limb of a field, parameter or lookahead; None if `source` has at most 64 bits."""


def limb_of(names: Limbs, expr: Expr, number: int, narrow: Callable[[Expr], str]) -> str:
    """Return the text of bits 64 * number to 64 * number + 63 of an expression.

    narrow: returns the text of an expression of at most 64 bits, or raises UnsupportedConstruct.
    """

    def limb(part: Expr, place: int) -> str:
        return limb_of(names, part, place, narrow)

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
            return f"({limb(left, number)} {op} {limb(right, number)})"
        case Unary("~", operand):
            return f"(~{limb(operand, number)} & {whole})"
        case Binary(">>", operand, Const(count)) if count >= 0:
            low, bits = limb(operand, number + count // 64), count % 64
            high = limb(operand, number + count // 64 + 1)
        case Binary("<<", operand, Const(count)) if count >= 0:
            high, bits = limb(operand, number - count // 64), -count % 64
            low = limb(operand, number - count // 64 - 1)
            if not bits:
                return high
        case _:
            return narrow(expr) if number == 0 else names.constant(0)
    if not bits:
        return low
    text = f"({low} >> {names.constant(bits)})"
    if high == names.constant(0):
        return text
    return f"({text} | (({high} << {names.constant(64 - bits)}) & {whole}))"
