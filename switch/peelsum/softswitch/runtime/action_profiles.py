"""Action profiles of a running switch: their members and groups, and what table entries select among them.

The memory has a row for each member, and for each group a list of its members' rows, each as often as its
weight. In an action profile with a selector, an entry always has a group: a member is a group of one, and the
actions of an `ActionSet` are members and a group without numbers. A list leaves out the rows of members whose
watched port is down, and keeps their room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.compiler.extern_layout import GROUP_WORDS, ProfilePlan
from peelsum.softswitch.errors import DuplicateEntry, EntryInUse, InvalidEntry, NoSuchEntry, TableFull
from peelsum.softswitch.program.model import ActionProfile, ActionSet, GroupReference, MemberReference
from peelsum.softswitch.runtime.state import FairLock

#: Returns the words of a row for an action with arguments. Raises InvalidEntry.
ActionWords = Callable[[str, Sequence[int]], list[int]]
Choice: TypeAlias = MemberReference | GroupReference | ActionSet


@dataclass(slots=True, eq=False)
class Group:
    """A group, its address, its list in the memory, its members' numbers, and how many entries use it.

    Each item of the list is a member's row, and the port that it watches.
    """

    address: int
    start: int = 0
    rows: list[tuple[int, int | None]] = field(default_factory=list)
    members: tuple[int, ...] = ()
    uses: int = 0


@dataclass(slots=True, eq=False)
class Member:
    """A member, the address of its row, its group of one, and how many entries and groups use it."""

    row: int
    group: Group | None
    uses: int = 0


class ProfileState:
    """The members and groups of one action profile. Every method holds the switch's lock.

    Methods raise InvalidEntry, DuplicateEntry, NoSuchEntry, EntryInUse or TableFull, and then change nothing.
    """

    def __init__(
        self,
        declaration: ActionProfile,
        plan: ProfilePlan,
        memory: NDArray[np.uint64],
        action_words: ActionWords,
        lock: FairLock,
    ) -> None:
        self.name, self.size = declaration.name, plan.capacity
        self.has_groups = declaration.selector is not None
        self.members: dict[int, Member] = {}
        self.groups: dict[int, Group] = {}
        self._plan, self._memory, self._action_words, self._lock = plan, memory, action_words, lock
        #: The rows and groups that were freed, and those that were never used.
        self._free_rows: list[int] = []
        self._free_groups: list[int] = []
        self._new_rows = iter(range(plan.rows, plan.groups, plan.row_words))
        self._new_groups = iter(range(plan.groups, plan.lists, GROUP_WORDS))
        self._lists_end = plan.lists
        self._used_groups: dict[int, Group] = {}
        #: By address, the members of an action set's group.
        self._sets: dict[int, list[Member]] = {}
        self._down: Set[int] = frozenset()

    # --- members and groups -----------------------------------------------------------------------

    def insert_member(self, number: int, action: str, params: Sequence[int] = ()) -> None:
        """Add a member."""
        with self._lock:
            if number in self.members:
                raise DuplicateEntry(f"{self.name}: member {number} exists; modify it instead")
            self.members[number] = self._new_member(action, params)

    def modify_member(self, number: int, action: str, params: Sequence[int] = ()) -> None:
        """Set a member's action, for all entries and groups that use it."""
        with self._lock:
            self._write_row(self._member(number).row, action, params)

    def delete_member(self, number: int) -> None:
        """Remove a member that no entry and no group uses."""
        with self._lock:
            if self._member(number).uses:
                raise EntryInUse(f"{self.name}: member {number} is in use; change what uses it first")
            self._free_member(self.members.pop(number))

    def insert_group(
        self, number: int, weights: Mapping[int, int], watched: Mapping[int, int] | None = None
    ) -> None:
        """Add a group.

        weights: by number of a member, how often it is chosen in relation to the others. watched: by number,
        the port without which it is not chosen.
        """
        with self._lock:
            if not self.has_groups:
                raise InvalidEntry(f"{self.name}: has no selector and so no groups; use members")
            if number in self.groups:
                raise DuplicateEntry(f"{self.name}: group {number} exists; modify it instead")
            self.groups[number] = self._new_group(self._rows_of(weights, watched or {}))
            self._set_members(self.groups[number], weights)

    def modify_group(
        self, number: int, weights: Mapping[int, int], watched: Mapping[int, int] | None = None
    ) -> None:
        """Replace a group's members."""
        with self._lock:
            group = self._group(number)
            self._set_rows(group, self._rows_of(weights, watched or {}))
            self._set_members(group, weights)

    def delete_group(self, number: int) -> None:
        """Remove a group that no entry uses."""
        with self._lock:
            group = self._group(number)
            if group.uses:
                raise EntryInUse(f"{self.name}: group {number} is in use; change the entries first")
            self._set_members(group, ())
            self._free_group(self.groups.pop(number))

    @property
    def watched_ports(self) -> set[int]:
        """The ports that members in groups and sets watch."""
        with self._lock:
            lists = [group.rows for group in self._used_groups.values()]
        return {port for rows in lists for _, port in rows if port is not None}

    def set_down(self, ports: Set[int]) -> None:
        """Choose no member that watches one of these ports, from now on."""
        if ports == self._down:
            return
        with self._lock:
            self._down = ports
            for group in self._used_groups.values():
                self._write_list(group)

    # --- entries ----------------------------------------------------------------------------------

    def acquire(self, choice: Choice) -> int:
        """Return the address for the row of an entry with this choice, which is in use until `release`."""
        if isinstance(choice, ActionSet):
            return self._new_set(choice)
        if isinstance(choice, GroupReference):
            group: Member | Group = self._group(choice.group)
        else:
            group = self._member(choice.member)
        group.uses += 1
        if isinstance(group, Group):
            return group.address
        return group.row if group.group is None else group.group.address

    def release(self, choice: Choice, address: int) -> None:
        """End the use of a choice whose `acquire` returned `address`."""
        match choice:
            case MemberReference(number):
                self.members[number].uses -= 1
            case GroupReference(number):
                self.groups[number].uses -= 1
            case _:
                self._free_group(self._used_groups[address])
                for member in self._sets.pop(address):
                    self._free_member(member)

    def _new_set(self, choice: ActionSet) -> int:
        """Return the address of a new group of the actions in a set."""
        if not self.has_groups:
            raise InvalidEntry(f"{self.name}: has no selector, so an entry has one member, not a set")
        members: list[Member] = []
        try:
            for item in choice.actions:
                members.append(self._new_member(item.action, item.params))
            weights = [item.weight for item in choice.actions]
            watched = [item.watched_port for item in choice.actions]
            address = self._new_group(self._repeated(members, weights, watched)).address
        except (InvalidEntry, TableFull):
            for member in members:
                self._free_member(member)
            raise
        self._sets[address] = members
        return address

    # --- memory -----------------------------------------------------------------------------------

    def _member(self, number: int) -> Member:
        if number not in self.members:
            raise NoSuchEntry(f"{self.name}: no member {number}; insert it first")
        return self.members[number]

    def _group(self, number: int) -> Group:
        if number not in self.groups:
            raise NoSuchEntry(f"{self.name}: no group {number}; insert it first")
        return self.groups[number]

    def _new_member(self, action: str, params: Sequence[int]) -> Member:
        """Return a new member with a row and, with a selector, a group of one."""
        if not _has_free(self._free_rows, self._new_rows):
            raise TableFull(f"{self.name}: all {self.size} members are taken; delete some or enlarge it")
        row = self._free_rows[-1]
        self._write_row(row, action, params)
        group = self._new_group([(row, None)]) if self.has_groups else None
        self._free_rows.pop()
        return Member(row, group)

    def _write_row(self, row: int, action: str, params: Sequence[int]) -> None:
        words = self._action_words(action, params)
        self._memory[row : row + len(words)] = np.array(words, np.uint64)

    def _free_member(self, member: Member) -> None:
        self._free_rows.append(member.row)
        if member.group is not None:
            self._free_group(member.group)

    def _rows_of(
        self, weights: Mapping[int, int], watched: Mapping[int, int]
    ) -> list[tuple[int, int | None]]:
        """Return the list of a group's members, in the order of their numbers, repeated by weight."""
        numbers = sorted(weights)
        ports = map(watched.get, numbers)
        return self._repeated(map(self._member, numbers), map(weights.__getitem__, numbers), ports)

    def _repeated(
        self, members: Iterable[Member], weights: Iterable[int], watched: Iterable[int | None]
    ) -> list[tuple[int, int | None]]:
        """Return a list with each member as often as its weight. Raises TableFull for weights of any size."""
        items = list(zip(members, weights, watched, strict=True))
        if sum(weight for _, weight, _ in items) > self._plan.end - self._plan.lists:
            raise TableFull(f"{self.name}: a group's weights add up to too much; use smaller ones")
        return [(member.row, port) for member, weight, port in items for _ in range(weight)]

    def _set_members(self, group: Group, members: Iterable[int]) -> None:
        """Set the numbers of a group's members, which are then in use."""
        for change, numbers in ((1, tuple(members)), (-1, group.members)):
            for number in numbers:
                self.members[number].uses += change
        group.members = tuple(members)

    def _new_group(self, rows: list[tuple[int, int | None]]) -> Group:
        if not _has_free(self._free_groups, self._new_groups):
            raise TableFull(f"{self.name}: has no room for a further group; delete some or enlarge it")
        group = Group(self._free_groups[-1])
        self._set_rows(group, rows)
        self._free_groups.pop()
        return group

    def _free_group(self, group: Group) -> None:
        self._free_groups.append(group.address)
        del self._used_groups[group.address]

    def _set_rows(self, group: Group, rows: list[tuple[int, int | None]]) -> None:
        """Write a group's list to the memory."""
        if self._lists_end + len(rows) > self._plan.end:  # move the lists of all groups together
            others = [other for other in self._used_groups.values() if other is not group]
            if self._plan.lists + sum(len(other.rows) for other in others) + len(rows) > self._plan.end:
                raise TableFull(f"{self.name}: the groups' weights add up to too much; use smaller ones")
            self._lists_end = self._plan.lists
            for other in others:
                self._append_list(other)
        group.rows = rows
        self._append_list(group)
        self._used_groups[group.address] = group

    def _append_list(self, group: Group) -> None:
        group.start = self._lists_end
        self._write_list(group)
        self._lists_end += len(group.rows)

    def _write_list(self, group: Group) -> None:
        """Write the rows of members that can be chosen now."""
        rows = [row for row, port in group.rows if port not in self._down]
        self._memory[group.start : group.start + len(rows)] = rows
        self._memory[group.address : group.address + GROUP_WORDS] = group.start, len(rows)


def _has_free(free: list[int], unused: Iterator[int]) -> bool:
    """Return whether there is a free place, after adding one from `unused` to an empty list."""
    free += islice(unused, 0 if free else 1)
    return bool(free)
