"""Writes statements as source text: assignments, state, tables, branches, and loops over lanes."""

from __future__ import annotations

from peelsum.softswitch.compiler.emit_packets import (
    copy_header,
    copy_stack,
    extract,
    extract_next,
    set_validity,
    shift_stack,
    stop_parser,
)
from peelsum.softswitch.compiler.emit_registers import Registers, Row, StateLayout
from peelsum.softswitch.compiler.emit_sums import hash_fields
from peelsum.softswitch.compiler.emitter import Emitter
from peelsum.softswitch.compiler.flow import (
    Apply,
    Block,
    ExitCheck,
    Goto,
    If,
    Repeat,
    StateMachine,
    Statement,
)
from peelsum.softswitch.compiler.layout import (
    ROW_ENTRY,
    ROW_PARAMS,
    TablePlan,
    limbs,
    words_of,
)
from peelsum.softswitch.compiler.reroll import is_loop_invariant
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.program.load_expressions import VALID
from peelsum.softswitch.program.model import Advance, Extract, ExtractNext, Require, Verify
from peelsum.softswitch.program.operations import (
    Assign,
    AssignIndexed,
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
    ReadRegister,
    SetValidity,
    ShiftStack,
    WriteRegister,
    walk,
)

#: Parser states that one packet may go through.
MOST_STATE_VISITS = 4096


class Statements:
    """Writes blocks to one emitter."""

    def __init__(self, emitter: Emitter, layout: StateLayout) -> None:
        self._emit = emitter
        self._direct_counters = layout.direct
        self._registers = Registers(emitter, layout)

    def block(self, block: Block) -> None:
        """Write a block's statements in order."""
        for statement in block:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        """Write one statement."""
        emit = self._emit
        match statement:
            case Assign():
                self._assign(statement)
            case Hash(target):
                emit.line(f"{emit.place(target)} = {hash_fields(emit, statement, emit.bits(target))}")
            case AssignIndexed():
                self._assign_chosen(statement)
            case If():
                self._if(statement)
            case Apply():
                self._apply(statement)
            case Repeat():
                self._repeat(statement)
            case ReadRegister(target, register, index):
                self._registers.read(target, register, index)
            case WriteRegister(register, index, value):
                self._registers.write(register, index, value)
            case CountAt(counter, index):
                self._registers.count(counter, index)
            case SetValidity(header, valid):
                set_validity(emit, header, valid)
            case CopyHeader(target, source):
                copy_header(emit, target, source)
            case CopyStack(target, source):
                copy_stack(emit, target, source)
            case ShiftStack(stack, places):
                shift_stack(emit, stack, places)
            case ExtractNext(stack):
                extract_next(emit, stack)
            case StateMachine(states):
                self._state_machine(states)
            case Goto(state):
                emit.line("break" if state is None else f"state = {state}")
            case Exit():
                emit.line("leaving = True")
            case ExitCheck():
                with emit.block("if leaving:"):
                    emit.line("break")
            case Extract() | Require() | Advance() | Verify():
                self._parser_step(statement)

    def _parser_step(self, operation: Extract | Require | Advance | Verify) -> None:
        """Write an operation that may end the parser."""
        emit, expressions = self._emit, self._emit.expressions
        match operation:
            case Extract(header):
                extract(emit, header)
            case Require(bits):
                stop_parser(emit, f"remaining < {-(-bits // 8)}", "PacketTooShort")
            case Advance(count):
                stop_parser(emit, f"remaining < {count}", "PacketTooShort")
                emit.line(f"parsed = parsed + {count}")
                emit.line(f"remaining = remaining - {count}")
            case Verify(condition, error):
                stop_parser(emit, f"not {expressions.condition(condition)}", expressions.truncated(error, 32))

    def _state_machine(self, states: tuple[Block, ...]) -> None:
        """Write states as a loop.

        It limits visits, because states that extract nothing could loop forever.
        """
        emit = self._emit
        emit.line("state = 0")
        emit.line("visits = 0")
        with emit.block("while True:"):
            stop_parser(emit, f"visits == {MOST_STATE_VISITS}", "ParserTimeout")
            emit.line("visits = visits + 1")
            for number, block in enumerate(states):
                with emit.block(f"{'elif' if number else 'if'} state == {number}:"):
                    emit.filled.clear()  # the next visit may have other counts
                    self.block(block)

    # --- fields -----------------------------------------------------------------------------------

    def _assign(self, assignment: Assign) -> None:
        """Write an assignment to a field of any width."""
        emit, target, value = self._emit, assignment.target, assignment.value
        bits = emit.bits(target)
        if bits <= 64:
            emit.line(f"{emit.place(target)} = {emit.expressions.truncated(value, bits)}")
            return
        assert isinstance(target, FieldRef)
        for variable, text in zip(emit.limb_places(target), self._wide_limbs(value, bits), strict=True):
            emit.line(f"{variable} = {text}")

    def _assign_chosen(self, assignment: AssignIndexed) -> None:
        """Write an assignment to the target that an index selects, as a chain of tests."""
        emit = self._emit
        for number, target in enumerate(assignment.targets):
            test = emit.expressions.condition(Binary("==", assignment.index, Const(number)))
            with emit.block(f"{'elif' if number else 'if'} {test}:"):
                self._assign(Assign(target, assignment.value))

    def _wide_limbs(self, value: Expr, bits: int) -> list[str]:
        """Return the texts of a value's limbs, truncated or zero-extended to `bits`."""
        if isinstance(value, FieldRef) and self._emit.bits(value) == bits:
            return self._emit.limb_places(value)
        if isinstance(value, Const):
            value = Const(value.value % (1 << bits))
        expressions = self._emit.expressions
        bounds = expressions.value(value)
        if bounds.low < 0:
            raise UnsupportedConstruct(f"assignment to {bits} bits: may be negative; cast it to bit<{bits}>")
        texts = [expressions.limb(value, number) for number in reversed(range(words_of(bits)))]
        if bits % 64 and bounds.high >> bits:
            texts[0] = f"({texts[0]} & {(1 << bits % 64) - 1})"
        return texts

    # --- branches ---------------------------------------------------------------------------------

    def _if(self, branch: If, keyword: str = "if") -> None:
        """Write a branch; an `else` that is itself one branch becomes an `elif`."""
        before = dict(self._emit.filled)
        with self._emit.block(f"{keyword} {self._emit.expressions.condition(branch.condition)}:"):
            self.block(branch.then)
        filled_by_then, self._emit.filled = self._emit.filled, before
        if len(branch.orelse) == 1 and isinstance(branch.orelse[0], If):
            self._if(branch.orelse[0], "elif")
        elif branch.orelse:
            with self._emit.block("else:"):
                self.block(branch.orelse)
        self._emit.filled = dict(filled_by_then.items() & self._emit.filled.items())

    # --- tables -----------------------------------------------------------------------------------

    def _apply(self, application: Apply) -> None:
        """Write a table's lookup, its direct counter, and the actions."""
        emit, plan = self._emit, self._emit.plans[application.table]
        row = emit.temporary("row")
        default = plan.default_row
        emit.line(f"{row} = {_lookup(emit, plan) if plan.table.keys else default}")
        direct = self._direct_counters.get(application.table)
        if application.table in emit.hit_variables or direct is not None:
            emit.line(f"{emit.hit(application.table)} = {row} != {default}")
        if direct is not None:
            with emit.block(f"if {emit.hit(application.table)}:"):
                self._registers.count_cell(direct, f"memory[{row} + {ROW_ENTRY}]")
        self._action_arms(application, plan, row)

    def _action_arms(self, application: Apply, plan: TablePlan, row: str) -> None:
        """Write the statements of each action, as a chain of tests of the code in the row."""
        emit = self._emit
        arms = [(number, arm) for number, arm in application.arms if arm]
        if len(application.arms) == 1:
            for number, arm in arms:
                self._action_arm(plan, row, number, arm)
            return
        if not arms:
            return
        code = emit.temporary("code")
        emit.line(f"{code} = memory[{row}]")
        for position, (number, arm) in enumerate(arms):
            with emit.block(f"{'elif' if position else 'if'} {code} == {number + 1}:"):
                self._action_arm(plan, row, number, arm)

    def _action_arm(self, plan: TablePlan, row: str, number: int, arm: Block) -> None:
        """Write the loads of an action's parameters, then its statements."""
        emit, name = self._emit, plan.table.name
        params = {node.index: node for node in walk(arm) if isinstance(node, Param) and node.table == name}
        declared = emit.program.actions[number].params
        for index, param in sorted(params.items()):
            first_word = ROW_PARAMS + sum(words_of(other.bits) for other in declared[:index])
            for limb in range(words_of(param.bits)):
                emit.line(f"{emit.param(param, limb)} = memory[{row} + {first_word + limb}]")
        self.block(arm)

    # --- loops ------------------------------------------------------------------------------------

    def _repeat(self, loop: Repeat) -> None:
        """Write a loop. Rows of registers whose index is constant are computed and checked before it."""
        self._loop_with_checks(loop, self._invariant_rows(loop))
        self._registers.end_loop()

    def _loop_with_checks(self, loop: Repeat, rows: list[Row]) -> None:
        """Write a loop inside the checks of its rows, once for each outcome of a check."""
        emit = self._emit
        if not rows:
            self._loop(loop)
            return
        test, other_rows = rows[0][1], rows[1:]
        if test is None:
            self._registers.start_row(rows[0])
            self._loop_with_checks(loop, other_rows)
            return
        with emit.block(test):
            self._registers.start_row(rows[0])
            self._loop_with_checks(loop, other_rows)
        line_count = len(emit.lines)
        self._registers.skip_row(rows[0])
        with emit.block("else:"):
            before = len(emit.lines)
            self._loop_with_checks(loop, other_rows)
            is_empty = len(emit.lines) == before
        if is_empty:
            emit.drop_lines(line_count)

    def _loop(self, loop: Repeat) -> None:
        """Write a loop, or nothing if its body writes nothing."""
        line_count = len(self._emit.lines)
        with self._emit.block(f"for k in range({loop.count}):"):
            before = len(self._emit.lines)
            self.block(loop.body)
            is_empty = len(self._emit.lines) == before
        if is_empty:
            self._emit.drop_lines(line_count)

    def _invariant_rows(self, loop: Repeat) -> list[Row]:
        """Return the rows of the loop's registers whose index is the same in every iteration."""
        rows: dict[Row, None] = {}
        for access in walk(loop.body):
            if isinstance(access, (ReadRegister, WriteRegister)) and is_loop_invariant(
                self._emit.program, access.index, loop
            ):
                rows[self._registers.row(access.register, access.index)] = None
        return list(rows)


# --- lookups --------------------------------------------------------------------------------------


def _lookup(emit: Emitter, plan: TablePlan) -> str:
    """Write code that packs a packet's key and return the text of the lookup."""
    texts = [_key_word(emit, plan, number) for number in range(len(plan.words))]
    texts += [_key_limb(emit, plan, number, 0) for number in plan.ranges]
    lookup = "exact" if plan.exact else "first"
    place = f"memory, {plan.region}{f', {plan.capacity - 1}' if plan.exact else ''}"
    row = f"{plan.row_words}, {plan.key_offset}"
    if len(texts) == 1 and not plan.ranges:
        return f"find_{lookup}1({place}, {row}, {texts[0]}, {plan.default_row})"
    for number, text in enumerate(texts):
        emit.line(f"keys[{number}] = {text}")
    counts = f"{len(plan.words)}" if plan.exact else f"{len(plan.words)}, {len(plan.ranges)}"
    return f"find_{lookup}({place}, {row}, keys, {counts}, {plan.default_row})"


def _key_word(emit: Emitter, plan: TablePlan, number: int) -> str:
    """Return the text of one word of a packet's key."""
    texts = []
    for key_part in plan.words[number]:
        text = _key_limb(emit, plan, key_part.key, key_part.limb)
        texts.append(f"({text} << {key_part.shift})" if key_part.shift else text)
    return " | ".join(texts)


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
