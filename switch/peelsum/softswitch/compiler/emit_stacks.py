"""Writes code for header stacks.

A stack's elements are ordinary headers; one variable per stack counts the filled ones. Where every path of
the parser has filled as many, `next` is one known element. Elsewhere, e.g. in a loop, the code finds it by
the variable when a packet is processed.
"""

from __future__ import annotations

from peelsum.softswitch.compiler.emit_packets import copy_fields, extract, stop_parser
from peelsum.softswitch.compiler.emitter import Emitter


def extract_next(emit: Emitter, stack: str) -> None:
    """Extract a stack's next element from the packet."""
    elements = emit.program.stacks[stack]
    count, filled = emit.stack_count(stack), emit.filled.get(stack)
    if filled is not None and filled < len(elements):
        extract(emit, elements[filled])
        emit.line(f"{count} = {emit.constant(filled + 1)}")
        emit.filled[stack] = filled + 1
        return
    stop_parser(emit, f"{count} == {emit.constant(len(elements))}", "StackOutOfBounds")
    for number, header in enumerate(elements):
        with emit.block(f"{'elif' if number else 'if'} {count} == {emit.constant(number)}:"):
            extract(emit, header)
    emit.line(f"{count} = {count} + {emit.constant(1)}")


def push(emit: Emitter, stack: str, places: int) -> None:
    """Shift a stack's elements up; those shifted past its end are lost."""
    emit.filled.pop(stack, None)
    elements = emit.program.stacks[stack]
    for number in range(len(elements) - 1, places - 1, -1):
        _move(emit, elements[number], elements[number - places])
    for header in elements[:places]:
        emit.line(f"{emit.validity(header)} = False")
    count, size = emit.stack_count(stack), emit.constant(len(elements))
    moved = f"{count} + {emit.constant(places)}"
    emit.line(f"{count} = {moved} if {moved} < {size} else {size}")


def pop(emit: Emitter, stack: str, places: int) -> None:
    """Shift a stack's elements down; the first ones are lost."""
    emit.filled.pop(stack, None)
    elements = emit.program.stacks[stack]
    kept = max(len(elements) - places, 0)
    for number in range(kept):
        _move(emit, elements[number], elements[number + places])
    for header in elements[kept:]:
        emit.line(f"{emit.validity(header)} = False")
    count, gone = emit.stack_count(stack), emit.constant(places)
    emit.line(f"{count} = {count} - {gone} if {count} > {gone} else {emit.constant(0)}")


def copy_stack(emit: Emitter, target: str, source: str) -> None:
    """Copy a stack from another of its type."""
    emit.filled.pop(target, None)
    for to, header in zip(emit.program.stacks[target], emit.program.stacks[source], strict=True):
        _move(emit, to, header)
    emit.line(f"{emit.stack_count(target)} = {emit.stack_count(source)}")


def _move(emit: Emitter, target: str, source: str) -> None:
    copy_fields(emit, target, source)
    emit.line(f"{emit.validity(target)} = {emit.validity(source)}")
