"""Dispatches writes and reads of entities to the part of the pipeline that they belong to.

Entities that the softswitch does not support are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from finsy.proto import p4r

from peelsum.softswitch import Switch
from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.p4runtime.cells import counters, registers
from peelsum.softswitch.p4runtime.groups import Groups
from peelsum.softswitch.p4runtime.info import PipelineInfo
from peelsum.softswitch.p4runtime.secrets import Secrets
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
from peelsum.softswitch.runtime.device import SecretPort

#: How a kind of entity is written and read.
_Part: TypeAlias = tuple[Callable[[p4r.Update.Type.ValueType, Any], None], Callable[[Any], Iterator[Any]]]


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
        tables, groups = Tables(info, switch), Groups(switch, ports)
        counted, registered = counters(info, switch), registers(info, switch)
        self._parts: dict[str, _Part] = {
            "table_entry": (tables.write, tables.read),
            "direct_counter_entry": (tables.write_counter, tables.read_counters),
            "counter_entry": (counted.write, counted.read),
            "register_entry": (registered.write, registered.read),
            "packet_replication_engine_entry": (groups.write, groups.read),
        }
        if secret_ports is not None:
            secrets = Secrets(switch, secret_ports)
            self._parts["extern_entry"] = (secrets.write, secrets.read)

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
        name, (write, _) = self._part(update.entity)
        write(kind, getattr(update.entity, name))

    def read(self, wanted: p4r.Entity) -> Iterator[p4r.Entity]:
        """Return every entity that `wanted` selects now, encoded when it is consumed. Raises RequestError."""
        name, (_, read) = self._part(wanted)
        make: Any = p4r.Entity
        return (make(**{name: found}) for found in read(getattr(wanted, name)))

    def _part(self, entity: p4r.Entity) -> tuple[str, _Part]:
        """Return the name of an entity's kind, and how it is written and read. Raises RequestError."""
        name = entity.WhichOneof("entity")
        if name is None:
            raise invalid("entity: is empty; give one")
        if name not in self._parts:
            raise unimplemented(name)
        return name, self._parts[name]
