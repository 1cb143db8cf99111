"""A fake Stratum on a Tofino: P4Runtime over tables in memory, refusing what the real one refuses.

What it refuses, with which code and words, was read in p4_service.cc, bfrt_table_manager.cc, bfrt_node.cc and
bf_sde_wrapper.cc of stratum/stratum (commit f8f71301). It acknowledges RESET packets.
"""

import queue
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import RLock, Thread

import grpc
from finsy.proto import U128, p4i, p4r, p4r_grpc, rpc_code
from frames import payload_of
from google.protobuf import text_format
from rpc_reports import report

from peelsum.wire import Kind, unpack

Code = grpc.StatusCode


class RefusedError(Exception):
    """A part of a call is refused."""

    def __init__(self, code, words):
        super().__init__(words)
        self.code, self.words = code, words


class StratumSwitch(p4r_grpc.P4RuntimeServicer):
    """The server, as a context manager. `ports` are the device ports that the switch has."""

    def __init__(self, device_id=1, ports=range(512), lanes=32):
        self.device_id, self.ports, self.lanes = device_id, set(ports), lanes
        self.lock, self.config = RLock(), None
        self.primary = None  # (election id, queue of its stream)
        self.resets = []
        self.forget()
        self.server = grpc.server(
            ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", 64 << 20)]
        )
        p4r_grpc.add_P4RuntimeServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop(None).wait()

    def forget(self):
        self.rows, self.defaults, self.groups = {}, {}, {}

    def table(self, name):
        """Rows of a table, by its alias."""
        number = next(one.preamble.id for one in self.info.tables if one.preamble.alias == name)
        return [row for (table, _), row in self.rows.items() if table == number]

    # Calls

    def StreamChannel(self, requests, context):  # noqa: N802
        outgoing = queue.SimpleQueue()
        Thread(target=self._listen, args=(requests, outgoing), daemon=True).start()
        context.add_callback(lambda: self._left(outgoing))
        yield from iter(outgoing.get, None)

    def _listen(self, requests, outgoing):
        with suppress(grpc.RpcError):  # the client has gone
            for request in requests:
                self._answer(request, outgoing)
        self._left(outgoing)

    def _answer(self, request, outgoing):
        if request.WhichOneof("update") == "packet":
            frame = request.packet.payload
            (packet,) = unpack(payload_of(frame), self.lanes)
            self.resets.append(int(packet["chunk_id"]) if packet["kind"] == Kind.RESET else None)
            outgoing.put(p4r.StreamMessageResponse(packet=p4r.PacketIn(payload=frame)))
            return
        bid = request.arbitration
        election_id = U128.decode(bid.election_id)
        with self.lock:
            if self.primary is None and election_id:
                self.primary = (election_id, outgoing)
            won = self.primary is not None and self.primary[1] is outgoing
            code = rpc_code.OK if won else rpc_code.ALREADY_EXISTS if self.primary else rpc_code.NOT_FOUND
            answer = p4r.MasterArbitrationUpdate(device_id=bid.device_id)
            answer.status.code = code
            answer.election_id.CopyFrom(U128.encode(self.primary[0] if self.primary else 0))
        outgoing.put(p4r.StreamMessageResponse(arbitration=answer))

    def _left(self, outgoing):
        with self.lock:
            if self.primary is not None and self.primary[1] is outgoing:
                self.primary = None
        outgoing.put(None)

    def GetForwardingPipelineConfig(self, request, context):  # noqa: N802
        self._check_config(request, context)
        response = p4r.GetForwardingPipelineConfigResponse()
        response.config.p4info.CopyFrom(self.info)
        response.config.cookie.CopyFrom(self.config.cookie)
        return response

    def SetForwardingPipelineConfig(self, request, context):  # noqa: N802
        self._check_writer(request, context)
        if not request.config.p4_device_config:
            context.abort(Code.INVALID_ARGUMENT, "Failed to parse device config")
        with self.lock:
            self.config, self.info = request.config, request.config.p4info
            self.forget()
        return p4r.SetForwardingPipelineConfigResponse()

    def Write(self, request, context):  # noqa: N802
        self._check_writer(request, context)
        errors = []
        with self.lock:
            for update in request.updates:
                errors.append(_tried(self._apply, update))
        report(context, "One or more write operations failed.", errors)
        return p4r.WriteResponse()

    def Read(self, request, context):  # noqa: N802
        self._check_config(request, context)
        response, errors = p4r.ReadResponse(), []
        with self.lock:
            for entity in request.entities:
                errors.append(_tried(lambda one: response.entities.extend(self._found(one)), entity))
        yield response
        report(context, "One or more read operations failed.", errors)

    def _check_config(self, request, context):
        if not request.device_id:
            context.abort(Code.INVALID_ARGUMENT, "Invalid device ID.")
        if self.config is None or request.device_id != self.device_id:
            context.abort(Code.FAILED_PRECONDITION, "No valid forwarding pipeline config has been pushed")

    def _check_writer(self, request, context):
        if not request.device_id:
            context.abort(Code.INVALID_ARGUMENT, "Invalid device ID.")
        if self.primary is None or U128.decode(request.election_id) != self.primary[0]:
            context.abort(Code.PERMISSION_DENIED, "Write from non-master is not permitted")

    # Entities

    def _apply(self, update):
        kind = update.entity.WhichOneof("entity")
        if kind == "table_entry":
            self._write_row(update.type, update.entity.table_entry)
        elif kind == "packet_replication_engine_entry":
            entry = update.entity.packet_replication_engine_entry.multicast_group_entry
            self._write_group(update.type, entry)
        else:
            raise RefusedError(Code.UNIMPLEMENTED, f"Unsupported entity type: {kind}")

    def _write_row(self, verb, row):
        table = self._declared(row.table_id)
        if row.is_default_action:
            if verb != p4r.Update.MODIFY:
                raise RefusedError(Code.INTERNAL, "The default table entry can only be modified.")
            if row.match:
                raise RefusedError(Code.INTERNAL, "Default action must not contain match fields.")
            self.defaults[row.table_id] = row.action.action
            return
        if table.is_const_table:
            words = f"Can't write to const table {table.preamble.name} because it has const entries."
            raise RefusedError(Code.PERMISSION_DENIED, words)
        key = (row.table_id, _key(row, table))
        if verb == p4r.Update.INSERT and key in self.rows:
            raise RefusedError(Code.ALREADY_EXISTS, "'table->tableEntryAdd' failed: Exists")
        if verb != p4r.Update.INSERT and key not in self.rows:
            raise RefusedError(Code.NOT_FOUND, "'table->tableEntryMod' failed: Not found")
        if verb == p4r.Update.DELETE:
            del self.rows[key]
        else:
            if row.action.action.action_id not in {one.id for one in table.action_refs}:
                raise RefusedError(Code.INVALID_ARGUMENT, "Invalid action id")
            self.rows[key] = row

    def _write_group(self, verb, entry):
        number = entry.multicast_group_id
        if not {one.egress_port for one in entry.replicas} <= self.ports:
            raise RefusedError(Code.INVALID_ARGUMENT, "'table->tableEntryAdd' failed: Invalid arguments")
        if (verb == p4r.Update.INSERT) == (number in self.groups):
            code = Code.ALREADY_EXISTS if verb == p4r.Update.INSERT else Code.NOT_FOUND
            raise RefusedError(code, "'table->tableEntryAdd' failed")
        if verb == p4r.Update.DELETE:
            del self.groups[number]
        else:
            self.groups[number] = entry

    def _found(self, entity):
        match entity.WhichOneof("entity"):
            case "table_entry":
                wanted = entity.table_entry
                table = self._declared(wanted.table_id)
                if wanted.match:
                    key = (wanted.table_id, _key(wanted, table))
                    if key not in self.rows:
                        raise RefusedError(Code.NOT_FOUND, "'table->tableEntryGet' failed: Object not found")
                    return [p4r.Entity(table_entry=self.rows[key])]
                return [
                    p4r.Entity(table_entry=row)
                    for (number, _), row in self.rows.items()
                    if number == wanted.table_id
                ]
            case "packet_replication_engine_entry":
                number = entity.packet_replication_engine_entry.multicast_group_entry.multicast_group_id
                if number and number not in self.groups:
                    raise RefusedError(Code.NOT_FOUND, "'table->tableEntryGet' failed: Object not found")
                found = [self.groups[number]] if number else self.groups.values()
                return [
                    p4r.Entity(
                        packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
                            multicast_group_entry=one
                        )
                    )
                    for one in found
                ]
            case "counter_entry":
                entity.counter_entry.index.index = 0
                return [entity]
            case "register_entry":
                number = entity.register_entry.register_id
                kind = next(one for one in self.info.registers if one.preamble.id == number)
                if kind.type_spec.WhichOneof("type_spec") == "struct":
                    raise RefusedError(Code.INTERNAL, "Could not find register data field id.")
                return []
        raise RefusedError(Code.UNIMPLEMENTED, "Unsupported entity type")

    def _declared(self, number):
        for table in self.info.tables:
            if table.preamble.id == number:
                return table
        raise RefusedError(Code.INVALID_ARGUMENT, f"P4 table {number:#x} not found")


def _key(row, table):
    values, widths = {}, {field.id: field.bitwidth for field in table.match_fields}
    for match in row.match:
        kind = match.WhichOneof("field_match_type")
        value = getattr(match, kind)
        if kind == "lpm" and not value.prefix_len:
            raise RefusedError(Code.INTERNAL, "Don't care match must be omitted.")
        if match.field_id not in widths or int.from_bytes(value.value, "big") >> widths[match.field_id]:
            raise RefusedError(Code.INVALID_ARGUMENT, "'table_key->setValue' failed")
        values[match.field_id] = (value.value, value.prefix_len if kind == "lpm" else None)
    if row.priority:
        raise RefusedError(Code.INVALID_ARGUMENT, "Non-zero priority for exact/LPM match.")
    return tuple(sorted(values.items()))


def _tried(call, argument):
    try:
        call(argument)
    except RefusedError as error:
        return p4r.Error(canonical_code=error.code.value[0], message=error.words)
    return p4r.Error()


def p4info_for(text, architecture):
    """Return P4Info of another architecture, as text."""
    info = text_format.Parse(text, p4i.P4Info())
    info.pkg_info.arch = architecture
    return text_format.MessageToString(info)
