"""Writes table lookups: packing a packet's key and calling the lookup function of the table's kind."""

from __future__ import annotations

from peelsum.softswitch.compiler.emitter import Emitter
from peelsum.softswitch.compiler.layout import TablePlan, limbs
from peelsum.softswitch.program.load_expressions import VALID


def lookup(emit: Emitter, plan: TablePlan) -> str:
    """Write code that packs a packet's key and return the text of the lookup."""
    texts = [_key_word(emit, plan, number) for number in range(len(plan.words))]
    texts += [_key_limb(emit, plan, number, 0) for number in plan.ranges]
    numbers = [plan.region, plan.row_words, plan.key_offset]
    region, row_words, at = map(emit.constant, numbers)
    default = emit.constant(plan.default_row)
    last = f", {emit.constant(plan.capacity - 1)}" if plan.exact else ""
    kind = "exact" if plan.exact else "first"
    if len(texts) == 1 and not plan.ranges:
        return f"find_{kind}1(memory, {region}{last}, {row_words}, {at}, {texts[0]}, {default})"
    for number, text in enumerate(texts):
        emit.line(f"keys[{emit.constant(number)}] = {text}")
    counts = emit.constant(len(plan.words))
    if not plan.exact:
        counts += f", {emit.constant(len(plan.ranges))}"
    return f"find_{kind}(memory, {region}{last}, {row_words}, {at}, keys, {counts}, {default})"


def _key_word(emit: Emitter, plan: TablePlan, number: int) -> str:
    parts = []
    for part in plan.words[number]:
        text = _key_limb(emit, plan, part.key, part.limb)
        parts.append(f"({text} << {emit.constant(part.shift)})" if part.shift else text)
    return " | ".join(parts)


def _key_limb(emit: Emitter, plan: TablePlan, number: int, limb: int) -> str:
    """Return a limb of a packet's key value; fields of invalid headers are 0."""
    key = plan.table.keys[number]
    if key.target.field == VALID:
        text = f"({emit.constant(1)} if {emit.validity(key.target.header)} else {emit.constant(0)})"
    else:
        text = emit.limb_places(key.target)[limb]
        if not emit.program.headers[key.target.header].metadata:
            text = f"({text} if {emit.validity(key.target.header)} else {emit.constant(0)})"
    if key.mask is not None:
        text = f"({text} & {emit.constant(limbs(key.mask, key.bits)[limb])})"
    return text
