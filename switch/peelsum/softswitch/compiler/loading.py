"""Loads a BMv2 JSON file and checks that code can be generated for it."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from peelsum.reading import parse_json, read_bytes
from peelsum.softswitch.compiler.emit_multi_pass import MOST_ITEMS, MultiPassWriter
from peelsum.softswitch.compiler.emit_switch import EGRESS_SPEC, Blocks, SwitchWriter
from peelsum.softswitch.compiler.emitter import Emitter
from peelsum.softswitch.compiler.extern_layout import ExternLayout, plan_externs
from peelsum.softswitch.compiler.flow import Block, parser_block, pipeline_block
from peelsum.softswitch.compiler.layout import (
    StateLayout,
    Storage,
    TablePlan,
    plan_counters,
    plan_registers,
    plan_tables,
)
from peelsum.softswitch.compiler.observing import Observation, Point
from peelsum.softswitch.compiler.reroll import Roller
from peelsum.softswitch.errors import BadProgram, NotCompilable, UnsupportedConstruct
from peelsum.softswitch.program import operations as ops
from peelsum.softswitch.program.loader import read
from peelsum.softswitch.program.model import Program

#: Most bytes of a BMv2 JSON file.
MOST_PROGRAM_BYTES = 16 << 20


def load(path: str | PathLike[str]) -> Program:
    """Return the program in a BMv2 JSON file.

    Raises BadProgram if the file is not such a program, and UnsupportedConstruct if it uses something that
    the softswitch does not support. Both name the item and where it is.
    """
    try:
        document = parse_json(read_bytes(Path(path), MOST_PROGRAM_BYTES), MOST_PROGRAM_BYTES)
    except OSError as error:
        remedy = "give the JSON file that p4c-bm2-ss wrote"
        if error.errno == errno.EFBIG:
            remedy = "remove its indentation, by `python -m json.tool --compact`"
        raise BadProgram(f"{path}: {error.strerror}; {remedy}") from None
    except ValueError as error:
        raise BadProgram(f"{path}: not JSON ({error}); give the file that p4c-bm2-ss wrote") from None
    return parse(document, Path(path).stem)


def parse(document: Any, name: str) -> Program:
    """Return the program in a BMv2 JSON document. Raises as `load` does."""
    if not isinstance(document, dict) or "pipelines" not in document:
        raise BadProgram(
            f"{name}: has no pipelines, so it is not BMv2 JSON; compile the program with p4c-bm2-ss"
        )
    try:
        version = document.get("__meta__", {}).get("version", [2])
        if version[0] != 2:
            raise UnsupportedConstruct(f"{name}: BMv2 JSON version {version}; use version 2")
        if "ingress" not in [item["name"] for item in document["pipelines"]]:
            raise BadProgram(f"{name}: has no pipeline named ingress; compile for v1model (p4c-bm2-ss)")
        program = read(document, name)
        generate(program, True, False)  # finds unsupported constructs; a switch gets the code from its cache
    except (KeyError, TypeError, IndexError, ValueError, OverflowError, AttributeError) as error:
        raise BadProgram(f"{name}: incomplete BMv2 JSON ({error!r}); compile the program again") from error
    except RecursionError:
        raise UnsupportedConstruct(
            f"{name}: branches or an expression nested too deeply; make tables or variables of parts"
        ) from None
    return program


#: Names that generated code takes from `plain` or `native`.
RUNTIME = (
    *("K", "number", "array8", "array16", "array32", "array64", "clamp", "copy", "shl", "shr"),
    *("find_exact", "find_exact1", "find_first", "find_first1"),
    *("enqueue", "burst_depth", "waiting_time", "schedule_departure"),
    *("meter_colour", "random_number", "next_number"),
    *("crc_reflected", "crc_forward", "internet_checksum", "xor_words", "first_number"),
    *("load8", "load16", "load32", "load64", "store8", "store16", "store32", "store64"),
)


#: Names that only code for the interpreter takes from `plain`.
EXACT_RUNTIME = ("load_number", "store_number", "hash_ex", "xxh64")


@dataclass(frozen=True)
class Generated:
    """A program's source text and the layout of its state."""

    source: str
    tables: dict[str, TablePlan]
    externs: ExternLayout
    layout: StateLayout
    growth: int
    """The most bytes by which a packet can become longer."""
    queue_words: int = 0
    """Words of the queue for cloned, resubmitted and recirculated packets; 0 if the program makes none."""
    not_compilable: str = ""
    """Why only the interpreter can run the code; empty if Numba can compile it."""
    variables: dict[tuple[str, str], str] = field(default_factory=dict)
    """The variables of fields and headers, as in `Emitter.variables`; only of code that is observed."""
    points: tuple[Point, ...] = ()
    """The points that such code reports, by number."""


@lru_cache(maxsize=8)
def generate(program: Program, roll: bool = True, queued: bool = False, observed: bool = False) -> Generated:
    """Return the code of a program. Raises UnsupportedConstruct if it cannot be generated.

    If machine code cannot do what the program does, the code is for the interpreter only.
    roll: convert statements that differ only by lane to loops.
    queued: the switch has queues at its ports, so packets pass through them.
    observed: the code reports each step of a packet, and is for the interpreter only.
    """
    if observed:
        return replace(_generate(program, False, queued, True, observed), not_compilable="it is observed")
    try:
        for header in program.headers.values():
            if header.varbit:
                raise NotCompilable(f"varbit {header.name}.{header.varbit.name}")
        for register in program.registers.values():
            if register.bits > 64:
                raise NotCompilable(f"register {register.name}: cells of {register.bits} bits")
        return _generate(program, roll, queued, exact=False)
    except NotCompilable as error:
        return replace(_generate(program, False, queued, exact=True), not_compilable=str(error))


def _blocks(program: Program) -> Blocks:
    pipelines = (pipeline_block(program, graph) for graph in (program.ingress, program.egress))
    return Blocks._make((parser_block(program.parser), *pipelines, program.deparser_body))


def _observed_blocks(observation: Observation) -> Blocks:
    """Return a program's blocks with statements that report each step of a packet."""
    program = observation.program
    pipelines: list[Block] = []
    for name, graph in (("ingress", program.ingress), ("egress", program.egress)):
        block = pipeline_block(program, graph, lambda node: (observation.node_point(node),))
        ends = observation.pipeline_point("start", name), observation.pipeline_point("end", name)
        pipelines.append((ends[0], *block, ends[1]))
    return Blocks._make((parser_block(program.parser), *pipelines, program.deparser_body))


def _generate(program: Program, roll: bool, queued: bool, exact: bool, observed: bool = False) -> Generated:
    """Return the code of a program: for both modes, or `exact` code for the interpreter only."""
    roller, observation = Roller(program), Observation(program) if observed else None
    unrolled = _blocks(program) if observation is None else _observed_blocks(observation)
    blocks = Blocks(*map(roller.roll, unrolled)) if roll else unrolled
    spans = roller.spans()
    registers = list(program.registers)
    banks = [registers[low : high + 1] for low, high in spans.get("", ())]
    counters = plan_counters(program)
    direct = {item.table: counters[name] for name, item in program.counters.items() if item.table is not None}
    layout = StateLayout(plan_registers(program, banks), counters, direct)
    tables = plan_tables(program)
    externs = plan_externs(program, max((plan.end for plan in tables.values()), default=0))
    # The architecture needs these fields even if the program does not use them.
    group = program.intrinsic("intrinsic_metadata.mcast_grp")
    fields = [EGRESS_SPEC] if group is None else [EGRESS_SPEC, group]
    if observed:  # each is a variable of its own
        headers = program.headers.values()
        fields += [ops.FieldRef(header.name, field.name) for header in headers for field in header.fields]
    storage = Storage(program, blocks, spans, fields, exact)
    emit = Emitter(program, storage, tables, externs, exact, observed)
    added: set[str] = set()
    for node in (node for block in blocks for node in ops.walk(block)):
        match node:
            case ops.SetValidity(header, True) | ops.CopyHeader(header):
                added.add(header)
            case ops.ShiftStack(stack) | ops.CopyStack(stack):
                added.update(header for element in program.stacks[stack] for header in element)
            case ops.AssignVarbit(target):
                added.add(target.header)
    growth = sum(sum(part.bits for part in program.headers[name].fields) // 8 for name in added)
    requests = {type(node) for block in blocks for node in ops.walk(block)}
    variables = emit.variables() if observed else {}
    points = () if observation is None else tuple(observation.points)
    if not requests & {ops.Clone, ops.Resubmit, ops.Recirculate}:
        source = SwitchWriter(emit, layout, blocks, queued).source()
        return Generated(source, tables, externs, layout, growth, variables=variables, points=points)
    writer = MultiPassWriter(emit, layout, blocks, queued)
    if any(isinstance(node, ops.Recirculate) for node in ops.walk(blocks.egress)):
        growth *= MOST_ITEMS + 1
    queue_words = writer.queue_words()
    source = writer.source()
    return Generated(source, tables, externs, layout, growth, queue_words, "", variables, points)
