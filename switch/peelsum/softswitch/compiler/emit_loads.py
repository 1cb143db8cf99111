"""Loads of a packet's bits, in source text: a field may start and end within a byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

#: Returns the name of a constant in the generated code.
Constant: TypeAlias = Callable[[int], str]

#: Bytes that one load or store of the generated code takes.
SIZES = (8, 4, 2, 1)


def load_bits(constant: Constant, base: str, offset: int, bits: int) -> str:
    """Return the text of `bits` bits (at most 64) that start `offset` bits after the byte at `base`."""
    first, end = offset // 8, -(-(offset + bits) // 8)
    if end - first > 8:
        # They span nine bytes: load the last one separately.
        tail = offset + bits - 8 * (end - 1)
        head = load_bits(constant, base, offset, bits - tail)
        low = load_bits(constant, base, 8 * (end - 1), tail)
        return f"(({head} << {constant(tail)}) | {low})"
    text = _load_bytes(constant, base, first, end - first)
    spare = 8 * end - offset - bits
    if spare:
        text = f"({text} >> {constant(spare)})"
    if offset % 8:
        text = f"({text} & {constant((1 << bits) - 1)})"
    return text


def _load_bytes(constant: Constant, base: str, first: int, count: int) -> str:
    text = ""
    for size in SIZES:
        while count >= size:
            at = f"{base} + {constant(first)}" if first else base
            part = f"load{8 * size}(data, {at})"
            text = f"(({text} << {constant(8 * size)}) | {part})" if text else part
            first, count = first + size, count - size
    return text
