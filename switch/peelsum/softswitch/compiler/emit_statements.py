"""Statements -> source text: assignments, state, tables, branches, and the loops over lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from peelsum.softswitch.compiler.emit_hashes import hash_fields
from peelsum.softswitch.compiler.emit_machine import machine, note_again
from peelsum.softswitch.compiler.emit_packets import (
    add_header,
    copy_header,
    extract,
    remove_header,
    stop_parser,
)
from peelsum.softswitch.compiler.emit_stacks import copy_stack, extract_next, pop, push
from peelsum.softswitch.compiler.emitter import Emitter
from peelsum.softswitch.compiler.flow import (
    Apply,
    Block,
    Goto,
    If,
    Leave,
    Machine,
    Repeat,
    Statement,
    is_steady,
)
from peelsum.softswitch.compiler.layout import (
    ROW_ENTRY,
    ROW_PARAMS,
    CounterPlan,
    RegisterPlan,
    TablePlan,
    limbs,
    words_of,
)
from peelsum.softswitch.program.load_expressions import VALID
from peelsum.softswitch.program.model import Advance, Extract, ExtractNext, Require, Verify
from peelsum.softswitch.program.operations import (
    AddHeader,
    AnyRegister,
    Assign,
    AssignChosen,
    Binary,
    Clone,
    Const,
    CopyHeader,
    CopyStack,
    CopyUnion,
    CountAt,
    Exit,
    Expr,
    FieldRef,
    Hash,
    MarkToDrop,
    Param,
    Pop,
    Push,
    ReadRegister,
    Recirculate,
    RegisterElement,
    RemoveHeader,
    Resubmit,
    Target,
    WriteRegister,
    walk,
)
from peelsum.wire import DROP_PORT

#: Text of the element where a row of registers starts, and the test of its index, if it needs one.
Row: TypeAlias = tuple[str, str | None]


@dataclass(frozen=True)
class Places:
    """Where the program's state lies."""

    registers: dict[str, RegisterPlan]
    counters: dict[str, CounterPlan]
    direct: dict[str, CounterPlan]


class Statements:
    """Writes blocks to one emitter."""

    def __init__(self, emitter: Emitter, places: Places) -> None:
        self._emit = emitter
        self._places = places
        self._register_list = list(emitter.program.registers)
        #: In a loop: variables with the elements where rows start; None where the index is past the end.
        self._rows: dict[Row, str | None] = {}

    def block(self, block: Block) -> None:
        """Every statement in turn."""
        for part in block:
            self.statement(part)

    def statement(self, part: Statement) -> None:
        """One statement."""
        emit, express = self._emit, self._emit.expressions
        match part:
            case Assign():
                self._assign(part)
            case Hash(target):
                emit.line(f"{emit.place(target)} = {hash_fields(emit, part, emit.bits(target))}")
            case AssignChosen():
                self._assign_chosen(part)
            case If():
                self._if(part)
            case Apply():
                self._apply(part)
            case Repeat():
                self._repeat(part)
            case ReadRegister(target, register, index):
                self._read_register(target, register, index)
            case WriteRegister(register, index, value):
                self._write_register(register, index, value)
            case CountAt(counter, index):
                self._count(counter, index)
            case AddHeader(header):
                add_header(emit, header)
            case RemoveHeader(header):
                remove_header(emit, header)
            case CopyHeader(target, source):
                copy_header(emit, target, source)
            case CopyUnion(headers):
                self.block(headers)
            case CopyStack(to, source):
                copy_stack(emit, to, source)
            case Push(stack, places):
                push(emit, stack, places)
            case Pop(stack, places):
                pop(emit, stack, places)
            case ExtractNext(stack):
                extract_next(emit, stack)
            case Clone() | Resubmit() | Recirculate():
                note_again(emit, part)
            case Machine():
                machine(emit, part, self.block)
            case Goto(state):
                emit.line("break" if state is None else f"state = {emit.constant(state)}")
            case MarkToDrop():
                self._mark_to_drop()
            case Exit():
                emit.line("leaving = True")
            case Leave():
                with emit.block("if leaving:"):
                    emit.line("break")
            case Extract(header):
                extract(emit, header)
            case Require(bits):
                stop_parser(emit, f"left < {emit.constant(-(-bits // 8))}", "PacketTooShort")
            case Advance(count):
                stop_parser(emit, f"left < {emit.constant(count)}", "PacketTooShort")
                emit.line(f"off = off + {emit.constant(count)}")
                emit.line(f"left = left - {emit.constant(count)}")
            case Verify(condition, error):
                stop_parser(emit, f"not {express.condition(condition)}", express.stored(error, 32))

    # --- fields -----------------------------------------------------------------------------------

    def _assign(self, part: Assign) -> None:
        bits = self._emit.bits(part.target)
        if bits <= 64:
            self._emit.line(
                f"{self._emit.place(part.target)} = {self._emit.expressions.stored(part.value, bits)}"
            )
            return
        assert isinstance(part.target, FieldRef)
        places = self._emit.limb_places(part.target)
        for place, text in zip(places, self._wide(part.value, bits), strict=True):
            self._emit.line(f"{place} = {text}")

    def _assign_chosen(self, part: AssignChosen) -> None:
        emit = self._emit
        for number, target in enumerate(part.targets):
            test = emit.expressions.condition(Binary("==", part.index, Const(number)))
            with emit.block(f"{'elif' if number else 'if'} {test}:"):
                self._assign(Assign(target, part.value))

    def _wide(self, value: Expr, bits: int) -> list[str]:
        """Texts of a value's limbs, cut to or filled up to `bits`."""
        count = words_of(bits)
        zero = self._emit.constant(0)
        match value:
            case Const(number):
                return [self._emit.constant(limb) for limb in limbs(number % (1 << bits), bits)]
            case FieldRef() if self._emit.bits(value) == bits:
                return self._emit.limb_places(value)
            case Param() if value.bits == bits:
                return [self._emit.param(value, limb) for limb in range(count)]
        narrow = self._emit.expressions.exact(value, f"assignment to {bits} bits")
        return [zero] * (count - 1) + [narrow.text]

    def _mark_to_drop(self) -> None:
        program, emit = self._emit.program, self._emit
        emit.line(f"{emit.place(FieldRef('standard_metadata', 'egress_spec'))} = {emit.constant(DROP_PORT)}")
        group = program.intrinsic("intrinsic_metadata.mcast_grp")
        if group is not None:
            emit.line(f"{emit.place(group)} = {emit.constant(0)}")

    # --- branches ---------------------------------------------------------------------------------

    def _if(self, part: If, word: str = "if") -> None:
        with self._emit.block(f"{word} {self._emit.expressions.condition(part.condition)}:"):
            self.block(part.then)
        if len(part.orelse) == 1 and isinstance(part.orelse[0], If):
            self._if(part.orelse[0], "elif")
        elif part.orelse:
            with self._emit.block("else:"):
                self.block(part.orelse)

    # --- tables -----------------------------------------------------------------------------------

    def _apply(self, part: Apply) -> None:
        emit, plan = self._emit, self._emit.plans[part.table]
        row = emit.temporary("row")
        default = emit.constant(plan.default_row)
        emit.line(f"{row} = {self._lookup(plan) if plan.table.keys else default}")
        direct = self._places.direct.get(part.table)
        if part.table in emit.hits or direct is not None:
            emit.line(f"{emit.hit(part.table)} = {row} != {default}")
        if direct is not None:
            with emit.block(f"if {emit.hit(part.table)}:"):
                self._add_to(direct, f"memory[{row} + {emit.constant(ROW_ENTRY)}]")
        self._arms(part, plan, row)

    def _arms(self, part: Apply, plan: TablePlan, row: str) -> None:
        emit = self._emit
        arms = [(number, arm) for number, arm in part.arms if arm]
        if len(part.arms) == 1:
            for number, arm in arms:
                self._arm(plan, row, number, arm)
            return
        if not arms:
            return
        code = emit.temporary("code")
        emit.line(f"{code} = memory[{row}]")
        for position, (number, arm) in enumerate(arms):
            with emit.block(f"{'elif' if position else 'if'} {code} == {emit.constant(number + 1)}:"):
                self._arm(plan, row, number, arm)

    def _arm(self, plan: TablePlan, row: str, number: int, arm: Block) -> None:
        """An action and what follows it, its parameters loaded first."""
        emit, name = self._emit, plan.table.name
        params = {node.index: node for node in walk(arm) if isinstance(node, Param) and node.table == name}
        declared = emit.program.actions[number].params
        for index, param in sorted(params.items()):
            before = ROW_PARAMS + sum(words_of(other.bits) for other in declared[:index])
            for limb in range(words_of(param.bits)):
                emit.line(f"{emit.param(param, limb)} = memory[{row} + {emit.constant(before + limb)}]")
        self.block(arm)

    def _lookup(self, plan: TablePlan) -> str:
        emit = self._emit
        texts = [self._key_word(plan, number) for number in range(len(plan.words))]
        texts += [self._key_limb(plan, number, 0) for number in plan.ranges]
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

    def _key_word(self, plan: TablePlan, number: int) -> str:
        parts = []
        for part in plan.words[number]:
            text = self._key_limb(plan, part.key, part.limb)
            parts.append(f"({text} << {self._emit.constant(part.shift)})" if part.shift else text)
        return " | ".join(parts)

    def _key_limb(self, plan: TablePlan, number: int, limb: int) -> str:
        """A limb of a packet's key value; fields of invalid headers count as 0."""
        emit, key = self._emit, plan.table.keys[number]
        if key.target.field == VALID:
            text = f"({emit.constant(1)} if {emit.validity(key.target.header)} else {emit.constant(0)})"
        else:
            text = emit.limb_places(key.target)[limb]
            if not emit.program.headers[key.target.header].metadata:
                text = f"({text} if {emit.validity(key.target.header)} else {emit.constant(0)})"
        if key.mask is not None:
            text = f"({text} & {emit.constant(limbs(key.mask, key.bits)[limb])})"
        return text

    # --- counters and registers -------------------------------------------------------------------

    def _count(self, counter: str, index: Expr) -> None:
        plan = self._places.counters[counter]
        value = self._emit.expressions.exact(index, f"index of counter {counter}")
        if value.high < plan.size:
            self._add_to(plan, value.text)
            return
        with self._emit.block(f"if {value.text} < {self._emit.constant(plan.size)}:"):
            self._add_to(plan, value.text)

    def _add_to(self, plan: CounterPlan, index: str) -> None:
        emit = self._emit
        cell = emit.temporary("cell")
        emit.line(f"{cell} = {emit.constant(plan.base)} + {emit.constant(2)} * {index}")
        emit.line(f"counts[{cell}] = counts[{cell}] + {emit.constant(1)}")
        emit.line(f"counts[{cell} + {emit.constant(1)}] = counts[{cell} + {emit.constant(1)}] + size")

    def _plan(self, register: AnyRegister) -> RegisterPlan:
        name = self._register_list[register.first] if isinstance(register, RegisterElement) else register
        return self._places.registers[name]

    def _cell(self, register: AnyRegister, row: str) -> str:
        """A register's cell, `row` being the element where all cells of that index start."""
        plan, emit = self._plan(register), self._emit
        array = "wide" if plan.wide else "regs"
        column = plan.base
        text = f"{row} + {emit.constant(column)}"
        if isinstance(register, RegisterElement):
            turn = "k" if abs(register.step) == 1 else f"k * {emit.constant(abs(register.step))}"
            text += f" {'-' if register.step < 0 else '+'} {turn}"
        return f"{array}[{text}]"

    def _found_row(self, register: AnyRegister, index: Expr) -> Row | None:
        """Where the row starts and what is left to test; None where the index is known to be too large."""
        row = self._row(register, index)
        if row not in self._rows:
            return row
        known = self._rows[row]
        return None if known is None else (known, None)

    def _row(self, register: AnyRegister, index: Expr) -> Row:
        """The text of `index` times the bank's width, and the test that it needs; None if it always fits."""
        plan = self._plan(register)
        value = self._emit.expressions.exact(index, "index of a register")
        row = value.text if plan.step == 1 else f"{value.text} * {self._emit.constant(plan.step)}"
        fits = value.high < plan.size
        return row, None if fits else f"if {value.text} < {self._emit.constant(plan.size)}:"

    def _read_register(self, target: Target, register: AnyRegister, index: Expr) -> None:
        bits = min(self._emit.bits(target), 64)
        plan = self._plan(register)
        found = self._found_row(register, index)
        if found is None:
            return
        row, test = found
        cell = self._cell(register, row)
        if bits < plan.bits:
            cell = f"{cell} & {self._emit.constant((1 << bits) - 1)}"
        store = f"{self._emit.place(target)} = {cell}"
        self._guarded(test, store)

    def _write_register(self, register: AnyRegister, index: Expr, value: Expr) -> None:
        found = self._found_row(register, index)
        if found is None:
            return
        row, test = found
        text = self._emit.expressions.stored(value, self._plan(register).bits)
        self._guarded(test, f"{self._cell(register, row)} = {text}")

    def _guarded(self, test: str | None, line: str) -> None:
        if test is None:
            self._emit.line(line)
            return
        with self._emit.block(test):
            self._emit.line(line)

    # --- loops ------------------------------------------------------------------------------------

    def _repeat(self, part: Repeat) -> None:
        """A loop. Register rows that stay the same are found, and checked, once before it."""
        self._checked_loop(part, self._steady_rows(part))
        self._rows.clear()

    def _checked_loop(self, part: Repeat, rows: list[Row]) -> None:
        emit = self._emit
        if not rows:
            self._loop(part)
            return
        test, rest = rows[0][1], rows[1:]
        if test is None:
            self._start(rows[0])
            self._checked_loop(part, rest)
            return
        with emit.block(test):
            self._start(rows[0])
            self._checked_loop(part, rest)
        mark = len(emit.lines)
        self._rows[rows[0]] = None
        with emit.block("else:"):
            before = len(emit.lines)
            self._checked_loop(part, rest)
            empty = len(emit.lines) == before
        if empty:
            emit.drop_lines(mark)

    def _start(self, row: Row) -> None:
        self._rows[row] = variable = self._emit.temporary("start")
        self._emit.line(f"{variable} = {row[0]}")

    def _loop(self, part: Repeat) -> None:
        mark = len(self._emit.lines)
        with self._emit.block(f"for k in range({self._emit.constant(part.count)}):"):
            before = len(self._emit.lines)
            self.block(part.body)
            empty = len(self._emit.lines) == before
        if empty:
            self._emit.drop_lines(mark)

    def _steady_rows(self, part: Repeat) -> list[Row]:
        """Rows of the loop's registers whose index is the same on every turn."""
        rows: dict[Row, None] = {}
        for step in walk(part.body):
            if isinstance(step, (ReadRegister, WriteRegister)) and is_steady(
                self._emit.program, step.index, part
            ):
                rows[self._row(step.register, step.index)] = None
        return list(rows)
