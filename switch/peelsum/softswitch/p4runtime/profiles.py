"""Members and groups of action profiles over P4Runtime, and the choices of table entries among them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from finsy.proto import p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.p4runtime.info import (
    PipelineInfo,
    ProfileInfo,
    decode_action,
    encode_action,
    to_int,
)
from peelsum.softswitch.p4runtime.status import exhausted, invalid, unimplemented
from peelsum.softswitch.program.model import (
    ActionChoice,
    ActionSet,
    GroupReference,
    MemberReference,
    WeightedAction,
)
from peelsum.softswitch.runtime.action_profiles import GroupMember

_ActionProfileAction = p4r.ActionProfileAction
_GroupMember = p4r.ActionProfileGroup.Member


class ProfileEntries:
    """The action profiles of one pipeline."""

    def __init__(self, info: PipelineInfo, switch: Switch, ports: Collection[int] | None) -> None:
        """ports: the ports that members may watch; None for any."""
        self._profiles, self._actions, self._switch, self._ports = (
            info.profiles,
            info.actions,
            switch,
            ports,
        )
        self._actions_by_name = {action.name: action for action in info.actions.values()}

    def write_member(self, kind: p4r.Update.Type.ValueType, entry: p4r.ActionProfileMember) -> None:
        """Insert, modify or delete a member. Raises RequestError or SoftswitchError, with no change."""
        profile = self._profile(entry.action_profile_id)
        state = self._switch.profiles[profile.name]
        if not entry.member_id:
            raise invalid(f"{profile.name}: member_id 0 selects all members when reading; use another")
        if kind == p4r.Update.DELETE:
            state.delete_member(entry.member_id)
            return
        if not entry.HasField("action"):
            raise invalid(f"{profile.name}: member {entry.member_id} has no action; give one")
        action, params = decode_action(entry.action, self._actions, profile.actions, profile.name)
        write = state.insert_member if kind == p4r.Update.INSERT else state.modify_member
        write(entry.member_id, action.name, params)

    def read_members(self, selector: p4r.ActionProfileMember) -> Iterator[p4r.ActionProfileMember]:
        """Return the selected members; profile 0 selects all profiles, member 0 all members."""
        return iter(
            [
                p4r.ActionProfileMember(
                    action_profile_id=profile.id,
                    member_id=number,
                    action=encode_action(self._actions_by_name[member.action], member.params),
                )
                for profile in self._selected(selector.action_profile_id)
                for number, member in sorted(self._switch.profiles[profile.name].members.items())
                if selector.member_id in (0, number)
            ]
        )

    def write_group(self, kind: p4r.Update.Type.ValueType, entry: p4r.ActionProfileGroup) -> None:
        """Insert, modify or delete a group. Raises RequestError or SoftswitchError, with no change."""
        profile = self._profile(entry.action_profile_id)
        state = self._switch.profiles[profile.name]
        if not entry.group_id:
            raise invalid(f"{profile.name}: group_id 0 selects all groups when reading; use another")
        if kind == p4r.Update.DELETE:
            state.delete_group(entry.group_id)
            return
        if entry.max_size < 0 or 0 < profile.max_group_size < entry.max_size:
            raise invalid(
                f"{profile.name}: max_size {entry.max_size} of group {entry.group_id} is not within "
                f"max_group_size {profile.max_group_size}"
            )
        members = [
            GroupMember(item.member_id, _weight(item, profile), self._watch_port(item))
            for item in entry.members
        ]
        size, limit = sum(item.weight for item in members), entry.max_size or profile.max_group_size
        if 0 < limit < size:
            raise exhausted(f"{profile.name}: group {entry.group_id} has size {size}, more than {limit}")
        write = state.insert_group if kind == p4r.Update.INSERT else state.modify_group
        write(entry.group_id, members, entry.max_size)

    def read_groups(self, selector: p4r.ActionProfileGroup) -> Iterator[p4r.ActionProfileGroup]:
        """Return the selected groups; profile 0 selects all profiles, group 0 all groups."""
        return iter(
            [
                p4r.ActionProfileGroup(
                    action_profile_id=profile.id,
                    group_id=number,
                    max_size=group.max_size,
                    members=[
                        _GroupMember(
                            member_id=item.member,
                            weight=item.weight,
                            **_watch(item.watch_port),
                        )
                        for item in group.members
                    ],
                )
                for profile in self._selected(selector.action_profile_id)
                for number, group in sorted(self._switch.profiles[profile.name].groups.items())
                if selector.group_id in (0, number)
            ]
        )

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
            action, params = decode_action(item.action, self._actions, profile.actions, profile.name)
            weight = _weight(item, profile)
            actions.append(WeightedAction(action.name, params, weight, self._watch_port(item)))
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
        actions = [
            _ActionProfileAction(
                action=encode_action(self._actions_by_name[item.action], item.params),
                weight=item.weight,
                **_watch(item.watch_port),
            )
            for item in choice.actions
        ]
        return p4r.TableAction(
            action_profile_action_set=p4r.ActionProfileActionSet(action_profile_actions=actions)
        )

    def _watch_port(self, item: Any) -> bytes:
        """Return the port that an item watches, empty for none. Raises RequestError for an unknown port."""
        if item.WhichOneof("watch_kind") == "watch":
            raise unimplemented("watch, which is deprecated; use watch_port")
        if item.watch_port and self._ports is not None:
            port = to_int(item.watch_port, 32, "watch_port")
            if port not in self._ports:
                known = ", ".join(map(str, sorted(self._ports)))
                raise invalid(f"watch_port: port {port} is not on this switch; use one of {known}")
        return bytes(item.watch_port)

    def _selected(self, profile_id: int) -> list[ProfileInfo]:
        return [self._profile(profile_id)] if profile_id else list(self._profiles.values())

    def _profile(self, profile_id: int) -> ProfileInfo:
        if profile_id not in self._profiles:
            raise invalid(
                f"action_profile_id: no action profile {profile_id:#x} in the P4Info; use one of its ids"
            )
        return self._profiles[profile_id]


def _watch(port: bytes) -> dict[str, Any]:
    """Return the field of a message for a port that is watched; none if there is none."""
    return {"watch_port": port} if port else {}


def _weight(item: p4r.ActionProfileAction | _GroupMember, profile: ProfileInfo) -> int:
    """Return the weight of an item of a group or action set. Raises RequestError if it is not positive."""
    if item.weight < 1:
        raise invalid(f"{profile.name}: weight {item.weight} must be positive")
    return item.weight
