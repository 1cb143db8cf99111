"""Writes statements as source text: assignments, state, tables, branches, and loops over lanes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeAlias

from peelsum.softswitch.compiler import emit_externs as externs
from peelsum.softswitch.compiler import emit_packets as packets
from peelsum.softswitch.compiler import flow
from peelsum.softswitch.compiler.emitter import Emitter
from peelsum.softswitch.compiler.extern_layout import member_codes
from peelsum.softswitch.compiler.layout import (
    ROW_ENTRY,
    ROW_PARAMS,
    CounterPlan,
    RegisterPlan,
    StateLayout,
    TablePlan,
    limbs,
    words_of,
)
from peelsum.softswitch.compiler.reroll import is_loop_invariant
from peelsum.softswitch.errors import NotCompilable
from peelsum.softswitch.program import operations as ops
from peelsum.softswitch.program.load_actions import VALID

#: This bit of `cloning` is set if the packet is cloned; the others are the session's number.
CLONE_FLAG = 1 << 15
#: Parser states that one packet may go through.
MOST_STATE_VISITS = 4096


#: Text of the index of a register row's first element, and the range check of the row, if it needs one.
Row: TypeAlias = tuple[str, str | None]


class Statements:
    """Writes blocks to one emitter.

    The registers of a bank are interleaved: a row has the cells with one index of all its registers. In a
    loop over lanes, the start of a row with a constant index is computed before the loop.
    """

    def __init__(self, emitter: Emitter, layout: StateLayout) -> None:
        self._emit = emitter
        self._layout = layout
        self._register_list = list(emitter.program.registers)
        #: In a loop: the variable with the start of each row computed before it; None if the index is too
        #: large.
        self._rows: dict[Row, str | None] = {}

    def block(self, block: flow.Block) -> None:
        """Write a block's statements in order."""
        for statement in block:
            self.statement(statement)

    def statement(self, statement: flow.Statement) -> None:
        """Write one statement."""
        emit, expressions = self._emit, self._emit.expressions
        match statement:
            case ops.Assign(target, value):
                self._assign(target, value)
            case ops.RunIndexed(index, cases):
                for number, case in enumerate(cases):
                    test = expressions.condition(ops.Binary("==", index, ops.Const(number)))
                    with emit.block(f"{'elif' if number else 'if'} {test}:"):
                        self.statement(case)
            case ops.Hash(target, algorithm, inputs, base, size):
                self._hash(target, packets.hash_of(emit, algorithm, inputs, f"hash {algorithm}"), base, size)
            case flow.If():
                self._if(statement)
            case flow.Apply():
                self._apply(statement)
            case flow.Repeat():
                self._repeat(statement)
            case ops.ReadRegister(target, register, index):
                bits = emit.bits(target)
                mask = f" & {(1 << bits) - 1}" if bits < self._plan(register).bits else ""
                self._access(register, index, f"{emit.place(target)} = {{cell}}{mask}")
            case ops.WriteRegister(register, index, value):
                text = expressions.truncated(value, self._plan(register).bits)
                self._access(register, index, f"{{cell}} = {text}")
            case ops.CountAt(counter, index):
                plan = self._layout.counters[counter]
                cell = expressions.exact(index, f"index of counter {counter}")
                with nullcontext() if cell.high < plan.size else emit.block(f"if {cell.text} < {plan.size}:"):
                    self._count(plan, cell.text)
            case flow.StateMachine():
                self._state_machine(statement)
            case flow.Goto(state):
                emit.line("break" if state is None else f"state = {state}")
            case ops.Clone(session, fields):
                emit.line(f"cloning = {expressions.truncated(session, 15)} | {CLONE_FLAG}")
                emit.line(f"clone_fields = {fields}")
            case ops.Resubmit(fields):
                emit.line(f"resubmit_fields = {fields}")
            case ops.Recirculate(fields):
                emit.line(f"recirculate_fields = {fields}")
            case ops.Exit():
                emit.line("leaving = True")
            case flow.ExitCheck():
                emit.nested("if leaving:", "break")
            case ops.Observe(point, operands):
                texts = (expressions.exact(operand, "operand").text for operand in operands)
                emit.line(f"observe({point}, locals(), [{', '.join(texts)}])")
            case (
                ops.ExecuteMeter()
                | ops.Random()
                | ops.Truncate()
                | ops.SendDigest()
                | ops.Log()
                | ops.Assert()
            ):
                externs.statement(emit, statement)
            case _:
                packets.statement(emit, statement)

    def _hash(self, target: ops.Target, hashed: str, base: ops.Expr, size: ops.Expr) -> None:
        """Write base + hash modulo size; a size of 0 gives the base."""
        emit, exact = self._emit, self._emit.expressions.exact
        emit.line(f"size_of = {exact(size, 'size of a hash').text}")
        reduced = f"{hashed} % (size_of if size_of != 0 else 1)"
        first, mask = exact(base, "base of a hash").text, (1 << emit.bits(target)) - 1
        emit.line(f"{emit.place(target)} = ({reduced} + {first}) & {mask}")

    def _repeat(self, loop: flow.Repeat) -> None:
        """Write a loop. Rows of registers whose index is constant in it are computed and checked before."""
        rows: dict[Row, None] = {}
        for access in ops.walk(loop.body):
            if isinstance(access, (ops.ReadRegister, ops.WriteRegister)) and is_loop_invariant(
                self._emit.program, access.index, loop
            ):
                rows[self._row(access.register, access.index)] = None
        self._loop_with_checks(loop, list(rows))
        self._rows.clear()

    def _state_machine(self, machine: flow.StateMachine) -> None:
        """Write states as a loop, with limited visits, as states that extract nothing could loop forever."""
        emit = self._emit
        emit.line("state = 0", "visits = 0")
        with emit.block("while True:"):
            if machine.in_parser:
                packets.stop_parser(emit, f"visits == {MOST_STATE_VISITS}", "ParserTimeout")
            else:
                emit.nested(f"if visits == {MOST_STATE_VISITS}:", "break")
            emit.line("visits = visits + 1")
            for number, block in enumerate(machine.states):
                with emit.block(f"{'elif' if number else 'if'} state == {number}:"):
                    emit.filled.clear()  # the next visit may have other counts
                    self.block(block)

    def _assign(self, target: ops.Target, value: ops.Expr) -> None:
        """Write an assignment to a field of any width."""
        emit, expressions = self._emit, self._emit.expressions
        bits = emit.bits(target)
        if bits <= 64 or emit.exact:
            emit.line(f"{emit.place(target)} = {expressions.truncated(value, bits)}")
            return
        assert isinstance(target, ops.FieldRef)
        if isinstance(value, ops.FieldRef) and emit.bits(value) == bits:
            texts = emit.places(value)
        else:
            if isinstance(value, ops.Const):
                value = ops.Const(value.value % (1 << bits))
            if expressions.value(value).low < 0:
                raise NotCompilable(f"assignment to {bits} bits: may be negative; cast it to bit<{bits}>")
            texts = expressions.limbs(value, bits)
        for variable, text in zip(emit.places(target), texts, strict=True):
            emit.line(f"{variable} = {text}")

    def _if(self, branch: flow.If, keyword: str = "if") -> None:
        """Write a branch; an `else` that is itself one branch becomes an `elif`."""
        before = dict(self._emit.filled)
        with self._emit.block(f"{keyword} {self._emit.expressions.condition(branch.condition)}:"):
            self.block(branch.then)
        filled_by_then, self._emit.filled = self._emit.filled, before
        if len(branch.orelse) == 1 and isinstance(branch.orelse[0], flow.If):
            self._if(branch.orelse[0], "elif")
        elif branch.orelse:
            with self._emit.block("else:"):
                self.block(branch.orelse)
        self._emit.filled = dict(filled_by_then.items() & self._emit.filled.items())

    def _apply(self, application: flow.Apply) -> None:
        """Write a table's lookup, its direct counter, and its actions: tests of the code in the row."""
        emit, table, plan = self._emit, application.table, self._emit.plans[application.table]
        row, default = emit.temporary("row"), plan.default_row
        emit.line(f"{row} = {self._lookup(plan)}")
        if emit.observed:
            emit.line(f"found = {row}")
        direct, profile = self._layout.direct.get(table), plan.table.profile
        records_hits = table in emit.externs.hits or table in emit.externs.direct_meters
        on_hit = direct is not None or profile is not None or records_hits
        if table in emit.hit_variables or on_hit:
            emit.line(f"{emit.hit(table)} = {row} != {default}")
        if on_hit:
            with emit.block(f"if {emit.hit(table)}:"):
                if direct is not None:
                    self._count(direct, f"memory[{row} + {ROW_ENTRY}]")
                externs.record_hit(emit, table, row)
                if profile is not None:
                    externs.choose_member(emit, profile, row, default)
        arms = [(number, arm) for number, arm in application.arms if arm]
        if len(application.arms) == 1:
            for number, arm in arms:
                self._action_arm(plan, row, number, arm)
        elif arms:
            code = emit.temporary("code")
            emit.line(f"{code} = memory[{row}]")
            codes = {} if profile is None else member_codes(emit.program, profile)
            for position, (number, arm) in enumerate(arms):
                name = emit.program.actions[number].name if number in plan.table.actions else ""
                with emit.block(f"{'elif' if position else 'if'} {code} == {codes.get(name, number + 1)}:"):
                    self._action_arm(plan, row, number, arm)

    def _lookup(self, plan: TablePlan) -> str:
        """Write the packet's key, and return the text of the row that it finds, or of the default row."""
        emit, default = self._emit, plan.default_row
        if not plan.table.keys:
            return str(default)
        texts = []  # of the words of the packet's key
        for key_parts in plan.words:
            limb_texts = [(_key_limb(emit, plan, part.key, part.limb), part.shift) for part in key_parts]
            texts.append(" | ".join(f"({text} << {shift})" if shift else text for text, shift in limb_texts))
        for number in plan.ranges:
            count = words_of(plan.table.keys[number].bits)
            texts += ["0"] * (plan.range_limbs - count)
            texts += [_key_limb(emit, plan, number, limb) for limb in range(count)]
        kind, mask = ("exact", f", {plan.capacity - 1}") if plan.exact else ("first", "")
        place = f"memory, {plan.region}{mask}, {plan.row_words}, {plan.key_offset}"
        if len(texts) == 1 and not plan.ranges:
            return f"find_{kind}1({place}, {texts[0]}, {default})"
        emit.line(*(f"keys[{number}] = {text}" for number, text in enumerate(texts)))
        counts = (
            f"{len(plan.words)}"
            if plan.exact
            else f"{len(plan.words)}, {len(plan.ranges)}, {plan.range_limbs}"
        )
        return f"find_{kind}({place}, keys, {counts}, {default})"

    def _action_arm(self, plan: TablePlan, row: str, number: int, arm: flow.Block) -> None:
        """Write the loads of an action's parameters, then its statements."""
        emit, name = self._emit, plan.table.name
        params = {
            node.index: node for node in ops.walk(arm) if isinstance(node, ops.Param) and node.table == name
        }
        declared = emit.program.actions[number].params
        for index, param in sorted(params.items()):
            first_word = ROW_PARAMS + sum(words_of(other.bits) for other in declared[:index])
            limb_count = words_of(param.bits)
            texts = [f"memory[{row} + {first_word + limb}]" for limb in range(limb_count)]
            if emit.exact:
                shifts = range(64 * (limb_count - 1), -1, -64)
                texts = [" | ".join(f"({text} << {by})" for text, by in zip(texts, shifts, strict=True))]
            emit.line(*(f"{emit.param(param, limb)} = {text}" for limb, text in enumerate(texts)))
        self.block(arm)

    def _loop_with_checks(self, loop: flow.Repeat, rows: list[Row]) -> None:
        """Write a loop inside the checks of its rows, once for each outcome of a check."""
        emit = self._emit
        if not rows:
            self._block_or_nothing(f"for k in range({loop.count}):", lambda: self.block(loop.body))
            return
        row, other_rows = rows[0], rows[1:]
        start, test = row
        with nullcontext() if test is None else emit.block(test):
            self._rows[row] = variable = emit.temporary("start")
            emit.line(f"{variable} = {start}")
            self._loop_with_checks(loop, other_rows)
        if test is not None:
            self._rows[row] = None
            self._block_or_nothing("else:", lambda: self._loop_with_checks(loop, other_rows))

    def _block_or_nothing(self, head: str, write_body: Callable[[], None]) -> None:
        """Write a block, or nothing if its body writes nothing."""
        lines = self._emit.lines
        line_count = len(lines)
        with self._emit.block(head):
            write_body()
            is_empty = len(lines) == line_count + 1
        if is_empty:
            del lines[line_count:]

    def _count(self, plan: CounterPlan, index: str) -> None:
        """Add the packet to the cell with this index, which is in range."""
        emit = self._emit
        cell = emit.temporary("cell")
        emit.line(
            f"{cell} = {plan.base} + 2 * {index}",
            f"counts[{cell}] = counts[{cell}] + 1",
            f"counts[{cell} + 1] = counts[{cell} + 1] + size",
        )

    def _plan(self, register: ops.AnyRegister) -> RegisterPlan:
        name = self._register_list[register.first] if isinstance(register, ops.RegisterElement) else register
        return self._layout.registers[name]

    def _row(self, register: ops.AnyRegister, index: ops.Expr) -> Row:
        """Return the text of `index` times the bank's width, and its range check; None if it always fits."""
        plan = self._plan(register)
        value = self._emit.expressions.exact(index, "index of a register")
        row = value.text if plan.step == 1 else f"{value.text} * {plan.step}"
        return row, None if value.high < plan.size else f"if {value.text} < {plan.size}:"

    def _access(self, register: ops.AnyRegister, index: ops.Expr, line: str) -> None:
        """Write `line`, with a register's cell in place of `{cell}`, unless the index is out of range."""
        row = self._row(register, index)
        start, test = (self._rows[row], None) if row in self._rows else row
        if start is None:
            return
        plan = self._plan(register)
        cell = f"{start} + {plan.base}"
        if isinstance(register, ops.RegisterElement):
            offset = "k" if abs(register.step) == 1 else f"k * {abs(register.step)}"
            cell += f" {'-' if register.step < 0 else '+'} {offset}"
        with nullcontext() if test is None else self._emit.block(test):
            self._emit.line(line.format(cell=f"{'wide' if plan.wide else 'regs'}[{cell}]"))


def _key_limb(emit: Emitter, plan: TablePlan, number: int, limb: int) -> str:
    """Return a limb of a packet's key value; fields of invalid headers are 0."""
    key = plan.table.keys[number]
    if key.target.field == VALID:
        text = f"(1 if {emit.validity(key.target.header)} else 0)"
    else:
        text = emit.limb_places(key.target)[limb]
        if not emit.program.headers[key.target.header].metadata:
            text = f"({text} if {emit.validity(key.target.header)} else 0)"
    if key.mask is not None:
        text = f"({text} & {limbs(key.mask, key.bits)[limb]})"
    return text
