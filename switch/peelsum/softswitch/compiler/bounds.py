"""Bounds of the program's own metadata: the largest value that any statement assigns to each field.

With them, generated code leaves out checks that always pass, above all of register indices that the program
has masked. The order of assignments is not considered.
"""

from __future__ import annotations

from collections.abc import Sequence

from peelsum.softswitch.compiler.emit_expressions import Value
from peelsum.softswitch.compiler.emitter import Emitter
from peelsum.softswitch.compiler.flow import Block
from peelsum.softswitch.compiler.layout import TablePlan
from peelsum.softswitch.compiler.storage import Storage
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program.model import Program, is_own
from peelsum.softswitch.program.operations import (
    Assign,
    CopyHeader,
    FieldRef,
    Hash,
    ReadRegister,
    walk,
)

#: Each round can propagate a bound through one more assignment.
_ROUNDS = 2


def largest_values(
    program: Program, storage: Storage, plans: dict[str, TablePlan], blocks: Sequence[Block]
) -> dict[FieldRef, int]:
    """Return the largest value of each metadata field that never reaches the largest of its width."""
    nodes = [node for block in blocks for node in walk(block)]
    copied = {name for node in nodes if isinstance(node, CopyHeader) for name in (node.target, node.source)}
    elsewhere = {node.target for node in nodes if isinstance(node, (Hash, ReadRegister))}
    assigned: dict[FieldRef, list[Assign]] = {}
    for node in nodes:
        if isinstance(node, Assign) and isinstance(node.target, FieldRef) and node.target not in elsewhere:
            assigned.setdefault(node.target, []).append(node)
    own = {
        ref: steps
        for ref, steps in assigned.items()
        if is_own(program, ref) and ref.header not in copied and storage.array(ref) is None
    }
    known: dict[FieldRef, int] = {}
    for _ in range(_ROUNDS):
        emit = Emitter(program, storage, plans, known)
        known = {ref: top for ref, steps in own.items() if (top := _top(emit, ref, steps)) is not None}
    return known


def _top(emit: Emitter, ref: FieldRef, steps: Sequence[Assign]) -> int | None:
    """Return the largest value of some assignments; None if it is the largest that the width allows."""
    limit = (1 << emit.bits(ref)) - 1
    tops = []
    for step in steps:
        value = _value(emit, step)
        tops.append(value.high if value is not None and value.low >= 0 else limit)
    return max(tops) if max(tops) < limit else None


def _value(emit: Emitter, step: Assign) -> Value | None:
    try:
        return emit.expressions.value(step.value)
    except UnsupportedConstruct:
        return None  # writing the statement will raise this again, with its place
