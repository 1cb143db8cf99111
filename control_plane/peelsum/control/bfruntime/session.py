"""A BF Runtime session with one Tofino, for switches that run bf_switchd.

It takes and returns P4Runtime's entities, as a P4Runtime session does.
"""

from __future__ import annotations

import json
import queue
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from time import monotonic, sleep
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
    Stub,
    Update,
    WriteRequest,
    codes,
    refused,
)
from peelsum.control.bfruntime.rows import group_updates, ports_of, row_of, table_query, table_update
from peelsum.control.bfruntime.schema import Schema, Table
from peelsum.control.errors import NotPrimaryError, SwitchError, UnsupportedError
from peelsum.control.session import Session, for_program
from peelsum.control.stream import Stream
from peelsum.tls import Identity

#: A new program resets the switch.
_PROGRAM_TIMEOUT_S = 600.0
#: What bf_switchd calls the tables that every switch has.
_SHARED = "$SHARED"
_BATCH = 256
#: How long the switch may take to notice that this client left.
_LEFT_S, _AGAIN_S = 2.0, 0.1


class BfRuntimeSession(Session):
    """A connection to bf_switchd, as a context manager. It starts as a backup.

    Theory of operation. BF Runtime has no election: the client that binds a program is the primary, and
    every other bind is refused until its stream ends. Election ids are not compared. A backup reads as an
    independent client, which bf_switchd allows if the request names the program.
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
        identity: Identity | None = None,
    ) -> None:
        """Connect as a backup. Raises SwitchError as `Session` does.

        program: what the switch runs or will be given, with the device config for Stratum as its blob.
        """
        self._program = program
        #: The tables of the running program and of the switch.
        self.tables = Schema()
        #: The running program's name; empty if there is none.
        self.program_name = ""
        self._client_id = _new_client()
        self._calls: Any = None
        self._ends: queue.SimpleQueue[object] = queue.SimpleQueue()
        super().__init__(address, device_id, timeout_s=timeout_s, connect_s=connect_s, identity=identity)

    # Primary and backup

    @property
    def is_primary(self) -> bool:
        """Whether `become_primary` succeeded and `become_backup` was not called since."""
        return self._calls is not None

    @property
    def stream(self) -> Stream:
        """Raise UnsupportedError: BF Runtime carries no packets."""
        raise UnsupportedError(
            f"switch: {self.address}: BF Runtime carries no packets; use P4Runtime for that"
        )

    def become_primary(self, election_id: int = 1, *, patience_s: float = 0.0) -> None:
        """Bind the running program. Raises NotPrimaryError if another client still has it afterwards.

        election_id: not used; the first client to bind is the primary.
        """
        self.become_backup()
        deadline = monotonic() + patience_s
        while True:
            self._subscribe()
            try:
                self._learn_schema()
                self._bind()
                return
            except BaseException as error:
                self.become_backup()
                if not isinstance(error, NotPrimaryError) or monotonic() >= deadline:
                    raise
            sleep(_AGAIN_S)

    def become_backup(self) -> None:
        """Leave the program to other clients."""
        if self._calls is not None:
            self._ends.put(None)
            self._calls.cancel()
        self._calls = None

    def has_primary(self) -> bool:
        """Return whether another client has bound the program. Binds it for a moment to find out."""
        if self.is_primary:
            return True
        try:
            self.become_primary()
        except NotPrimaryError:
            return True
        self.become_backup()
        return False

    def check_primary(self) -> None:
        """Raise SwitchError if the stream, and with it the bind, has ended."""
        if self._calls is None or not self._calls.is_active():
            raise SwitchError(f"switch: {self.address} ended the session; connect again")

    def hold(self, job_id: int) -> None:
        """Do nothing: BF Runtime has no roles."""

    def _subscribe(self) -> None:
        responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # The switch may not have noticed yet that this client's last stream has ended.
        self._ends, self._client_id = queue.SimpleQueue(), _new_client()
        request = StreamRequest(client_id=self._client_id)
        request.subscribe.device_id = self._device_id
        self._ends.put(request)
        self._calls = Stub(self._channel).stream(iter(self._ends.get, None))
        Thread(target=_moved, args=(self._calls, responses), daemon=True).start()
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
        if not self.program_name:
            return  # there is nothing to bind before a program is loaded
        request = Set(device_id=self._device_id, client_id=self._client_id, action="BIND")
        request.config.add(p4_name=self.program_name)
        try:
            Stub(self._channel).set_config(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            if codes(error) == {grpc.StatusCode.ALREADY_EXISTS}:
                raise NotPrimaryError(
                    f"switch: another client has bound {self.program_name} at {self.address}; end it first"
                ) from None
            self._raise(error, "binding the program")

    # Pipeline

    def runs(self, wanted: P4Schema) -> bool:
        """Return whether the switch runs this program: the same name and the same bf-rt.json."""
        return self.schema is self._program and wanted.p4blob == self._program.p4blob

    def commit(self, wanted: P4Schema) -> None:
        """Load a program, and bind it. This resets the switch. Raises SwitchError."""
        request = Set(
            device_id=self._device_id,
            client_id=self._client_id,
            action="VERIFY_AND_WARM_INIT_BEGIN_AND_END",
        )
        request.config.add().ParseFromString(wanted.p4blob)
        try:
            Stub(self._channel).set_config(request, timeout=_PROGRAM_TIMEOUT_S)
        except grpc.RpcError as error:
            self._raise(error, "loading the program")
        self._program = wanted
        self.become_primary(patience_s=_LEFT_S)

    def _learn_schema(self) -> None:
        self.schema, self.program_name, self.tables = None, "", Schema()
        request = Get(device_id=self._device_id, client_id=self._client_id)
        try:
            found = Stub(self._channel).get_config(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            self._raise(error, "reading the program")
        for config in found.config:
            if config.p4_name != _SHARED:
                self.program_name = config.p4_name
                self.tables = Schema(config.bfruntime_info, found.non_p4_config.bfruntime_info)
                wanted = Set().config.add()
                wanted.ParseFromString(self._program.p4blob)
                same = config.p4_name == wanted.p4_name
                same = same and json.loads(config.bfruntime_info) == json.loads(wanted.bfruntime_info)
                self.schema = self._program if same else P4Schema(p4i.P4Info())
                return

    # Entities

    def write(self, updates: Sequence[Any]) -> None:
        """Insert (+), modify (~) or delete (-) entities, in order; BF Runtime's Updates are sent as they are.

        Raises SwitchError naming the first update that fails.
        """
        schema = self.loaded()
        sent: list[Any] = []
        for update in updates:
            if isinstance(update, Update):
                sent.append(update)
                continue
            with for_program():
                encoded = update.encode_update(schema)
            if isinstance(update, P4MulticastGroupEntry):
                sent += group_updates(encoded, self.tables)
            else:
                sent.append(table_update(encoded, self.tables))
        self.write_raw(sent)

    def write_raw(self, updates: Sequence[Any], pipe: int = ALL_PIPES) -> None:
        """Send Updates, in order, for one pipe or for all. Raises SwitchError for the first that fails."""
        self.check_primary()
        for start in range(0, len(updates), _BATCH):
            batch = updates[start : start + _BATCH]
            request = WriteRequest(client_id=self._client_id, updates=batch)
            self._aim(request, pipe)
            try:
                Stub(self._channel).write(request, timeout=self._timeout_s)
            except grpc.RpcError as error:
                self._raise(error, "writing", batch)

    def read(self, *wanted: P4Entity) -> list[p4r.Entity]:
        """Return the entities that `wanted` selects. Raises SwitchError."""
        schema, entities = self.loaded(), []
        for one in wanted:
            if isinstance(one, P4TableEntry):
                with for_program():
                    query = table_query(one.encode(schema).table_entry, self.tables)
                rows = self.read_raw(query)  # with the default row, whatever is asked for
                entities += [row_of(row, self.tables) for row in rows if not row.table_entry.is_default_entry]
            elif isinstance(one, P4MulticastGroupEntry):
                entities += self._groups(one, schema)
            elif isinstance(one, P4CounterEntry):
                entities += self._counters(one, schema)
            else:
                raise UnsupportedError(f"switch: {self.address}: cannot read {type(one).__name__} so")
        return entities

    def read_raw(self, query: Any, pipe: int = ALL_PIPES) -> Iterator[Any]:
        """Yield the Entities that a query selects, in one pipe or in all. Nothing, if there are none."""
        request = ReadRequest(
            client_id=self._client_id, p4_name="" if self.is_primary else self.program_name, entities=[query]
        )
        self._aim(request, pipe)
        try:
            for response in Stub(self._channel).read(request, timeout=self._timeout_s):
                yield from response.entities
        except grpc.RpcError as error:
            if codes(error) != {grpc.StatusCode.NOT_FOUND}:
                self._raise(error, "reading")

    def values(self, table: Table, *, key: int | None = None, pipe: int = ALL_PIPES) -> Mapping[int, Any]:
        """Return a table's data by the one number that is its key; only of row `key` if that is given.

        Registers and counters come from the hardware.
        """
        query = Entity()
        query.table_entry.table_id = table.number
        query.table_entry.table_flags.from_hw = True
        (field,) = table.key.values()
        if key is not None:
            query.table_entry.key.fields.add(field_id=field.number).exact.value = field.encoded(key)
        return {
            int.from_bytes(one.table_entry.key.fields[0].exact.value, "big"): one.table_entry.data
            for one in self.read_raw(query, pipe)
            if not one.table_entry.is_default_entry
        }

    def _groups(self, wanted: P4MulticastGroupEntry, schema: P4Schema) -> Iterator[p4r.Entity]:
        table, node = self.tables.table("$pre.mgid"), self.tables.table("$pre.node")
        for number in self.values(table, key=wanted.multicast_group_id or None):
            for data in self.values(node, key=number).values():
                yield P4MulticastGroupEntry(number, replicas=ports_of(data, node)).encode(schema)

    def _counters(self, wanted: P4CounterEntry, schema: P4Schema) -> Iterator[p4r.Entity]:
        table = self.tables.table(schema.counters[wanted.counter_id].name)
        for index, data in self.values(table).items():
            entity = wanted.encode(schema)
            entity.counter_entry.index.index = index
            entity.counter_entry.data.packet_count = int.from_bytes(data.fields[0].stream, "big")
            yield entity

    def _aim(self, request: Any, pipe: int) -> None:
        request.target.device_id = self._device_id
        request.target.pipe_id = pipe
        request.target.direction = request.target.prsr_id = 0xFF

    def _raise(self, error: grpc.RpcError, doing: str, updates: Sequence[Any] = ()) -> NoReturn:
        raise refused(error, self.address, doing, updates) from None


def _new_client() -> int:
    """Return a client's number that no other client is likely to have."""
    return secrets.randbits(31) | 1


def _moved(calls: Any, responses: queue.SimpleQueue[Any]) -> None:
    """Move what a stream brings into a queue, and the error that ends it."""
    with suppress(ValueError):  # the channel was closed before the first response
        try:
            for response in calls:
                responses.put(response)
        except grpc.RpcError as error:
            responses.put(error)
