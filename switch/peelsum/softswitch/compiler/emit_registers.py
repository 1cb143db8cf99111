"""Writes accesses to registers and counters as source text: cells, range checks, and rows in loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from peelsum.softswitch.compiler.emitter import Emitter
from peelsum.softswitch.compiler.layout import CounterPlan, RegisterPlan
from peelsum.softswitch.program.operations import AnyRegister, Expr, RegisterElement, Target

#: Text of the index of a register row's first element, and the range check of the row, if it needs one.
Row: TypeAlias = tuple[str, str | None]


@dataclass(frozen=True)
class StateLayout:
    """The layout of the program's registers and counters."""

    registers: dict[str, RegisterPlan]
    counters: dict[str, CounterPlan]
    direct: dict[str, CounterPlan]


class Registers:
    """Writes accesses to registers and counters.

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

    def start_row(self, row: Row) -> None:
        """Store a row's start in a variable, for the loop that follows."""
        self._rows[row] = variable = self._emit.temporary("start")
        self._emit.line(f"{variable} = {row[0]}")

    def skip_row(self, row: Row) -> None:
        """Write no accesses to a row in the loop that follows, because its index is too large."""
        self._rows[row] = None

    def end_loop(self) -> None:
        """Forget the rows of the loop that has been written."""
        self._rows.clear()

    def count(self, counter: str, index: Expr) -> None:
        """Add the packet to a counter's cell, unless the index is out of range."""
        plan = self._layout.counters[counter]
        value = self._emit.expressions.exact(index, f"index of counter {counter}")
        if value.high < plan.size:
            self.count_cell(plan, value.text)
            return
        with self._emit.block(f"if {value.text} < {plan.size}:"):
            self.count_cell(plan, value.text)

    def count_cell(self, plan: CounterPlan, index: str) -> None:
        """Add the packet to the cell with this index, which is in range."""
        emit = self._emit
        cell = emit.temporary("cell")
        emit.line(f"{cell} = {plan.base} + 2 * {index}")
        emit.line(f"counts[{cell}] = counts[{cell}] + 1")
        emit.line(f"counts[{cell} + 1] = counts[{cell} + 1] + size")

    def _plan(self, register: AnyRegister) -> RegisterPlan:
        name = self._register_list[register.first] if isinstance(register, RegisterElement) else register
        return self._layout.registers[name]

    def _cell(self, register: AnyRegister, row: str) -> str:
        """Return the text of a register's cell; `row` is the first element of all cells with that index."""
        plan = self._plan(register)
        text = f"{row} + {plan.base}"
        if isinstance(register, RegisterElement):
            offset = "k" if abs(register.step) == 1 else f"k * {abs(register.step)}"
            text += f" {'-' if register.step < 0 else '+'} {offset}"
        return f"{'wide' if plan.wide else 'regs'}[{text}]"

    def _row_start(self, register: AnyRegister, index: Expr) -> Row | None:
        """Return the row's start and its remaining check; None if the index is known to be too large."""
        row = self.row(register, index)
        if row not in self._rows:
            return row
        start = self._rows[row]
        return None if start is None else (start, None)

    def row(self, register: AnyRegister, index: Expr) -> Row:
        """Return the text of `index` times the bank's width, and its range check; None if it always fits."""
        plan = self._plan(register)
        value = self._emit.expressions.exact(index, "index of a register")
        row = value.text if plan.step == 1 else f"{value.text} * {plan.step}"
        fits = value.high < plan.size
        return row, None if fits else f"if {value.text} < {plan.size}:"

    def read(self, target: Target, register: AnyRegister, index: Expr) -> None:
        """Assign a register's cell to `target`, unless the index is out of range."""
        bits = min(self._emit.bits(target), 64)
        plan = self._plan(register)
        row_start = self._row_start(register, index)
        if row_start is None:
            return
        row, test = row_start
        cell = self._cell(register, row)
        if bits < plan.bits:
            cell = f"{cell} & {(1 << bits) - 1}"
        store = f"{self._emit.place(target)} = {cell}"
        self._write_guarded(test, store)

    def write(self, register: AnyRegister, index: Expr, value: Expr) -> None:
        """Assign a value to a register's cell, unless the index is out of range."""
        row_start = self._row_start(register, index)
        if row_start is None:
            return
        row, test = row_start
        text = self._emit.expressions.truncated(value, self._plan(register).bits)
        self._write_guarded(test, f"{self._cell(register, row)} = {text}")

    def _write_guarded(self, test: str | None, line: str) -> None:
        """Write a line, inside a block that tests the index if there is a test."""
        if test is None:
            self._emit.line(line)
            return
        with self._emit.block(test):
            self._emit.line(line)
