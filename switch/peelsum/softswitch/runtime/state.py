"""Registers, counters and multicast groups of a running switch, for the control plane.

Their memory is the arrays that generated code uses, so every access holds the switch's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock, get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.compiler.layout import CounterPlan, RegisterPlan, TablePlan, limbs
from peelsum.softswitch.errors import InvalidEntry, NoSuchEntry, TableFull


class FairLock:
    """A reentrant lock that a waiting thread gets before the thread that has just released it.

    With Python's own locks, a thread that releases and acquires in a loop can keep others waiting for
    seconds. Here a waiting thread holds `_queue_lock`, so that the releasing thread queues behind it.

    `on_wait` is called before a thread waits, so that a holder that waits for packets can release the lock.
    """

    def __init__(self) -> None:
        self.on_wait: Callable[[], None] = lambda: None
        self._queue_lock = Lock()
        self._state_lock = Lock()
        self._holder: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        thread = get_ident()
        if self._holder != thread:
            with self._queue_lock:
                if not self._state_lock.acquire(blocking=False):
                    self.on_wait()
                    self._state_lock.acquire()
            self._holder = thread
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._state_lock.release()


_WORD = (1 << 64) - 1


class _CellArray:
    """Cells of a running switch that have a name and are read and written one by one."""

    def __init__(self, name: str, size: int, cells: NDArray[Any], lock: FairLock) -> None:
        self.name, self.size = name, size
        self._cells, self._lock = cells, lock

    def values(self) -> NDArray[Any]:
        """Return a consistent copy of all cells; of a counter, uint64[size, 2] of packets and bytes."""
        with self._lock:
            return self._cells.copy()

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise InvalidEntry(f"{self.name}: index {index} is not in 0..{self.size - 1}")
        return index


class Register(_CellArray):
    """A register array of `size` cells of `bits` bits."""

    def __init__(self, name: str, plan: RegisterPlan, memory: NDArray[Any], lock: FairLock) -> None:
        cells = memory[plan.base : plan.base + plan.size * plan.step : plan.step]
        super().__init__(name, plan.size, cells, lock)
        self.bits = plan.bits

    def read(self, index: int) -> int:
        """Return a cell's value. Raises InvalidEntry for an index out of range."""
        with self._lock:
            return int(self._cells[self._checked(index)])

    def write(self, index: int, value: int) -> None:
        """Set a cell for the control plane. Raises InvalidEntry for an index or a value out of range."""
        if not 0 <= value < 1 << self.bits:
            raise InvalidEntry(
                f"register {self.name}: {value} does not fit {self.bits} bits; use a smaller value"
            )
        with self._lock:
            self._cells[self._checked(index)] = value


class IndirectCounter(_CellArray):
    """An indirect counter of `size` cells. As in BMv2, each always counts both packets and bytes."""

    def __init__(self, name: str, plan: CounterPlan, memory: NDArray[np.uint64], lock: FairLock) -> None:
        cells = memory[plan.base : plan.base + 2 * plan.size].reshape(-1, 2)
        super().__init__(name, plan.size, cells, lock)

    def read(self, index: int) -> tuple[int, int]:
        """Return a cell's packets and bytes. Raises InvalidEntry for an index out of range."""
        with self._lock:
            packets, octets = self._cells[self._checked(index)]
            return int(packets), int(octets)

    def write(self, index: int, packets: int, octets: int) -> None:
        """Set a cell. Raises InvalidEntry for an index out of range."""
        with self._lock:
            self._cells[self._checked(index)] = packets & _WORD, octets & _WORD


class ValueSetState:
    """The members of a value set of the parser, each a value and a mask; a member matches if they agree."""

    def __init__(self, plan: TablePlan, memory: NDArray[np.uint64], lock: FairLock) -> None:
        self.name, self.size, self.bits = plan.table.name, plan.table.size, plan.table.keys[0].bits
        self._plan, self._memory, self._lock = plan, memory, lock

    def set(self, members: Sequence[tuple[int, int]]) -> None:
        """Replace all members. Raises TableFull, or InvalidEntry for a number that does not fit."""
        if len(members) > self.size:
            raise TableFull(f"value set {self.name}: {len(members)} members, more than its size {self.size}")
        for value, mask in members:
            if not 0 <= value <= mask < 1 << self.bits or value & ~mask:
                raise InvalidEntry(
                    f"value set {self.name}: {value:#x} with mask {mask:#x} does not fit {self.bits} bits"
                )
        pairs = [zip(limbs(value, self.bits), limbs(mask, self.bits), strict=True) for value, mask in members]
        rows = [[0, 0, *(word for pair in row for word in pair)] for row in pairs]
        words = [len(rows), *(word for row in rows for word in row)]
        with self._lock:
            self._memory[self._plan.region : self._plan.region + len(words)] = words


class ReplicationGroups:
    """Multicast groups or clone sessions: each is a list of (port, instance), served in the order given.

    Generated code reads `memory`: for group g, elements 2 g and 2 g + 1 hold the index of its first replica
    and their number. Replicas are pairs of port and instance.
    """

    def __init__(self, lock: FairLock, what: str = "multicast group", limit: int = 1 << 16) -> None:
        """what: the noun for a group in errors. limit: all numbers of groups are below it."""
        self.what, self.limit = what, limit
        self._groups: dict[int, tuple[tuple[int, int], ...]] = {}
        #: Copies of the largest group that there has been; at least 1, for a unicast packet.
        self.most_copies = 1
        self._lock = lock
        self._used = 2 * self.limit
        self.memory = np.zeros(self._used + 256, np.uint64)

    def set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Create or replace a group. Raises InvalidEntry for a number, port or instance out of range."""
        if not 0 < group < self.limit:
            raise InvalidEntry(f"{self.what}: {group} is not in 1..{self.limit - 1}")
        for port, instance in replicas:
            if not 0 <= port < 1 << 16 or not 0 <= instance < 1 << 16:
                raise InvalidEntry(f"{self.what} {group}: ({port}, {instance}) does not fit 16 bits each")
        with self._lock:
            self._groups[group] = tuple(replicas)
            self.most_copies = max(self.most_copies, len(replicas))
            if self._used + 2 * len(replicas) > len(self.memory):
                self._compact()
            else:
                self._write(group)

    def delete(self, group: int) -> None:
        """Remove a group. Raises NoSuchEntry."""
        with self._lock:
            self.get(group)
            del self._groups[group]
            self.memory[2 * group : 2 * group + 2] = 0

    def get(self, group: int) -> tuple[tuple[int, int], ...]:
        """Return a group's replicas. Raises NoSuchEntry."""
        with self._lock:
            if group not in self._groups:
                raise NoSuchEntry(f"{self.what} {group}: does not exist; create it first")
            return self._groups[group]

    def __contains__(self, group: int) -> bool:
        return group in self._groups

    def ids(self) -> list[int]:
        """Return the numbers of all groups, ascending."""
        with self._lock:
            return sorted(self._groups)

    def _write(self, group: int) -> None:
        """Append a group's replicas to the memory, and point the group at them."""
        replicas = self._groups[group]
        self.memory[2 * group : 2 * group + 2] = self._used, len(replicas)
        end = self._used + 2 * len(replicas)
        self.memory[self._used : end] = np.array(replicas, np.uint64).reshape(-1)
        self._used = end

    def _compact(self) -> None:
        """Write all groups into new memory with free space, without the replicas of replaced groups."""
        needed = 2 * self.limit + 2 * sum(map(len, self._groups.values()))
        self.memory = np.zeros(2 * needed - 2 * self.limit + 256, np.uint64)
        self._used = 2 * self.limit
        for group in self._groups:
            self._write(group)
