"""Dispatches writes and reads of entities to the part of the pipeline that they belong to.

Entities that the softswitch does not support are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from finsy.proto import p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.p4runtime.cells import Counters, Registers
from peelsum.softswitch.p4runtime.groups import Groups, Sessions
from peelsum.softswitch.p4runtime.info import PipelineInfo
from peelsum.softswitch.p4runtime.status import (
    BatchError,
    Code,
    RequestError,
    from_bug,
    from_switch_error,
    invalid,
    unimplemented,
)
from peelsum.softswitch.p4runtime.tables import Tables


class Entities:
    """The entities of one pipeline that Write and Read can access."""

    def __init__(self, info: PipelineInfo, switch: Switch, ports: Collection[int] | None = None) -> None:
        """ports: the switch's ports; None if they are unknown."""
        self._tables = Tables(info, switch)
        self._counters = Counters(info, switch)
        self._registers = Registers(info, switch)
        self._groups = Groups(switch, ports)
        self._sessions = Sessions(switch, ports)

    def write(self, updates: Sequence[p4r.Update], active: Callable[[], bool] = lambda: True) -> None:
        """Attempt every update in order. Raises BatchError with the outcome of each if any failed.

        Stops with RequestError (CANCELLED) once `active` returns False; updates already made remain.
        """
        outcomes: list[RequestError | None] = []
        for update in updates:
            if not active():
                raise RequestError(
                    Code.CANCELLED,
                    f"{len(outcomes)} of {len(updates)} updates were attempted; read what is there",
                )
            outcomes.append(self._outcome(update))
        if any(outcomes):
            raise BatchError(outcomes)

    def _outcome(self, update: p4r.Update) -> RequestError | None:
        try:
            self._write_one(update)
        except RequestError as error:
            return error
        except SoftswitchError as error:
            return from_switch_error(error)
        except Exception as error:
            return from_bug(error)
        return None

    def _write_one(self, update: p4r.Update) -> None:
        kind = update.type
        if kind not in (p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE):
            raise invalid(f"type: update type {kind} is unknown; use INSERT, MODIFY or DELETE")
        entity = update.entity
        match entity.WhichOneof("entity"):
            case "table_entry":
                self._tables.write(kind, entity.table_entry)
            case "direct_counter_entry":
                self._tables.write_counter(kind, entity.direct_counter_entry)
            case "counter_entry":
                self._counters.write(kind, entity.counter_entry)
            case "register_entry":
                self._registers.write(kind, entity.register_entry)
            case "packet_replication_engine_entry":
                entry = entity.packet_replication_engine_entry
                if entry.WhichOneof("type") == "clone_session_entry":
                    self._sessions.write(kind, entry.clone_session_entry)
                else:
                    self._groups.write(kind, entry)
            case None:
                raise invalid("entity: is empty; give one")
            case other:
                raise unimplemented(other)

    def read(self, wanted: p4r.Entity) -> Iterator[p4r.Entity]:
        """Return every entity that `wanted` selects now, encoded when it is consumed. Raises RequestError."""
        found: Iterator[Any]
        make: Any = p4r.Entity
        match kind := wanted.WhichOneof("entity"):
            case "table_entry":
                found = self._tables.read(wanted.table_entry)
            case "direct_counter_entry":
                found = self._tables.read_counters(wanted.direct_counter_entry)
            case "counter_entry":
                found = self._counters.read(wanted.counter_entry)
            case "register_entry":
                found = self._registers.read(wanted.register_entry)
            case "packet_replication_engine_entry":
                found = self._replicating(wanted.packet_replication_engine_entry)
            case None:
                raise invalid("entity: is empty; give one")
            case other:
                raise unimplemented(other)
        return (make(**{kind: entity}) for entity in found)

    def _replicating(
        self, wanted: p4r.PacketReplicationEngineEntry
    ) -> Iterator[p4r.PacketReplicationEngineEntry]:
        if wanted.WhichOneof("type") == "clone_session_entry":
            return self._sessions.read(wanted.clone_session_entry.session_id)
        return self._groups.read(wanted)

    def forwarding_state(self) -> list[p4r.Update]:
        """Return updates that copy all entries, default actions and groups to another pipeline."""
        updates = []
        for entry in self._tables.read(p4r.TableEntry()):
            if not entry.is_const:
                updates.append(_update(p4r.Update.INSERT, p4r.Entity(table_entry=entry)))
        for entry in self._tables.read(p4r.TableEntry(is_default_action=True)):
            if not entry.is_const:
                updates.append(_update(p4r.Update.MODIFY, p4r.Entity(table_entry=entry)))
        everything = p4r.PacketReplicationEngineEntry(multicast_group_entry=p4r.MulticastGroupEntry())
        for group in (*self._groups.read(everything), *self._sessions.read(0)):
            entity = p4r.Entity(packet_replication_engine_entry=group)
            updates.append(_update(p4r.Update.INSERT, entity))
        return updates


def _update(kind: p4r.Update.Type.ValueType, entity: p4r.Entity) -> p4r.Update:
    return p4r.Update(type=kind, entity=entity)
