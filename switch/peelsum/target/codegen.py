"""Program -> the source text of one Python function that takes a batch of frames through it.

The same text runs as it is (`plain`) and through Numba (`native`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from peelsum.target.bounds import largest_values
from peelsum.target.emit_statements import Places
from peelsum.target.emit_switch import Blocks, SwitchWriter, architecture_fields
from peelsum.target.emitter import Emitter
from peelsum.target.flow import parser_block, pipeline_block, walk
from peelsum.target.lane_temporaries import see_through
from peelsum.target.layout import TablePlan, plan_counters, plan_registers, plan_tables
from peelsum.target.operations import AddHeader, CopyHeader
from peelsum.target.program import Program
from peelsum.target.reroll import Roller
from peelsum.target.storage import Storage

#: Names that generated code takes from `plain` or `native`.
RUNTIME = (
    *("K", "number", "array8", "array16", "array32", "array64", "clamp", "copy", "shl", "shr"),
    *("find_exact", "find_exact1", "find_first", "find_first1", "enqueue", "waiting_time", "leave"),
    *("load8", "load16", "load32", "load64", "store8", "store16", "store32", "store64"),
)


@dataclass(frozen=True)
class Generated:
    """A program's source text, and where the state that it works on lies.

    A packet grows by `growth` bytes at most on its way through.
    """

    source: str
    tables: dict[str, TablePlan]
    places: Places
    growth: int


@lru_cache(maxsize=8)
def generate(program: Program, roll: bool = True, queued: bool = False) -> Generated:
    """Source text for a program; `roll` makes loops of runs that differ by lane, `queued` heeds queues.

    Raises UnsupportedConstruct for what cannot be written as such a function.
    """
    roller = Roller(program)
    made = Blocks(
        parser_block(program.parser),
        pipeline_block(program, program.ingress),
        pipeline_block(program, program.egress),
    )
    blocks = Blocks(*see_through(program, [roller.roll(block) for block in made.all()])) if roll else made
    spans = roller.spans()
    registers = list(program.registers)
    banks = [registers[low : high + 1] for low, high in spans.ranges.get("", ())]
    counters = plan_counters(program)
    direct = {item.table: counters[name] for name, item in program.counters.items() if item.table is not None}
    places = Places(plan_registers(program, banks), counters, direct)
    tables = plan_tables(program)
    storage = Storage(program, blocks.all(), spans, architecture_fields(program))
    largest = largest_values(program, storage, tables, blocks.all())
    emit = Emitter(program, storage, tables, largest)
    source = SwitchWriter(emit, places, blocks, queued).source()
    return Generated(source, tables, places, _growth(program, blocks))


def _growth(program: Program, blocks: Blocks) -> int:
    added = {node.header for block in blocks.all() for node in walk(block) if isinstance(node, AddHeader)}
    added |= {node.target for block in blocks.all() for node in walk(block) if isinstance(node, CopyHeader)}
    return sum(program.headers[header].bits // 8 for header in added)
