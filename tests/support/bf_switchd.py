"""A fake bf_switchd: BF Runtime's calls over tables in memory, refusing what the real one refuses.

What it refuses, with which code and words, was read in bf_rt_server_impl.cpp, bf_rt_server_mgr.cpp and the
tables of p4lang/open-p4studio (commit ea6aaaf5 of sai-pracheetha's copy). tofino_program/switch.json has
three of the tables that every switch has, from the same place (Apache-2.0).
"""

import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from threading import RLock

import grpc
from finsy.proto import rpc_status

from peelsum.control.bfruntime.messages import ALL_PIPES, CARDINALITIES, METHODS, Error
from peelsum.control.bfruntime.messages import Set as SetConfig
from peelsum.control.bfruntime.rows import Schema

Code = grpc.StatusCode
_WRITE, _GET, _SET = (
    METHODS[name][1] for name in ("Write", "GetForwardingPipelineConfig", "SetForwardingPipelineConfig")
)
_READ, _STREAM = METHODS["Read"][1], METHODS["StreamChannel"][1]


class RefusedError(Exception):
    """A call or one of its parts is refused."""

    def __init__(self, code, words):
        super().__init__(words)
        self.code, self.words = code, words


class BfSwitchd:
    """The server, as a context manager. `ports` are the device ports that the switch has."""

    def __init__(self, shared, device_id=0, pipes=2, ports=range(256)):
        self.shared, self.device_id, self.pipes, self.ports = shared, device_id, pipes, set(ports)
        self.lock, self.clients, self.bound = RLock(), set(), {}
        self.config, self.schema = None, Schema(shared)
        self.forget()
        self.server = grpc.server(ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers((self._handlers(),))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop(None).wait()

    def load(self, blob):
        """Start with a program, as bf_switchd's configuration file does."""
        self.config = SetConfig().config.add()
        self.config.ParseFromString(blob)
        self.schema = Schema(self.config.bfruntime_info, self.shared)
        self.kinds = {table["id"]: table for table in json.loads(self.config.bfruntime_info)["tables"]}
        self.kinds |= {table["id"]: table for table in json.loads(self.shared)["tables"]}
        self.forget()

    def forget(self):
        """Forget all rows: number of table -> key -> data; and of registers -> (pipe, index) -> values."""
        self.rows, self.registers = defaultdict(dict), defaultdict(dict)

    def table(self, name):
        """Rows of a table, by its name."""
        return self.rows[self.schema.table(name).number]

    def register(self, name):
        """Values of a register that are not 0, by pipe and index, in the order of its fields."""
        return self.registers[self.schema.table(name).number]

    # Calls

    def _handlers(self):
        calls = {
            "Write": self._guarded(self._write),
            "GetForwardingPipelineConfig": self._guarded(self._get),
            "SetForwardingPipelineConfig": self._guarded(self._set),
            "Read": self._guarded(self._read),
            "StreamChannel": self._stream,
        }
        handlers = {}
        for name, (request, response) in METHODS.items():
            handler = getattr(grpc, f"{CARDINALITIES[name]}_rpc_method_handler")
            handlers[name] = handler(calls[name], request.FromString, response.SerializeToString)
        return grpc.method_handlers_generic_handler("bfrt_proto.BfRuntime", handlers)

    def _guarded(self, call):
        def answer(request, context):
            try:
                with self.lock:
                    return call(request, context)
            except RefusedError as error:
                context.abort(error.code, error.words)

        return answer

    def _stream(self, requests, context):
        for request in requests:
            client = request.client_id
            with self.lock:
                self.clients.add(client)
            context.add_callback(lambda client=client: self._left(client))
            response = _STREAM()
            response.subscribe.status.code = 0
            yield response

    def _left(self, client):
        with self.lock:
            self.clients.discard(client)
            self.bound.pop(client, None)

    def _get(self, request, context):
        response = _GET()
        if self.config is not None:
            response.config.add(p4_name="$SHARED")
            response.config.add(p4_name=self.config.p4_name, bfruntime_info=self.config.bfruntime_info)
        response.non_p4_config.bfruntime_info = self.shared
        return response

    def _set(self, request, context):
        if request.action == SetConfig.VERIFY_AND_WARM_INIT_BEGIN_AND_END:
            if not request.config or not all(profile.binary for profile in request.config[0].profiles):
                raise RefusedError(Code.INVALID_ARGUMENT, "Invalid device config sent")
            self.load(request.config[0].SerializeToString())
            return _SET()
        assert request.action == SetConfig.BIND
        name = request.config[0].p4_name
        owner = next((client for client, bound in self.bound.items() if bound[1] == name), None)
        if owner is not None:
            words = f"Client ID {request.client_id} trying to bind but Client ID {owner} already owns this P4"
            raise RefusedError(Code.ALREADY_EXISTS, words)
        self.bound[request.client_id] = (request.device_id, name)
        return _SET()

    def _check_client(self, request):
        if request.client_id not in self.clients or request.p4_name:
            if self.config is None or request.p4_name != self.config.p4_name:
                raise RefusedError(Code.NOT_FOUND, f"Unable to obtain BF_RT info for ({request.p4_name})")
        elif request.client_id not in self.bound:
            raise RefusedError(Code.UNKNOWN, "Unable to get bound_program")

    def _write(self, request, context):
        self._check_client(request)
        errors = [_error_of(self._apply, update, request.target.pipe_id) for update in request.updates]
        _report(context, "Write Error Status", errors)
        return _WRITE()

    def _read(self, request, context):
        self._check_client(request)
        response, pipe = _READ(), request.target.pipe_id

        def add(entity):
            response.entities.extend(self._found(entity.table_entry, pipe))

        errors = [_error_of(add, entity) for entity in request.entities]

        def responses():
            yield response
            _report(context, "Read Error Status", errors)

        return responses()

    # Rows

    def _table(self, entry):
        try:
            return self.schema.numbered(entry.table_id)
        except KeyError:
            raise RefusedError(Code.NOT_FOUND, f"Table not found for id {entry.table_id}") from None

    def _apply(self, update, pipe):
        entry = update.entity.table_entry
        table = self._table(entry)
        if pipe != ALL_PIPES and pipe >= self.pipes:
            raise RefusedError(Code.INVALID_ARGUMENT, f"Table Entry modify failed table:{table.name}")
        verb = update.DESCRIPTOR.enum_types_by_name["Type"].values_by_number[update.type].name
        if entry.is_default_entry:
            if verb == "INSERT" or entry.key.fields:
                words = "INSERT of default entry is not supported. Please use MODIFY instead"
                raise RefusedError(Code.UNIMPLEMENTED, f"{words} table:{table.name}")
            self.rows[table.number]["default"] = self._data(entry, table)
            return
        key = self._key(entry, table)
        data = {} if verb == "DELETE" else self._data(entry, table)
        if self.kinds[table.number]["table_type"] == "Register":
            self._write_register(table, verb, key, data, pipe)
        else:
            self._change(table, verb, key, data)

    def _change(self, table, verb, key, data):
        rows = self.rows[table.number]
        if verb == "INSERT" and key in rows:
            raise RefusedError(Code.ALREADY_EXISTS, f"Table Add failed table:{table.name}")
        if verb in ("MODIFY", "DELETE") and key not in rows:
            raise RefusedError(Code.NOT_FOUND, f"Table Entry {verb.lower()} failed table:{table.name}")
        self._check_fixed(table, verb, key, data)
        if verb == "DELETE":
            del rows[key]
        else:
            rows[key] = {**rows.get(key, {}), **data}

    def _check_fixed(self, table, verb, key, data):
        failed = f"Table Add failed table:{table.name}"
        if table.name == "$pre.node" and verb != "DELETE":
            names = ("$MULTICAST_RID", "$MULTICAST_LAG_ID", "$DEV_PORT")
            wanted = {table.data[name].number for name in names}
            if not wanted <= data.keys() or not set(data[table.data["$DEV_PORT"].number]) <= self.ports:
                raise RefusedError(Code.INVALID_ARGUMENT, failed)
        if table.name == "$pre.mgid" and verb != "DELETE":
            nodes = data.get(table.data["$MULTICAST_NODE_ID"].number, [])
            if not {(node.to_bytes(4, "big"),) for node in nodes} <= self.table("$pre.node").keys():
                raise RefusedError(Code.INVALID_ARGUMENT, failed)
        if table.name == "$pre.node" and verb == "DELETE":
            field = self.schema.table("$pre.mgid").data["$MULTICAST_NODE_ID"].number
            used = {node for row in self.table("$pre.mgid").values() for node in row[field]}
            if int.from_bytes(key[0], "big") in used:
                raise RefusedError(Code.ALREADY_EXISTS, f"Table Entry delete failed table:{table.name}")
        if table.name == "$PORT" and verb == "INSERT":
            fields = [field["singleton"] for field in self.kinds[table.number]["data"]]
            choices = {field["name"]: field["type"].get("choices") for field in fields}
            for name in ("$SPEED", "$FEC"):
                if data.get(table.data[name].number) not in choices[name]:
                    raise RefusedError(Code.INVALID_ARGUMENT, failed)
            if int.from_bytes(key[0], "big") not in self.ports:
                raise RefusedError(Code.INVALID_ARGUMENT, failed)

    def _write_register(self, table, verb, key, data, pipe):
        index = int.from_bytes(key[0], "big")
        if verb == "DELETE" or index >= self.kinds[table.number]["size"]:
            raise RefusedError(Code.INVALID_ARGUMENT, f"Table Entry modify failed table:{table.name}")
        for number in range(self.pipes) if pipe == ALL_PIPES else [pipe]:
            # The SDE writes the whole value; a field that is not given becomes 0.
            values = {number: int.from_bytes(value, "big") for number, value in data.items()}
            fields = (field.number for field in table.data.values())
            self.registers[table.number][number, index] = {one: values.get(one, 0) for one in fields}

    def _key(self, entry, table):
        fields, values = table.key, {}
        for sent in entry.key.fields:
            field = fields.get(sent.field_id)
            kind = {"exact": "Exact", "lpm": "LPM", "ternary": "Ternary"}.get(sent.WhichOneof("match_type"))
            if field is None or kind != field.match:
                words = f"Failed to create key for field:{sent.field_id} table:{table.name}"
                raise RefusedError(Code.INVALID_ARGUMENT, words)
            value = getattr(sent, sent.WhichOneof("match_type"))
            _check_width(
                field, value.value, f"Failed to create key for field:{sent.field_id} table:{table.name}"
            )
            values[field.number] = (value.value, value.prefix_len) if kind == "LPM" else value.value
        zero = {number: field.encoded(0) for number, field in fields.items()}
        return tuple((zero | values)[number] for number in sorted(fields))

    def _data(self, entry, table):
        action = entry.data.action_id
        if table.actions and action not in table.actions:
            raise RefusedError(Code.NOT_FOUND, f"Table data allocation failed for table : {table.name}")
        fields = table.actions.get(action) or {field.number: field for field in table.data.values()}
        values = {"action": action} if table.actions else {}
        for sent in entry.data.fields:
            words = f"SetValue failed for field:{sent.field_id} table:{table.name}"
            if sent.field_id not in fields:
                raise RefusedError(Code.NOT_FOUND, words)
            match sent.WhichOneof("value"):
                case "stream":
                    _check_width(fields[sent.field_id], sent.stream, words)
                    values[sent.field_id] = sent.stream
                case "int_arr_val" | "bool_arr_val" as kind:
                    values[sent.field_id] = list(getattr(sent, kind).val)
                case kind:
                    values[sent.field_id] = getattr(sent, kind)
        if table.actions and fields.keys() - values.keys() and table.actions[action]:
            raise RefusedError(Code.INVALID_ARGUMENT, f"Table Add failed table:{table.name}")
        return values

    def _found(self, wanted, pipe):
        table = self._table(wanted)
        if self.kinds[table.number]["table_type"] == "Register":
            yield from self._register_values(wanted, table, pipe)
            return
        rows = {key: row for key, row in self.rows[table.number].items() if key != "default"}
        if self.kinds[table.number]["table_type"] == "Counter":
            zero = {field.number: field.encoded(0) for field in table.data.values()}
            rows = {(index.to_bytes(4, "big"),): zero for index in range(32)} | rows
        if wanted.HasField("key"):
            key = self._key(wanted, table)
            if key not in rows:
                raise RefusedError(Code.NOT_FOUND, f"Entry not found in table:{table.name}")
            rows = {key: rows[key]}
        for key, row in rows.items():
            entity = _entity(table, key)
            entity.table_entry.data.action_id = row.get("action", 0)
            for number, value in row.items():
                if number != "action":
                    _set(entity.table_entry.data.fields.add(field_id=number), value)
            yield entity
        if not wanted.HasField("key") and table.actions:
            # Reading all rows reads the default row, too.
            entity = METHODS["Read"][1]().entities.add()
            entity.table_entry.table_id, entity.table_entry.is_default_entry = table.number, True
            yield entity

    def _register_values(self, wanted, table, pipe):
        size = self.kinds[table.number]["size"]
        indexes = (
            [int.from_bytes(self._key(wanted, table)[0], "big")] if wanted.HasField("key") else range(size)
        )
        pipes = range(self.pipes) if pipe == ALL_PIPES else [pipe]
        for index in indexes:
            entity = _entity(table, (index.to_bytes(4, "big"),))
            for field in table.data.values():
                for number in pipes:
                    value = self.registers[table.number].get((number, index), {}).get(field.number, 0)
                    entity.table_entry.data.fields.add(field_id=field.number, stream=field.encoded(value))
            yield entity


def _entity(table, key):
    entity = METHODS["Read"][1]().entities.add()
    entity.table_entry.table_id = table.number
    for (number, field), value in zip(sorted(table.key.items()), key, strict=True):
        sent = entity.table_entry.key.fields.add(field_id=number)
        if field.match == "LPM":
            sent.lpm.value, sent.lpm.prefix_len = value
        else:
            sent.exact.value = value
    return entity


def _set(sent, value):
    match value:
        case bool():
            sent.bool_val = value
        case bytes():
            sent.stream = value
        case str():
            sent.str_val = value
        case [bool(), *_]:
            sent.bool_arr_val.val.extend(value)
        case list():
            sent.int_arr_val.val.extend(value)


def _error_of(attempt, *arguments):
    """Return the error of a part of a request, which has no code if the part succeeds."""
    try:
        attempt(*arguments)
    except RefusedError as error:
        return Error(canonical_code=error.code.value[0], message=error.words)
    return Error()


def _report(context, words, errors):
    """End the call with UNKNOWN, `words`, and all errors as its details, unless no error has a code."""
    if not any(error.canonical_code for error in errors):
        return
    status = rpc_status.Status(code=Code.UNKNOWN.value[0], message=words)
    for error in errors:
        status.details.add().Pack(error)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(Code.UNKNOWN, words)


def _check_width(field, value, words):
    if field.bits and len(value) != (field.bits + 7) // 8:
        raise RefusedError(Code.INVALID_ARGUMENT, words)
    if field.bits and int.from_bytes(value, "big") >> field.bits:
        raise RefusedError(Code.INVALID_ARGUMENT, words)
