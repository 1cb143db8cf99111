"""Writes statements as source text: assignments, state, tables, branches, and loops over lanes."""

from __future__ import annotations

from peelsum.softswitch.compiler.emit_packets import (
    add_header,
    copy_header,
    copy_stack,
    extract,
    extract_next,
    pop,
    push,
    remove_header,
    stop_parser,
)
from peelsum.softswitch.compiler.emit_registers import Places, Registers, Row
from peelsum.softswitch.compiler.emit_sums import hash_fields
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
)
from peelsum.softswitch.compiler.layout import (
    ROW_ENTRY,
    ROW_PARAMS,
    TablePlan,
    limbs,
    words_of,
)
from peelsum.softswitch.compiler.reroll import is_steady
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program.load_expressions import VALID
from peelsum.softswitch.program.model import Advance, Extract, ExtractNext, Require, Verify
from peelsum.softswitch.program.operations import (
    AddHeader,
    Assign,
    AssignChosen,
    Binary,
    Const,
    CopyHeader,
    CopyStack,
    CountAt,
    Exit,
    Expr,
    FieldRef,
    Hash,
    Param,
    Pop,
    Push,
    ReadRegister,
    RemoveHeader,
    WriteRegister,
    walk,
)

#: Parser states that one packet may go through.
MOST_VISITS = 4096


class Statements:
    """Writes blocks to one emitter."""

    def __init__(self, emitter: Emitter, places: Places) -> None:
        self._emit = emitter
        self._direct_counters = places.direct
        self._registers = Registers(emitter, places)

    def block(self, block: Block) -> None:
        """Write a block's statements in order."""
        for part in block:
            self.statement(part)

    def statement(self, part: Statement) -> None:
        """Write one statement."""
        emit = self._emit
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
                self._registers.read(target, register, index)
            case WriteRegister(register, index, value):
                self._registers.write(register, index, value)
            case CountAt(counter, index):
                self._registers.count(counter, index)
            case AddHeader(header):
                add_header(emit, header)
            case RemoveHeader(header):
                remove_header(emit, header)
            case CopyHeader(target, source):
                copy_header(emit, target, source)
            case CopyStack(to, source):
                copy_stack(emit, to, source)
            case Push(stack, places):
                push(emit, stack, places)
            case Pop(stack, places):
                pop(emit, stack, places)
            case ExtractNext(stack):
                extract_next(emit, stack)
            case Machine(states):
                self._machine(states)
            case Goto(state):
                emit.line("break" if state is None else f"state = {emit.constant(state)}")
            case Exit():
                emit.line("leaving = True")
            case Leave():
                with emit.block("if leaving:"):
                    emit.line("break")
            case Extract() | Require() | Advance() | Verify():
                self._parser_step(part)

    def _parser_step(self, part: Extract | Require | Advance | Verify) -> None:
        emit, express = self._emit, self._emit.expressions
        match part:
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

    def _machine(self, states: tuple[Block, ...]) -> None:
        """Write states as a loop. It counts visits: a state that reads nothing could run forever."""
        emit = self._emit
        emit.line(f"state = {emit.constant(0)}")
        emit.line(f"visits = {emit.constant(0)}")
        with emit.block("while True:"):
            stop_parser(emit, f"visits == {emit.constant(MOST_VISITS)}", "ParserTimeout")
            emit.line(f"visits = visits + {emit.constant(1)}")
            for number, block in enumerate(states):
                with emit.block(f"{'elif' if number else 'if'} state == {emit.constant(number)}:"):
                    emit.filled.clear()  # a loop comes back with other counts
                    self.block(block)

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
        """Return the texts of a value's limbs, truncated or zero-extended to `bits`."""
        if isinstance(value, FieldRef) and self._emit.bits(value) == bits:
            return self._emit.limb_places(value)
        if isinstance(value, Const):
            value = Const(value.value % (1 << bits))
        express = self._emit.expressions
        found = express.value(value)
        if found.low < 0:
            raise UnsupportedConstruct(f"assignment to {bits} bits: may be negative; cast it to bit<{bits}>")
        texts = [express.limb(value, number) for number in reversed(range(words_of(bits)))]
        if bits % 64 and found.high >> bits:
            texts[0] = f"({texts[0]} & {self._emit.constant((1 << bits % 64) - 1)})"
        return texts

    # --- branches ---------------------------------------------------------------------------------

    def _if(self, part: If, word: str = "if") -> None:
        before = dict(self._emit.filled)
        with self._emit.block(f"{word} {self._emit.expressions.condition(part.condition)}:"):
            self.block(part.then)
        then, self._emit.filled = self._emit.filled, before
        if len(part.orelse) == 1 and isinstance(part.orelse[0], If):
            self._if(part.orelse[0], "elif")
        elif part.orelse:
            with self._emit.block("else:"):
                self.block(part.orelse)
        self._emit.filled = dict(then.items() & self._emit.filled.items())

    # --- tables -----------------------------------------------------------------------------------

    def _apply(self, part: Apply) -> None:
        emit, plan = self._emit, self._emit.plans[part.table]
        row = emit.temporary("row")
        default = emit.constant(plan.default_row)
        emit.line(f"{row} = {_lookup(emit, plan) if plan.table.keys else default}")
        direct = self._direct_counters.get(part.table)
        if part.table in emit.hits or direct is not None:
            emit.line(f"{emit.hit(part.table)} = {row} != {default}")
        if direct is not None:
            with emit.block(f"if {emit.hit(part.table)}:"):
                self._registers.count_cell(direct, f"memory[{row} + {emit.constant(ROW_ENTRY)}]")
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
        """Write an action, preceded by loads of its parameters."""
        emit, name = self._emit, plan.table.name
        params = {node.index: node for node in walk(arm) if isinstance(node, Param) and node.table == name}
        declared = emit.program.actions[number].params
        for index, param in sorted(params.items()):
            before = ROW_PARAMS + sum(words_of(other.bits) for other in declared[:index])
            for limb in range(words_of(param.bits)):
                emit.line(f"{emit.param(param, limb)} = memory[{row} + {emit.constant(before + limb)}]")
        self.block(arm)

    # --- loops ------------------------------------------------------------------------------------

    def _repeat(self, part: Repeat) -> None:
        """Write a loop. Register rows with a constant index are computed and checked once before it."""
        self._checked_loop(part, self._steady_rows(part))
        self._registers.forget_rows()

    def _checked_loop(self, part: Repeat, rows: list[Row]) -> None:
        emit = self._emit
        if not rows:
            self._loop(part)
            return
        test, rest = rows[0][1], rows[1:]
        if test is None:
            self._registers.start_row(rows[0])
            self._checked_loop(part, rest)
            return
        with emit.block(test):
            self._registers.start_row(rows[0])
            self._checked_loop(part, rest)
        mark = len(emit.lines)
        self._registers.leave_out_row(rows[0])
        with emit.block("else:"):
            before = len(emit.lines)
            self._checked_loop(part, rest)
            empty = len(emit.lines) == before
        if empty:
            emit.drop_lines(mark)

    def _loop(self, part: Repeat) -> None:
        mark = len(self._emit.lines)
        with self._emit.block(f"for k in range({self._emit.constant(part.count)}):"):
            before = len(self._emit.lines)
            self.block(part.body)
            empty = len(self._emit.lines) == before
        if empty:
            self._emit.drop_lines(mark)

    def _steady_rows(self, part: Repeat) -> list[Row]:
        """Return the rows of the loop's registers whose index is the same in every iteration."""
        rows: dict[Row, None] = {}
        for step in walk(part.body):
            if isinstance(step, (ReadRegister, WriteRegister)) and is_steady(
                self._emit.program, step.index, part
            ):
                rows[self._registers.row(step.register, step.index)] = None
        return list(rows)


# --- lookups --------------------------------------------------------------------------------------


def _lookup(emit: Emitter, plan: TablePlan) -> str:
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
