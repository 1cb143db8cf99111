"""A running P4 program: frames in, frames out, and state that the control plane reads and writes.

It has no sockets and no clock: time is an argument, and ports are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.compiler.emit_multi_pass import MOST_ITEMS, REFUSED_COUNT
from peelsum.softswitch.compiler.extern_layout import member_codes
from peelsum.softswitch.compiler.loading import Generated, generate
from peelsum.softswitch.errors import InvalidEntry, SoftswitchError, UnsupportedConstruct
from peelsum.softswitch.program.model import Program
from peelsum.softswitch.runtime.action_profiles import ProfileState
from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.messages import Messages
from peelsum.softswitch.runtime.meters import MeterCells
from peelsum.softswitch.runtime.native import CompiledProgram, machine_code
from peelsum.softswitch.runtime.plain import Observer, interpreted
from peelsum.softswitch.runtime.queues import Queues
from peelsum.softswitch.runtime.state import (
    FairLock,
    IndirectCounter,
    Register,
    ReplicationGroups,
    ValueSetState,
)
from peelsum.softswitch.runtime.tables import Table, argument_words

#: The clock of programs counts microseconds modulo this.
_CLOCK_WRAP = 1 << 48
_Scalar = TypeVar("_Scalar", np.uint32, np.uint64)


class ProgramMemory(NamedTuple):
    """The memory of a running program, for compiled loops."""

    memory: NDArray[np.uint64]  # of tables
    regs: NDArray[np.uint32]
    wide: NDArray[np.uint64]
    counts: NDArray[np.uint64]
    groups: NDArray[np.uint64]
    queues: NDArray[np.uint64]


class Switch:
    """A running program and its state, which is initially zero and without entries.

    mode: "numba" runs machine code; "python" interprets the generated code, hundreds of times slower. A
    program that would take too long to compile is interpreted, too: then the attribute `mode` is "python".
    roll: False keeps statements for each lane instead of loops, for tests that compare both.
    queues: the queues of ports that have a rate.
    observer: called at each step of a packet; the program is then interpreted.
    The attribute `lock` is held while a batch is processed, and during every access to state.
    """

    def __init__(
        self,
        program: Program,
        mode: Literal["numba", "python"] = "numba",
        *,
        roll: bool = True,
        queues: Queues | None = None,
        observer: Observer | None = None,
    ) -> None:
        if mode not in ("numba", "python"):
            raise SoftswitchError(f"mode: {mode!r} is unknown; use 'numba' or 'python'")
        self.program = program
        self.lock = FairLock()
        #: The code of the program, and the layout of its state.
        self.generated = generated = generate(program, roll, queues is not None, observer is not None)
        self.groups = ReplicationGroups(self.lock)
        #: Clone sessions, which have numbers of their own.
        self.sessions = ReplicationGroups(self.lock, "clone session", 1 << 15)
        self._state = _new_memory(generated, self.groups, queues or Queues({}))
        self._add_control()
        self._pass_queue: NDArray[Any] = np.zeros(generated.queue_words, np.uint64)
        if generated.not_compilable:  # for variables of more than 64 bits
            self._pass_queue = self._pass_queue.astype(object)
        self._queued_bytes = np.zeros(0, np.uint8)
        self._output = OutputBuffers()
        code = machine_code(generated, program.name) if mode == "numba" else None
        self.mode = "python" if code is None else "numba"
        self._run = interpreted(generated, observer) if code is None else code
        #: For compiled loops; None if the program is interpreted, or clones, resubmits or recirculates.
        self.entry = None if code is None or generated.queue_words else CompiledProgram(code)
        #: The most bytes by which a frame can become longer.
        self.growth = generated.growth

    def _add_control(self) -> None:
        """Add what the control plane reads and writes, by name: tables, externs and their cells."""
        program, externs, layout = self.program, self.generated.externs, self.generated.layout
        memory, regs, wide, counts, *_ = self._state
        direct = {table: counts[p.base : p.base + 2 * p.size] for table, p in layout.direct.items()}
        #: Action profiles by name.
        self.profiles = {
            name: ProfileState(
                declaration, externs.profiles[name], memory, _action_words(program, name), self.lock
            )
            for name, declaration in program.profiles.items()
        }
        meters = _meters(program, externs.meters, memory, self.lock)
        #: Indirect meters by name.
        self.meters = {name: cells for name, cells in meters.items() if program.meters[name].table is None}
        hits = {
            name: memory[base : base + program.tables[name].capacity] for name, base in externs.hits.items()
        }
        self.tables = {
            name: Table(
                program,
                plan,
                memory,
                direct.get(name),
                self.lock,
                profile=self.profiles.get(plan.table.profile or ""),
                meter=meters.get(externs.direct_meters.get(name, "")),
                hits=hits.get(name),
            )
            for name, plan in self.generated.tables.items()
        }
        #: Value sets of the parser by name.
        self.value_sets = {
            name: ValueSetState(plan, memory, self.lock) for name, plan in externs.value_sets.items()
        }
        #: What the program sends to the control plane.
        self.messages = Messages(program, externs, memory)
        self.registers = {
            name: Register(name, plan, wide if plan.wide else regs, self.lock)
            for name, plan in layout.registers.items()
        }
        self.counters = {
            name: IndirectCounter(name, plan, counts, self.lock)
            for name, plan in layout.counters.items()
            if program.counters[name].table is None
        }

    def process(self, frames: Frames, now_us: int) -> Frames:
        """Process frames one after the other at time `now_us` (microseconds); return those that leave.

        Outgoing frames keep the order of incoming ones, and copies that of their group. The returned arrays
        are valid until the next call. Raises InvalidEntry if the shapes of `frames`' arrays disagree.
        """
        data, length, port = _checked_arrays(frames)
        count, stride = data.shape
        out_stride = stride + self.growth
        with self.lock:
            output = self._output
            copies = max(self.groups.most_copies, self.sessions.most_copies)
            output.prepare(max(count, copies), out_stride)
            processed = written = 0
            multi_pass_arguments: tuple[NDArray[Any], ...] = ()
            if self.generated.queue_words:
                if self._queued_bytes.size < MOST_ITEMS * out_stride:
                    self._queued_bytes = np.zeros(MOST_ITEMS * out_stride, np.uint8)
                multi_pass_arguments = (self.sessions.memory, self._pass_queue, self._queued_bytes)
            while True:
                processed, produced = self._run(
                    data.reshape(-1), stride, length, port, processed, count, now_us % _CLOCK_WRAP,
                    output.data[written * out_stride :], out_stride, output.length[written:],
                    output.port[written:], output.leave[written:], output.rows - written, copies,
                    *self.state, *multi_pass_arguments,
                )  # fmt: skip
                processed, written = int(processed), written + int(produced)
                if processed >= count:
                    self.take_messages()
                    return output.frames(written, out_stride)
                output.grow(written, max(2 * output.rows, written + copies), out_stride)

    @property
    def state(self) -> ProgramMemory:
        """The memory of the program.

        Use it only while `lock` is held: a change of groups may replace theirs.
        """
        return self._state._replace(groups=self.groups.memory)

    def take_messages(self) -> None:
        """Write the program's log, and move its digests to `messages.digests`.

        `process` calls it. While a compiled loop runs, another thread has to.
        """
        if self.messages.waiting:
            with self.lock:
                self.messages.take()

    @property
    def refused_passes(self) -> int:
        """The number of clones, resubmissions and recirculations that exceeded the limit of their frame."""
        return int(self._pass_queue[REFUSED_COUNT]) if self.generated.queue_words else 0

    @property
    def source(self) -> str:
        """The generated Python text of the program."""
        return self.generated.source


class OutputBuffers:
    """The arrays for outgoing frames, reused from batch to batch and enlarged as needed."""

    def __init__(self) -> None:
        self.rows = 0
        self._allocate(0, 0)

    def _allocate(self, data_bytes: int, rows: int) -> None:
        """Replace all arrays by new ones of these sizes."""
        self.data = np.empty(data_bytes, np.uint8)
        self.length, self.port = np.empty(rows, np.int32), np.empty(rows, np.int32)
        self.leave = np.empty(rows, np.uint64)

    def prepare(self, rows: int, stride: int) -> None:
        """Make room for at least `rows` frames of `stride` bytes; the contents are lost."""
        self.rows = max(rows, self.rows)
        if self.rows * stride > self.data.size or self.rows > self.length.size:
            self._allocate(max(self.rows * stride, self.data.size), self.rows)

    def grow(self, used: int, rows: int, stride: int) -> None:
        """Make room for `rows` frames of `stride` bytes, and keep the first `used` frames."""
        data, length, port, leave = self.data, self.length, self.port, self.leave
        self._allocate(rows * stride, rows)
        self.data[: used * stride] = data[: used * stride]
        self.length[:used], self.port[:used], self.leave[:used] = length[:used], port[:used], leave[:used]
        self.rows = rows

    def frames(self, count: int, stride: int) -> Frames:
        """Return the first `count` frames."""
        data = self.data[: count * stride].reshape(count, stride)
        return Frames(data, self.length[:count], self.port[:count], self.leave[:count])


def _new_memory(generated: Generated, groups: ReplicationGroups, queues: Queues) -> ProgramMemory:
    """Return memory for a program's state, which is zero."""
    layout, plans = generated.layout, generated.layout.registers.values()
    wide = _zeros((p.base + p.size * p.step for p in plans if p.wide), np.uint64)
    return ProgramMemory(
        memory=_zeros([generated.externs.end], np.uint64),
        regs=_zeros((p.base + p.size * p.step for p in plans if not p.wide), np.uint32),
        # The second is for registers of more than 64 bits.
        wide=wide.astype(object) if generated.not_compilable else wide,
        counts=_zeros((p.base + 2 * p.size for p in layout.counters.values()), np.uint64),
        groups=groups.memory,
        queues=queues.memory,
    )


def _meters(
    program: Program, bases: dict[str, int], memory: NDArray[np.uint64], lock: FairLock
) -> dict[str, MeterCells]:
    """Return all meters by name; a direct meter has a cell for each entry of its table."""
    sizes = {
        name: meter.size if meter.table is None else program.tables[meter.table].capacity
        for name, meter in program.meters.items()
    }
    return {name: MeterCells(name, size, bases[name], memory, lock) for name, size in sizes.items()}


def _action_words(program: Program, profile: str) -> Callable[[str, Sequence[int]], list[int]]:
    """Return a function that makes a row of a member of an action profile from an action and arguments."""
    codes = member_codes(program, profile)
    actions = {action.name: action for action in program.actions.values()}

    def words(name: str, params: Sequence[int]) -> list[int]:
        if name not in codes:
            known = ", ".join(sorted(codes))
            raise InvalidEntry(f"action profile {profile}: no action {name}; it has {known}")
        return [codes[name], 0, *argument_words(actions[name], params)]

    return words


def _zeros(ends: Iterable[int], dtype: type[_Scalar]) -> NDArray[_Scalar]:
    """Return as many zeros as the largest of `ends`."""
    cells = max(ends, default=0)
    try:
        return np.zeros(cells, dtype)
    except (MemoryError, ValueError):  # NumPy raises ValueError if the size exceeds the address space
        raise UnsupportedConstruct(
            f"program: no memory for {cells} cells of tables, registers or counters; make them smaller"
        ) from None


def _checked_arrays(frames: Frames) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]:
    """Return the arrays, contiguous. Raises InvalidEntry if shapes disagree or a length exceeds its row."""
    data = np.ascontiguousarray(frames.data, np.uint8)
    length = np.ascontiguousarray(frames.length, np.int32)
    port = np.ascontiguousarray(frames.port, np.int32)
    if data.ndim != 2 or length.shape != (len(data),) or port.shape != (len(data),):
        raise InvalidEntry(
            f"frames: data {data.shape}, length {length.shape}, port {port.shape}; "
            "pass a row, a length and a port for each"
        )
    if len(length) and not 0 <= length.min() <= length.max() <= data.shape[1]:
        raise InvalidEntry(
            f"frames: lengths {length.min()}..{length.max()} are not within rows of {data.shape[1]} bytes; "
            "pass lengths within the rows"
        )
    return data, length, port
