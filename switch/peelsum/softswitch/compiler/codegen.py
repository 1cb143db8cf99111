"""Compiles a program to the source text of one Python function that processes a batch of frames.

The same text runs in plain Python (`runtime.plain`) and through Numba (`runtime.native`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from peelsum.softswitch.compiler.emit_multi_pass import MOST_ITEMS, MultiPassWriter, is_multi_pass
from peelsum.softswitch.compiler.emit_registers import StateLayout
from peelsum.softswitch.compiler.emit_switch import Blocks, SwitchWriter, architecture_fields
from peelsum.softswitch.compiler.emitter import Emitter
from peelsum.softswitch.compiler.flow import parser_block, pipeline_block
from peelsum.softswitch.compiler.layout import TablePlan, plan_counters, plan_registers, plan_tables
from peelsum.softswitch.compiler.reroll import Roller
from peelsum.softswitch.compiler.storage import Storage
from peelsum.softswitch.program.model import Program
from peelsum.softswitch.program.operations import (
    HASHES,
    CopyHeader,
    CopyStack,
    Recirculate,
    SetValidity,
    ShiftStack,
    walk,
)

#: Names that generated code takes from `plain` or `native`.
RUNTIME = (
    *("K", "number", "array8", "array16", "array32", "array64", "clamp", "copy", "shl", "shr"),
    *("find_exact", "find_exact1", "find_first", "find_first1"),
    *("enqueue", "burst_depth", "waiting_time", "schedule_departure"),
    *(f"hash_{name}" for name in HASHES),
    *("load8", "load16", "load32", "load64", "store8", "store16", "store32", "store64"),
)


@dataclass(frozen=True)
class Generated:
    """A program's source text and the layout of its state."""

    source: str
    tables: dict[str, TablePlan]
    layout: StateLayout
    growth: int
    """The most bytes by which a packet can become longer."""
    queue_words: int = 0
    """Words of the queue for cloned, resubmitted and recirculated packets; 0 if the program makes none."""


@lru_cache(maxsize=8)
def generate(program: Program, roll: bool = True, queued: bool = False) -> Generated:
    """Return the code of a program. Raises UnsupportedConstruct if it cannot be generated.

    roll: convert statements that differ only by lane to loops.
    queued: the switch has queues at its ports, so packets pass through them.
    """
    roller = Roller(program)
    unrolled = Blocks(
        parser_block(program.parser),
        pipeline_block(program, program.ingress),
        pipeline_block(program, program.egress),
    )
    blocks = Blocks(*map(roller.roll, unrolled)) if roll else unrolled
    spans = roller.spans()
    registers = list(program.registers)
    banks = [registers[low : high + 1] for low, high in spans.get("", ())]
    counters = plan_counters(program)
    direct = {item.table: counters[name] for name, item in program.counters.items() if item.table is not None}
    layout = StateLayout(plan_registers(program, banks), counters, direct)
    tables = plan_tables(program)
    storage = Storage(program, blocks, spans, architecture_fields(program))
    emit = Emitter(program, storage, tables)
    growth = _growth(program, blocks)
    if not is_multi_pass(blocks):
        return Generated(SwitchWriter(emit, layout, blocks, queued).source(), tables, layout, growth)
    writer = MultiPassWriter(emit, layout, blocks, queued)
    if any(isinstance(node, Recirculate) for node in walk(blocks.egress)):
        growth *= MOST_ITEMS + 1
    return Generated(writer.source(), tables, layout, growth, writer.queue_words())


def _growth(program: Program, blocks: Blocks) -> int:
    """Return the bytes of all headers that the program may add to a packet."""
    added: set[str] = set()
    for node in (node for block in blocks for node in walk(block)):
        match node:
            case SetValidity(header, True):
                added.add(header)
            case CopyHeader(target, _):
                added.add(target)
            case ShiftStack(stack, _) | CopyStack(stack, _):
                added.update(program.stacks[stack])
    return sum(program.headers[header].bits // 8 for header in added)
