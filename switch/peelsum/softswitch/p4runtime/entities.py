"""Dispatches writes and reads of entities by their kind.

An entity of a kind that the softswitch does not support is refused, with the name of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from finsy.proto import p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.p4runtime.cells import counters, registers
from peelsum.softswitch.p4runtime.groups import ReplicationEntries
from peelsum.softswitch.p4runtime.info import PipelineInfo
from peelsum.softswitch.p4runtime.secrets import SecretEntries
from peelsum.softswitch.p4runtime.status import (
    BatchError,
    Code,
    RequestError,
    from_bug,
    from_switch_error,
    invalid,
    unimplemented,
)
from peelsum.softswitch.p4runtime.tables import TableEntries
from peelsum.softswitch.runtime.device import SecretPort

#: The functions that write and read a kind of entity.
_Handlers: TypeAlias = tuple[Callable[[p4r.Update.Type.ValueType, Any], None], Callable[[Any], Iterator[Any]]]


class Entities:
    """The entities of one pipeline that Write and Read can access."""

    def __init__(
        self,
        info: PipelineInfo,
        switch: Switch,
        ports: Collection[int] | None = None,
        secret_ports: Mapping[int, SecretPort] | None = None,
    ) -> None:
        """ports, secret_ports: as for `Device`."""
        tables, groups = TableEntries(info, switch), ReplicationEntries(switch, ports)
        counter_entries, register_entries = counters(info, switch), registers(info, switch)
        self._handlers: dict[str, _Handlers] = {
            "table_entry": (tables.write, tables.read),
            "direct_counter_entry": (tables.write_counter, tables.read_counters),
            "counter_entry": (counter_entries.write, counter_entries.read),
            "register_entry": (register_entries.write, register_entries.read),
            "packet_replication_engine_entry": (groups.write, groups.read),
        }
        if secret_ports is not None:
            secrets = SecretEntries(switch, secret_ports)
            self._handlers["extern_entry"] = (secrets.write, secrets.read)

    def write(self, updates: Sequence[p4r.Update], active: Callable[[], bool] = lambda: True) -> None:
        """Attempt every update in order. Raises BatchError, with the result of each, if any failed.

        Raises RequestError (CANCELLED) as soon as `active` returns False. Earlier updates stay in force.
        """
        results: list[RequestError | None] = []
        for update in updates:
            if not active():
                raise RequestError(
                    Code.CANCELLED,
                    f"{len(results)} of {len(updates)} updates were attempted; read what is there",
                )
            results.append(self._result(update))
        if any(results):
            raise BatchError(results)

    def _result(self, update: p4r.Update) -> RequestError | None:
        """Attempt an update; return its error, or None if it succeeded."""
        try:
            self._write_update(update)
        except RequestError as error:
            return error
        except SoftswitchError as error:
            return from_switch_error(error)
        except Exception as error:
            return from_bug(error)
        return None

    def _write_update(self, update: p4r.Update) -> None:
        kind = update.type
        if kind not in (p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE):
            raise invalid(f"type: update type {kind} is unknown; use INSERT, MODIFY or DELETE")
        name, (write, _) = self._handlers_of(update.entity)
        write(kind, getattr(update.entity, name))

    def read(self, selector: p4r.Entity) -> Iterator[p4r.Entity]:
        """Return the entities that `selector` selects now, encoded when consumed. Raises RequestError."""
        name, (_, read) = self._handlers_of(selector)
        entity_class: Any = p4r.Entity
        return (entity_class(**{name: entry}) for entry in read(getattr(selector, name)))

    def _handlers_of(self, entity: p4r.Entity) -> tuple[str, _Handlers]:
        """Return the name of an entity's kind, and the functions that write and read it."""
        name = entity.WhichOneof("entity")
        if name is None:
            raise invalid("entity: is empty; give one")
        if name not in self._handlers:
            raise unimplemented(name)
        return name, self._handlers[name]
