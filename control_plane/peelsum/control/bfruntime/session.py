"""A BF Runtime session with one Tofino that runs bf_switchd. Its entities are P4Runtime's."""

from __future__ import annotations

import json
import queue
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, NoReturn

import grpc
from finsy.p4entity import P4CounterEntry, P4Entity, P4MulticastGroupEntry, P4TableEntry
from finsy.p4schema import P4Schema
from finsy.proto import p4i, p4r

from peelsum.control.bfruntime.messages import (
    ALL_PIPES,
    Entity,
    Get,
    ReadRequest,
    Set,
    StreamRequest,
    Update,
    WriteRequest,
    codes,
    method,
    switch_error_of,
)
from peelsum.control.bfruntime.rows import (
    Schema,
    TableSchema,
    entity_of,
    group_updates,
    row_of,
    table_update,
)
from peelsum.control.errors import NotPrimaryError, SwitchError, UnsupportedError
from peelsum.control.session import Session, elected, schema_errors
from peelsum.control.stream import StreamChannel
from peelsum.tls import TlsIdentity

#: The time limit for loading a program, which resets the switch.
_PROGRAM_TIMEOUT_S = 600.0
#: bf_switchd's name of the pseudo-program with the tables that every switch has.
_SHARED_TABLES = "$SHARED"
_BATCH = 256
#: Seconds that the switch may take to notice that this client's last stream has ended.
_UNBIND_S = 2.0


class BfRuntimeSession(Session):
    """A connection to bf_switchd, as a context manager. It starts as a backup.

    Theory of operation. BF Runtime has no election. The client that binds the program is the primary, until
    its stream ends; the switch refuses to bind other clients, whatever their election ids. A backup can read
    without binding the program, if its requests name it.
    """

    api, started_by = "BF Runtime", "bf_switchd"

    def __init__(
        self,
        address: str,
        program: P4Schema,
        device_id: int = 0,
        *,
        timeout_s: float,
        connect_s: float | None = None,
        identity: TlsIdentity | None = None,
    ) -> None:
        """Connect as a backup. Raises SwitchError as `Session` does.

        program: the program that should run, with its device config for Stratum as p4blob.
        """
        self._program = program
        #: The tables of the running program, and those that every switch has.
        self.tables = Schema()
        #: The name of the running program; empty if there is none.
        self.program_name = ""
        self._client_id = 0
        self._calls: Any = None
        self._outgoing: queue.SimpleQueue[object] = queue.SimpleQueue()
        super().__init__(address, device_id, timeout_s=timeout_s, connect_s=connect_s, identity=identity)

    # Primary and backup

    @property
    def is_primary(self) -> bool:
        """Whether `become_primary` succeeded and `become_backup` was not called since."""
        return self._calls is not None

    @property
    def stream(self) -> StreamChannel:
        """Raise UnsupportedError: BF Runtime has no PacketOut."""
        raise UnsupportedError(
            f"switch: {self.address}: BF Runtime carries no packets; use P4Runtime for that"
        )

    def become_primary(self, election_id: int = 1, *, patience_s: float = 0.0) -> None:
        """Bind the running program. Raises NotPrimaryError if another client has bound it for `patience_s`.

        election_id: not used, because the first client that binds the program is the primary.
        """
        elected(self._bid, patience_s)

    def _bid(self) -> None:
        """Bind the running program once, as a new client. Raises NotPrimaryError."""
        self.become_backup()
        self._subscribe()
        try:
            self.refresh()
            self._bind()
        except BaseException:
            self.become_backup()
            raise

    def become_backup(self) -> None:
        """End the stream, which unbinds the program."""
        if self._calls is not None:
            self._outgoing.put(None)
            self._calls.cancel()
        self._calls = None

    def has_primary(self) -> bool:
        """Return whether a client has bound the program. To find out, bind it for a moment."""
        if self.is_primary:
            return True
        try:
            self.become_primary()
        except NotPrimaryError:
            return True
        self.become_backup()
        return False

    def check_primary(self) -> None:
        """Raise SwitchError if the stream has ended, which unbinds the program."""
        if self._calls is None or not self._calls.is_active():
            raise SwitchError(f"switch: {self.address} ended the session; connect again")

    def acquire_lease(self, job_id: int) -> None:
        """Do nothing: BF Runtime has no roles, and so no leases."""

    def _subscribe(self) -> None:
        """Open a stream and subscribe, as a new client. Raises SwitchError."""
        responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # A new client id, because the switch may not have noticed yet that the last stream has ended.
        self._outgoing, self._client_id = queue.SimpleQueue(), secrets.randbits(31) | 1
        request = StreamRequest(client_id=self._client_id)
        request.subscribe.device_id = self._device_id
        self._outgoing.put(request)
        self._calls = method(self._channel, "StreamChannel")(iter(self._outgoing.get, None))
        Thread(target=_receive, args=(self._calls, responses), daemon=True).start()
        try:
            response = responses.get(timeout=self._timeout_s)
        except queue.Empty:
            self.become_backup()
            raise SwitchError(
                f"switch: {self.address} does not answer a subscription; is it BF Runtime of bf_switchd?"
            ) from None
        if isinstance(response, grpc.RpcError):
            self.become_backup()
            self._raise(response, "subscribing")

    def _bind(self) -> None:
        """Bind the running program. Raises NotPrimaryError if another client has bound it."""
        if not self.program_name:
            return  # there is nothing to bind before a program is loaded
        request = Set(device_id=self._device_id, client_id=self._client_id, action="BIND")
        request.config.add(p4_name=self.program_name)
        try:
            method(self._channel, "SetForwardingPipelineConfig")(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            if codes(error) == {grpc.StatusCode.ALREADY_EXISTS}:
                raise NotPrimaryError(
                    f"switch: another client has bound {self.program_name} at {self.address}; end it first"
                ) from None
            self._raise(error, "binding the program")

    # Pipeline

    def runs(self, pipeline: P4Schema) -> bool:
        """Return whether the switch runs this program, with the same name and the same bf-rt.json."""
        return self.schema is self._program and pipeline.p4blob == self._program.p4blob

    def commit(self, pipeline: P4Schema) -> None:
        """Load a program, which resets the switch, and bind it. Raises SwitchError."""
        request = Set(
            device_id=self._device_id,
            client_id=self._client_id,
            action="VERIFY_AND_WARM_INIT_BEGIN_AND_END",
        )
        request.config.add().ParseFromString(pipeline.p4blob)
        timeout_s = _PROGRAM_TIMEOUT_S
        self._call("SetForwardingPipelineConfig", request, "loading the program", timeout_s=timeout_s)
        self._program = pipeline
        self.become_primary(patience_s=_UNBIND_S)

    def refresh(self) -> None:
        """Read the running program and its tables, and compare it with the expected program."""
        self.schema, self.program_name, self.tables = None, "", Schema()
        request = Get(device_id=self._device_id, client_id=self._client_id)
        response = self._call("GetForwardingPipelineConfig", request, "reading the program")
        for config in response.config:
            if config.p4_name != _SHARED_TABLES:
                self.program_name = config.p4_name
                self.tables = Schema(config.bfruntime_info, response.non_p4_config.bfruntime_info)
                expected = Set().config.add()
                expected.ParseFromString(self._program.p4blob)
                same = config.p4_name == expected.p4_name
                same = same and json.loads(config.bfruntime_info) == json.loads(expected.bfruntime_info)
                self.schema = self._program if same else P4Schema(p4i.P4Info())
                return

    # Entities

    def write(self, updates: Sequence[Any]) -> None:
        """Apply updates in order, as `Session.write` does. A BF Runtime Update is sent unchanged.

        Raises SwitchError, which names the first update that failed.
        """
        schema = self.running_schema()
        messages: list[Any] = []
        for update in updates:
            if isinstance(update, Update):
                messages.append(update)
                continue
            with schema_errors():
                encoded = update.encode_update(schema)
            if isinstance(update, P4MulticastGroupEntry):
                messages += group_updates(encoded, self.tables)
            else:
                messages.append(table_update(encoded, self.tables))
        self.write_raw(messages)

    def write_raw(self, updates: Sequence[Any], pipe: int = ALL_PIPES) -> None:
        """Send BF Runtime Updates in order, to one pipe or to all. Raises SwitchError."""
        self.check_primary()
        for start in range(0, len(updates), _BATCH):
            batch = updates[start : start + _BATCH]
            request = WriteRequest(client_id=self._client_id, updates=batch)
            self._set_target(request, pipe)
            self._call("Write", request, "writing", updates=batch)

    def read(self, *selectors: P4Entity | p4r.Entity) -> list[p4r.Entity]:
        """Return the entities that `selectors` selects. Raises SwitchError."""
        schema, entities = self.running_schema(), []
        for selector in selectors:
            if isinstance(selector, P4TableEntry):
                with schema_errors():
                    selected = selector.encode(schema).table_entry
                query = entity_of(selected, self.tables, with_key=bool(selected.match))
                rows = self.read_raw(query)  # the response always includes the default row
                entities += [row_of(row, self.tables) for row in rows if not row.table_entry.is_default_entry]
            elif isinstance(selector, P4MulticastGroupEntry):
                entities += self._groups(selector, schema)
            elif isinstance(selector, P4CounterEntry):
                entities += self._counters(selector, schema)
            else:
                raise UnsupportedError(f"switch: {self.address}: cannot read {type(selector).__name__}")
        return entities

    def read_raw(self, query: Any, pipe: int = ALL_PIPES) -> Iterator[Any]:
        """Yield the BF Runtime Entities that a query selects, of one pipe or of all."""
        request = ReadRequest(
            client_id=self._client_id, p4_name="" if self.is_primary else self.program_name, entities=[query]
        )
        self._set_target(request, pipe)
        try:
            for response in method(self._channel, "Read")(request, timeout=self._timeout_s):
                yield from response.entities
        except grpc.RpcError as error:
            if codes(error) != {grpc.StatusCode.NOT_FOUND}:
                self._raise(error, "reading")

    def values(
        self, table: TableSchema, *, key: int | None = None, pipe: int = ALL_PIPES
    ) -> Mapping[int, Mapping[str, list[Any]]]:
        """Return the data of a table's rows, or only of the row `key`, by their keys.

        The data are BF Runtime's fields, by the last part of their names. With all pipes, a register's field
        is repeated for each pipe. The table has one key field, a number. Registers and counters are read from
        the hardware.
        """
        names = {field.number: name for name, field in table.data.items()}
        query, rows = Entity(), dict[int, dict[str, list[Any]]]()
        query.table_entry.table_id = table.number
        query.table_entry.table_flags.from_hw = True
        (field,) = table.key.values()
        if key is not None:
            query.table_entry.key.fields.add(field_id=field.number).exact.value = field.encoded(key)
        for entry in (entity.table_entry for entity in self.read_raw(query, pipe)):
            if not entry.is_default_entry:
                row = rows.setdefault(int.from_bytes(entry.key.fields[0].exact.value, "big"), {})
                for data in entry.data.fields:
                    row.setdefault(names.get(data.field_id, ""), []).append(data)
        return rows

    def _groups(self, selector: P4MulticastGroupEntry, schema: P4Schema) -> Iterator[p4r.Entity]:
        table, node = self.tables.table("$pre.mgid"), self.tables.table("$pre.node")
        for number in self.values(table, key=selector.multicast_group_id or None):
            for data in self.values(node, key=number).values():
                ports = [port for field in data.get("$DEV_PORT", ()) for port in field.int_arr_val.val]
                yield P4MulticastGroupEntry(number, replicas=ports).encode(schema)

    def _counters(self, selector: P4CounterEntry, schema: P4Schema) -> Iterator[p4r.Entity]:
        table = self.tables.table(schema.counters[selector.counter_id].name)
        for index, data in self.values(table).items():
            packets = data["$COUNTER_SPEC_PKTS"][0].stream
            entity = selector.encode(schema)
            entity.counter_entry.index.index = index
            entity.counter_entry.data.packet_count = int.from_bytes(packets, "big")
            yield entity

    def _set_target(self, request: Any, pipe: int) -> None:
        request.target.device_id = self._device_id
        request.target.pipe_id = pipe
        request.target.direction = request.target.prsr_id = 0xFF

    def _call(
        self, name: str, request: Any, doing: str, *, timeout_s: float = 0.0, updates: Sequence[Any] = ()
    ) -> Any:
        """Call a method; return the response. Raises SwitchError, which says what failed: `doing`."""
        try:
            return method(self._channel, name)(request, timeout=timeout_s or self._timeout_s)
        except grpc.RpcError as error:
            self._raise(error, doing, updates)

    def _raise(self, error: grpc.RpcError, doing: str, updates: Sequence[Any] = ()) -> NoReturn:
        raise switch_error_of(error, self.address, doing, updates) from None


def _receive(calls: Any, responses: queue.SimpleQueue[Any]) -> None:
    """Put the responses of a stream into a queue, and at last the error that ends it."""
    with suppress(ValueError):  # the channel was closed before the first response
        try:
            for response in calls:
                responses.put(response)
        except grpc.RpcError as error:
            responses.put(error)
