"""Members and groups of action profiles over P4Runtime, and the choices of table entries among them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from finsy.proto import p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.p4runtime.info import (
    PipelineInfo,
    ProfileInfo,
    decode_action,
    encode_action,
    to_bytes,
    to_int,
)
from peelsum.softswitch.p4runtime.status import (
    Change,
    check_ports,
    exhausted,
    invalid,
    unimplemented,
)
from peelsum.softswitch.program.model import (
    ActionChoice,
    ActionSet,
    GroupReference,
    MemberReference,
    WeightedAction,
)

_GroupMember = p4r.ActionProfileGroup.Member
_Entry = TypeVar("_Entry", p4r.ActionProfileMember, p4r.ActionProfileGroup)


class ProfileEntries:
    """The action profiles of one pipeline. Members and groups are read as they were written."""

    def __init__(self, info: PipelineInfo, switch: Switch, ports: Collection[int] | None) -> None:
        """ports: the ports that members may watch; None for any."""
        self._profiles, self._switch, self._ports = info.profiles, switch, ports
        self._actions = {action.name: action for action in info.actions.values()}
        #: By profile and number.
        self._members: dict[tuple[int, int], p4r.ActionProfileMember] = {}
        self._groups: dict[tuple[int, int], p4r.ActionProfileGroup] = {}

    def write_member(self, change: Change, entry: p4r.ActionProfileMember) -> None:
        """Insert, modify or delete a member. Raises RequestError or SoftswitchError, with no change."""
        profile = self._profile(entry.action_profile_id, entry.member_id)
        state, key = self._switch.profiles[profile.name], (profile.id, entry.member_id)
        if change == p4r.Update.DELETE:
            state.delete_member(entry.member_id)
            del self._members[key]
            return
        if not entry.HasField("action"):
            raise invalid(f"{profile.name}: member {entry.member_id} has no action; give one")
        action, params = decode_action(entry.action, profile.actions, profile.name)
        write = state.insert_member if change == p4r.Update.INSERT else state.modify_member
        write(entry.member_id, action.name, params)
        self._members[key] = p4r.ActionProfileMember(
            action_profile_id=profile.id, member_id=entry.member_id, action=encode_action(action, params)
        )

    def read_members(self, selector: p4r.ActionProfileMember) -> Iterator[p4r.ActionProfileMember]:
        """Return the selected members; profile 0 selects all profiles, member 0 all members."""
        return self._selected(self._members, selector.action_profile_id, selector.member_id)

    def write_group(self, change: Change, entry: p4r.ActionProfileGroup) -> None:
        """Insert, modify or delete a group. Raises RequestError or SoftswitchError, with no change."""
        profile = self._profile(entry.action_profile_id, entry.group_id)
        state, key = self._switch.profiles[profile.name], (profile.id, entry.group_id)
        if change == p4r.Update.DELETE:
            state.delete_group(entry.group_id)
            del self._groups[key]
            return
        what = f"{profile.name}: group {entry.group_id}"
        if entry.max_size < 0 or 0 < profile.max_group_size < entry.max_size:
            raise invalid(f"{what}: max_size {entry.max_size} is not within {profile.max_group_size}")
        if (
            change == p4r.Update.MODIFY
            and key in self._groups
            and self._groups[key].max_size != entry.max_size
        ):
            raise invalid(f"{what}: has max_size {self._groups[key].max_size}; delete it to change that")
        weights = {item.member_id: self._checked_weight(item, profile) for item in entry.members}
        if len(weights) != len(entry.members):
            raise invalid(f"{what}: a member is given twice; give it a weight instead")
        size, limit = sum(weights.values()), entry.max_size or profile.max_group_size
        if 0 < limit < size:
            raise exhausted(f"{what}: has size {size}, more than {limit}")
        write = state.insert_group if change == p4r.Update.INSERT else state.modify_group
        ports = {item.member_id: port for item in entry.members if (port := _watched_port(item)) is not None}
        write(entry.group_id, weights, ports)
        self._groups[key] = group = p4r.ActionProfileGroup()
        group.CopyFrom(entry)

    def read_groups(self, selector: p4r.ActionProfileGroup) -> Iterator[p4r.ActionProfileGroup]:
        """Return the selected groups; profile 0 selects all profiles, group 0 all groups."""
        return self._selected(self._groups, selector.action_profile_id, selector.group_id)

    def _selected(
        self, entries: Mapping[tuple[int, int], _Entry], profile_id: int, number: int
    ) -> Iterator[_Entry]:
        """Return the entries of a profile, or of all for 0, that have a number, or all for 0."""
        if profile_id:
            self._profile(profile_id)
        if profile_id and number:
            keys = [(profile_id, number)]
        else:
            keys = sorted(key for key in entries if profile_id in (0, key[0]) and number in (0, key[1]))
        return iter([entries[key] for key in keys if key in entries])

    # Choices of table entries

    def decode_choice(self, action: p4r.TableAction, profile: ProfileInfo) -> ActionChoice:
        """Return the choice of an entry. Raises RequestError."""
        match action.WhichOneof("type"):
            case "action_profile_member_id":
                return MemberReference(action.action_profile_member_id)
            case "action_profile_group_id":
                return GroupReference(action.action_profile_group_id)
            case "action_profile_action_set":
                return self._decode_set(action.action_profile_action_set, profile)
            case kind:
                raise invalid(
                    f"{profile.name}: the action is {kind or 'missing'}; entries have a member, a group or "
                    "an action set"
                )

    def _decode_set(self, message: Any, profile: ProfileInfo) -> ActionSet:
        for name in ("action_selection_mode", "size_semantics"):
            if getattr(message, name, 0):
                raise unimplemented(f"{profile.name}: {name} of an action set")
        actions = []
        for item in message.action_profile_actions:
            action, params = decode_action(item.action, profile.actions, profile.name)
            weight = self._checked_weight(item, profile)
            actions.append(WeightedAction(action.name, params, weight, _watched_port(item)))
        size = sum(item.weight for item in actions)
        if 0 < profile.max_group_size < size:
            raise invalid(f"{profile.name}: an action set of size {size} exceeds {profile.max_group_size}")
        return ActionSet(tuple(actions))

    def encode_choice(self, choice: MemberReference | GroupReference | ActionSet) -> p4r.TableAction:
        """Return the choice of an entry as P4Runtime's action."""
        match choice:
            case MemberReference(number):
                return p4r.TableAction(action_profile_member_id=number)
            case GroupReference(number):
                return p4r.TableAction(action_profile_group_id=number)
        message = p4r.ActionProfileActionSet()
        for item in choice.actions:
            action = encode_action(self._actions[item.action], item.params)
            added = message.action_profile_actions.add(action=action, weight=item.weight)
            if item.watched_port is not None:
                added.watch_port = to_bytes(item.watched_port)
        return p4r.TableAction(action_profile_action_set=message)

    def _checked_weight(self, item: p4r.ActionProfileAction | _GroupMember, profile: ProfileInfo) -> int:
        """Return the weight of an item of a group or action set; write its watch port in its shortest form.

        Raises RequestError if the weight is not positive, or if the item watches an unknown port.
        """
        if item.WhichOneof("watch_kind") == "watch":
            raise unimplemented("watch, which is deprecated; use watch_port")
        if item.watch_port:
            port = to_int(item.watch_port, 32, "watch_port")
            item.watch_port = to_bytes(port)
            check_ports([port], self._ports, "watch_port: ")
        if item.weight < 1:
            raise invalid(f"{profile.name}: weight {item.weight} must be positive")
        return item.weight

    def _profile(self, profile_id: int, number: int | None = None) -> ProfileInfo:
        """Return an action profile. Raises RequestError for an unknown id, or if `number` is 0."""
        if number == 0:
            raise invalid("member_id or group_id: 0 selects all when reading; use another")
        return self._profiles[profile_id]


def _watched_port(item: p4r.ActionProfileAction | _GroupMember) -> int | None:
    """Return the port that an item of a group or action set watches; None for none."""
    return int.from_bytes(item.watch_port, "big") if item.watch_port else None
