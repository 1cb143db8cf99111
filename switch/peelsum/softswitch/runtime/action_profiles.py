"""Action profiles of a running switch: their members and groups, and what table entries select among them.

The memory has a row for each member, and for each group a list of its members' rows, each as often as its
weight. In an action profile with a selector, an entry always has a group: a member is a group of one, and the
actions of an `ActionSet` are members and a group without numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from peelsum.softswitch.compiler.extern_layout import GROUP_WORDS, ProfilePlan
from peelsum.softswitch.errors import DuplicateEntry, EntryInUse, InvalidEntry, NoSuchEntry, TableFull
from peelsum.softswitch.program.model import ActionProfile, ActionSet, GroupReference, MemberReference
from peelsum.softswitch.runtime.state import FairLock

#: Returns the code and the words of an action with its arguments. Raises InvalidEntry.
ActionWords = Callable[[str, Sequence[int]], list[int]]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, by its number, and how often it is chosen in relation to the others."""

    member: int
    weight: int = 1
    watch_port: bytes = b""


@dataclass(slots=True, eq=False)
class Member:
    """A member, the address of its row, its group of one, and how many entries and groups use it."""

    action: str
    params: tuple[int, ...]
    row: int
    group: Group | None
    uses: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """A group, its address, and how many entries use it; `rows` is its list in the memory."""

    address: int
    members: tuple[GroupMember, ...] = ()
    max_size: int = 0
    uses: int = 0
    rows: list[int] = field(default_factory=list)


class ProfileState:
    """The members and groups of one action profile. Every method holds the switch's lock."""

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
        self._sets: dict[int, tuple[Group, list[Member]]] = {}
        self._plan, self._memory, self._action_words, self._lock = plan, memory, action_words, lock
        self._free_rows = list(range(plan.rows, plan.groups, plan.row_words))[::-1]
        self._free_groups = list(range(plan.groups, plan.lists, GROUP_WORDS))[::-1]
        self._lists_end = plan.lists
        self._all_groups: set[Group] = set()

    # --- members ----------------------------------------------------------------------------------

    def insert_member(self, number: int, action: str, params: Sequence[int] = ()) -> None:
        """Add a member. Raises InvalidEntry, DuplicateEntry or TableFull."""
        with self._lock:
            if number in self.members:
                raise DuplicateEntry(f"{self.name}: member {number} exists; modify it instead")
            self.members[number] = self._new_member(action, tuple(params))

    def modify_member(self, number: int, action: str, params: Sequence[int] = ()) -> None:
        """Set a member's action for all entries and groups that use it. Raises InvalidEntry, NoSuchEntry."""
        with self._lock:
            member = self._member(number)
            self._write_row(member.row, action, params)
            member.action, member.params = action, tuple(params)

    def delete_member(self, number: int) -> None:
        """Remove a member. Raises NoSuchEntry, or EntryInUse if an entry or group has it."""
        with self._lock:
            member = self._member(number)
            if member.uses:
                raise EntryInUse(
                    f"{self.name}: member {number} is in use; change the entries and groups first"
                )
            self._free_member(self.members.pop(number))

    # --- groups -----------------------------------------------------------------------------------

    def insert_group(self, number: int, members: Sequence[GroupMember], max_size: int = 0) -> None:
        """Add a group. Raises InvalidEntry, DuplicateEntry, NoSuchEntry (of a member) or TableFull."""
        with self._lock:
            if not self.has_groups:
                raise InvalidEntry(f"{self.name}: has no selector and so no groups; use members")
            if number in self.groups:
                raise DuplicateEntry(f"{self.name}: group {number} exists; modify it instead")
            rows = self._rows_of(members)
            group = self._new_group(rows)
            group.max_size = max_size
            self.groups[number] = group
            self._set_members(group, members)

    def modify_group(self, number: int, members: Sequence[GroupMember], max_size: int = 0) -> None:
        """Replace a group's members. Raises InvalidEntry, NoSuchEntry or TableFull."""
        with self._lock:
            group = self._group(number)
            if max_size != group.max_size:
                raise InvalidEntry(
                    f"{self.name}: max_size of group {number} is {group.max_size}; delete it to change that"
                )
            self._set_rows(group, self._rows_of(members))
            self._set_members(group, members)

    def delete_group(self, number: int) -> None:
        """Remove a group. Raises NoSuchEntry, or EntryInUse if an entry has it."""
        with self._lock:
            group = self._group(number)
            if group.uses:
                raise EntryInUse(f"{self.name}: group {number} is in use; change the entries first")
            self._set_members(group, ())
            self._free_group(self.groups.pop(number))

    # --- entries ----------------------------------------------------------------------------------

    def acquire(self, choice: MemberReference | GroupReference | ActionSet) -> int:
        """Return the address for the row of an entry with this choice, which is in use until `release`."""
        match choice:
            case MemberReference(number):
                member = self._member(number)
                member.uses += 1
                return member.row if member.group is None else member.group.address
            case GroupReference(number):
                group = self._group(number)
                group.uses += 1
                return group.address
        if not self.has_groups:
            raise InvalidEntry(f"{self.name}: has no selector, so an entry has one member, not a set")
        members: list[Member] = []
        try:
            for item in choice.actions:
                members.append(self._new_member(item.action, item.params))
            rows = [
                m.row for m, item in zip(members, choice.actions, strict=True) for _ in range(item.weight)
            ]
            group = self._new_group(rows)
        except (InvalidEntry, TableFull):
            for member in members:
                self._free_member(member)
            raise
        self._sets[group.address] = group, members
        return group.address

    def release(self, choice: MemberReference | GroupReference | ActionSet, address: int) -> None:
        """End the use of a choice whose `acquire` returned `address`."""
        match choice:
            case MemberReference(number):
                self.members[number].uses -= 1
            case GroupReference(number):
                self.groups[number].uses -= 1
            case _:
                group, members = self._sets.pop(address)
                self._free_group(group)
                for member in members:
                    self._free_member(member)

    # --- memory -----------------------------------------------------------------------------------

    def _member(self, number: int) -> Member:
        if number not in self.members:
            raise NoSuchEntry(f"{self.name}: no member {number}; insert it first")
        return self.members[number]

    def _group(self, number: int) -> Group:
        if number not in self.groups:
            raise NoSuchEntry(f"{self.name}: no group {number}; insert it first")
        return self.groups[number]

    def _new_member(self, action: str, params: tuple[int, ...]) -> Member:
        """Return a new member with a row and, with a selector, a group of one."""
        if not self._free_rows:
            raise TableFull(f"{self.name}: all {self.size} members are taken; delete some or enlarge it")
        row = self._free_rows[-1]
        self._write_row(row, action, params)
        group = self._new_group([row]) if self.has_groups else None
        self._free_rows.pop()
        return Member(action, params, row, group)

    def _write_row(self, row: int, action: str, params: Sequence[int]) -> None:
        words = self._action_words(action, params)
        self._memory[row : row + len(words)] = np.array(words, np.uint64)

    def _free_member(self, member: Member) -> None:
        self._free_rows.append(member.row)
        if member.group is not None:
            self._free_group(member.group)

    def _rows_of(self, members: Sequence[GroupMember]) -> list[int]:
        """Return the rows of a group's members, in the order of their numbers, repeated by weight."""
        if len({item.member for item in members}) != len(members):
            raise InvalidEntry(f"{self.name}: a member is twice in a group; give it a weight instead")
        total = sum(item.weight for item in members)
        if any(item.weight < 1 for item in members):
            raise InvalidEntry(f"{self.name}: weights must be positive; leave members of weight 0 out")
        ordered = sorted(members, key=lambda item: item.member)
        rows = [(self._member(item.member).row, item.weight) for item in ordered]
        if total > self._plan.end - self._plan.lists:
            raise TableFull(f"{self.name}: weights add up to {total}; use smaller ones")
        return [row for row, weight in rows for _ in range(weight)]

    def _set_members(self, group: Group, members: Sequence[GroupMember]) -> None:
        """Set a group's members, which are then in use."""
        for item in members:
            self.members[item.member].uses += 1
        for item in group.members:
            self.members[item.member].uses -= 1
        group.members = tuple(members)

    def _new_group(self, rows: list[int]) -> Group:
        if not self._free_groups:
            raise TableFull(f"{self.name}: has no room for a further group; delete some or enlarge it")
        group = Group(self._free_groups[-1])
        self._set_rows(group, rows)
        self._free_groups.pop()
        return group

    def _free_group(self, group: Group) -> None:
        self._free_groups.append(group.address)
        self._all_groups.discard(group)

    def _set_rows(self, group: Group, rows: list[int]) -> None:
        """Write a group's list to the memory. Raises TableFull, with no change, if there is no room."""
        others = self._all_groups - {group} if self._lists_end + len(rows) > self._plan.end else None
        if others is not None:  # move the lists of all groups together
            if self._plan.lists + sum(len(other.rows) for other in others) + len(rows) > self._plan.end:
                raise TableFull(f"{self.name}: the groups' weights add up to too much; use smaller ones")
            self._lists_end = self._plan.lists
            for other in others:
                self._append_list(other)
        group.rows = rows
        self._append_list(group)
        self._all_groups.add(group)

    def _append_list(self, group: Group) -> None:
        end = self._lists_end + len(group.rows)
        self._memory[self._lists_end : end] = group.rows
        self._memory[group.address : group.address + GROUP_WORDS] = self._lists_end, len(group.rows)
        self._lists_end = end
