"""Converts a BMv2 JSON document to a `Program`.

Format: behavioral-model's docs/JSON_format.md, version 2. An unsupported construct is refused
here or by the compiler, with its name in the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any, cast

from peelsum.softswitch.errors import BadProgram, UnsupportedConstruct
from peelsum.softswitch.program import model
from peelsum.softswitch.program import operations as ops
from peelsum.softswitch.program.load_actions import (
    MOST_BITS,
    MOST_VARBIT,
    VALID,
    Json,
    Scope,
    bits_of,
    checked_bits,
    hash_name,
    load_action,
    load_parser,
    position_of,
)

_CORE_ERRORS = (
    *("NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds"),
    *("HeaderTooShort", "ParserTimeout", "ParserInvalidArgument"),
)


def read(document: Json, name: str) -> model.Program:
    """Return the program `name` in a BMv2 JSON document. Raises BadProgram or UnsupportedConstruct."""
    document = _without_empty_fields(document)
    for item in document.get("extern_instances", ()):
        with position_of(item):
            raise UnsupportedConstruct(
                f"extern instance {item.get('name')}: not supported; use those of v1model"
            )
    headers = _headers(document)
    scope = _scope(document, headers)
    scope.messages.extend(_digests(document, scope))
    actions = {item["id"]: load_action(item, scope) for item in document["actions"]}
    parser = load_parser(_single_item(document, "parsers"), scope)
    tables = [table for item in document["pipelines"] for table in item["tables"]]
    if any(not table.get("default_entry") or "action_profile" in table for table in tables):
        actions[NO_ACTION] = ops.Action(NO_ACTION, "NoAction", (), ())
    pipelines = {item["name"]: load_pipeline(item, scope, actions) for item in document["pipelines"]}
    # P4's core errors have numbers even if the program does not declare them.
    errors = {str(key): int(value) for key, value in document.get("errors", ())}
    for core_error in _CORE_ERRORS:
        errors.setdefault(core_error, max(errors.values(), default=-1) + 1)
    empty = model.PipelineGraph("none", None, {})
    deparser = _single_item(document, "deparsers")
    statements = {"name": "", "where": "deparser", "id": DEPARSER, "runtime_data": ()}
    statements["primitives"] = deparser.get("primitives", ())
    program = model.Program(
        name=name,
        headers=headers,
        parser=parser,
        ingress=pipelines.get("ingress", empty),
        egress=pipelines.get("egress", empty),
        deparser=tuple(deparser["order"]),
        deparser_body=load_action(statements, scope).body,
        actions=actions,
        registers=_registers(document),
        counters=_counters(document),
        checksums=tuple(_checksum(item, scope) for item in document.get("checksums", ())),
        errors=errors,
        aliases=scope.aliases,
        stacks=scope.stacks,
        unions={
            header: tuple(other for other in union if other != header)
            for union in scope.unions.values()
            for header in union
        },
        field_lists=_field_lists(document, scope),
        meters={item["name"]: _meter(item, scope) for item in document.get("meter_arrays", ())},
        profiles=_profiles(document, scope),
        value_sets=_value_sets(document),
        messages=tuple(scope.messages),
        sources=scope.sources,
    )
    _check(program)
    return program


def _without_empty_fields(document: Json) -> Json:
    """Return the document without fields of 0 bits, which are always 0: assignments to them do nothing.

    Where another statement writes one, or a table's key has one, the loader refuses the program later.
    """
    types = {
        item["name"]: {name for name, bits, *_ in item["fields"] if bits == 0}
        for item in document["header_types"]
    }
    if not any(types.values()):
        return document
    empty = {(item["name"], name) for item in document["headers"] for name in types[item["header_type"]]}

    def is_empty(node: object) -> bool:
        return isinstance(node, dict) and node.get("type") == "field" and tuple(node["value"]) in empty

    def sets_empty(node: object, op: str) -> bool:
        return isinstance(node, dict) and node.get("op") == op and is_empty(node["parameters"][0])

    def replaced(node: object) -> object:
        if is_empty(node):  # as a member of a digest, a constant has a width
            return {"type": "hexstr", "value": "0x0", "bitwidth": 1}
        if sets_empty(node, "assign"):  # jumps count an action's primitives
            return {"op": "no_op", "parameters": []}
        if isinstance(node, list):
            return [replaced(part) for part in node if not sets_empty(part, "set")]
        if not isinstance(node, dict):
            return node
        if "input" in node:  # of a hash or checksum
            node = {**node, "input": [part for part in node["input"] if not is_empty(part)]}
        return {key: replaced(part) for key, part in node.items()}

    header_types = []
    for item in document["header_types"]:
        widths = [bits for _, bits, *_ in item["fields"]]
        places = accumulate((bits != 0 for bits in widths), initial=0)
        numbers = [
            {"type": "local", "value": place} if bits else {"type": "hexstr", "value": "0x0"}
            for place, bits in zip(places, widths, strict=False)
        ]
        kept = [field for field, bits in zip(item["fields"], widths, strict=True) if bits != 0]
        length = _with_local(item.get("length_exp"), numbers)  # of the fields' numbers
        header_types.append({**item, "fields": kept, "length_exp": length})
    return cast(Json, {**cast(dict[str, object], replaced(document)), "header_types": header_types})


def _scope(document: Json, headers: Mapping[str, model.Header]) -> Scope:
    """Return what the program's names refer to. Unions and stacks of unions name their headers by number."""
    sections = ("calculations", "header_stacks", "header_unions", "header_union_types", "header_union_stacks")
    calculations, stacks, unions, union_types, union_stacks = (document.get(name, ()) for name in sections)
    names = {item["id"]: item["name"] for item in document["headers"]}
    by_id = {item["id"]: tuple(names[number] for number in item["header_ids"]) for item in unions}
    members = {item["name"]: [name for name, _ in item["headers"]] for item in union_types}
    elements = {item["name"]: tuple((names[number],) for number in item["header_ids"]) for item in stacks}
    for item in union_stacks:
        elements[item["name"]] = tuple(by_id[number] for number in item["header_union_ids"])
    return Scope(
        headers=headers,
        stacks=elements,
        unions={item["name"]: by_id[item["id"]] for item in unions},
        members={item["name"]: members[item["union_type"]] for item in union_stacks},
        calculations={item["name"]: item for item in calculations},
        aliases={alias: ops.FieldRef(*target) for alias, target in document.get("field_aliases", ())},
        lengths=_lengths(document),
        signed=_signed_parameters(document),
    )


#: Makes a negative width a large one.
_ALL_32_BITS = {"type": "hexstr", "value": "0xffffffff"}


def _lengths(document: Json) -> dict[str, Json]:
    """Return the widths of varbits that P4_14 declares with the header, by header or stack.

    They depend on fields before the varbit, which are not extracted yet: the parser looks ahead.
    """
    lengths: dict[str, Json] = {}
    for item in document["header_types"]:
        if item.get("length_exp") is not None:
            widths = list(takewhile(lambda bits: bits != "*", (bits for _, bits, *_ in item["fields"])))
            starts = accumulate(widths, initial=0)
            fields = [{"type": "lookahead", "value": place} for place in zip(starts, widths, strict=False)]
            bits = {"op": "&", "left": _with_local(item["length_exp"], fields), "right": _ALL_32_BITS}
            lengths[item["name"]] = {"type": "expression", "value": bits}
    instances = (*document["headers"], *document.get("header_stacks", ()))
    types = {item["name"]: item["header_type"] for item in instances}
    return {name: lengths[kind] for name, kind in types.items() if kind in lengths}


def _with_local(node: Any, fields: Sequence[Json]) -> Any:
    """Return an expression in which fields replace their numbers."""
    if not isinstance(node, dict):
        return node
    if node.get("type") == "local":
        return fields[int(node["value"])]
    return {key: _with_local(part, fields) for key, part in node.items()}


def _field_lists(document: Json, scope: Scope) -> dict[int, tuple[ops.FieldRef, ...]]:
    """Return the metadata in each field list, by number: a copy keeps all headers or parses them again.

    Constants, which a P4 program without field lists of its own may have there, are left out as in BMv2.
    """
    field_lists = {}
    for item in document.get("field_lists", ()):
        for element in item["elements"]:
            if element["type"] not in ("field", "hexstr"):
                what = f"field list {item['name']}: holds a {element['type']}"
                raise UnsupportedConstruct(f"{what}; use fields only")
        refs = (scope.field(element["value"]) for element in item["elements"] if element["type"] == "field")
        field_lists[int(item["id"])] = tuple(ref for ref in refs if scope.headers[ref.header].metadata)
    return field_lists


def _value_sets(document: Json) -> dict[str, model.ValueSet]:
    value_sets = {}
    for item in document.get("parse_vsets", ()):
        size = _size({"max_size": _VALUE_SET_SIZE, **item}, "max_size")
        bits = checked_bits(item["compressed_bitwidth"], f"value set {item['name']}")
        value_sets[item["name"]] = model.ValueSet(item["name"], size, bits)
    return value_sets


def _headers(document: Json) -> dict[str, model.Header]:
    """Return the header instances by name. Raises UnsupportedConstruct for too wide fields."""
    types: dict[str, tuple[model.FieldDeclaration, ...]] = {}
    for item in document["header_types"]:
        fields = []
        fixed_bits = sum(bits for _, bits, *_ in item["fields"] if bits != "*")
        for field_name, bits, *signed in item["fields"]:
            is_varbit = bits == "*"
            if is_varbit:
                bits = 8 * int(item["max_length"]) - fixed_bits
            most = MOST_VARBIT if is_varbit else MOST_BITS
            bits = checked_bits(bits, f"field {item['name']}.{field_name}", most)
            is_signed = bool(signed and signed[0])
            fields.append(model.FieldDeclaration(str(field_name), bits, is_signed, is_varbit))
        types[item["name"]] = tuple(fields)
    headers: dict[str, model.Header] = {}
    for item in document["headers"]:
        kind = item["header_type"]
        headers[item["name"]] = model.Header(item["name"], kind, types[kind], bool(item["metadata"]))
    return headers


def _signed_parameters(document: Json) -> frozenset[tuple[int, int]]:
    """Return (action number, index) of each parameter for which the program has a negative argument."""
    tables = [table for pipeline in document["pipelines"] for table in pipeline["tables"]]
    calls = [table["default_entry"] for table in tables if table.get("default_entry")]
    calls += [entry["action_entry"] for table in tables for entry in table.get("entries", ())]
    return frozenset(
        (int(call["action_id"]), index)
        for call in calls
        for index, value in enumerate(call.get("action_data", ()))
        if value.startswith("-")
    )


def _registers(document: Json) -> dict[str, model.RegisterArray]:
    registers = {}
    for item in document.get("register_arrays", ()):
        bits = checked_bits(item["bitwidth"], f"register {item['name']}")
        registers[item["name"]] = model.RegisterArray(item["name"], _size(item), bits)
    return registers


def _counters(document: Json) -> dict[str, model.CounterArray]:
    """Return the counters by name; a direct counter has a cell for each entry of its table."""
    counters = {}
    pipelines = [item for item in document["pipelines"] if item["name"] in ("ingress", "egress")]
    tables = {table["name"]: table for pipeline in pipelines for table in pipeline["tables"]}
    for item in document.get("counter_arrays", ()):
        name, table_name = item["name"], item["binding"] if item["is_direct"] else None
        if table_name is None:
            size = _size(item)
        else:
            table = tables[table_name]
            size = max(int(table["max_size"]), len(table.get("entries", ())))
        counters[name] = model.CounterArray(name, size, table_name)
    return counters


#: Size of a value set of a compiler that writes none.
_VALUE_SET_SIZE = 1024


def _digests(document: Json, scope: Scope) -> list[model.Message]:
    """Return the program's digests in the order of their numbers, which begin at 1; number 0 is unused."""
    digests = [model.Message("digest", "", ())]
    for item in sorted(document.get("learn_lists", ()), key=lambda item: int(item["id"])):
        if not isinstance(item["name"], str):
            raise BadProgram(f"digest {item['id']}: its name is not a string; compile the program again")
        if item["id"] != len(digests):
            raise BadProgram(f"digest {item['name']}: number {item['id']}; compile the program again")
        with position_of(item):
            inputs = scope.inputs(item["elements"], f"digest {item['name']}")
        values = tuple((ops.Const(value) if ref is None else ref, bits, False) for ref, value, bits in inputs)
        digests.append(model.Message("digest", item["name"], values))
    return digests


def _meter(item: Json, scope: Scope) -> model.Meter:
    """Return a meter. Raises UnsupportedConstruct unless it has two rates."""
    if item.get("rate_count", 2) != 2:
        with position_of(item):
            raise UnsupportedConstruct(f"meter {item['name']}: {item['rate_count']} rates; use two")
    direct = bool(item.get("is_direct"))
    return model.Meter(
        item["name"],
        _size(item),
        item["type"] == "bytes",
        item["binding"] if direct else None,
        scope.field(item["result_target"]) if direct else None,
    )


def _profiles(document: Json, scope: Scope) -> dict[str, model.ActionProfile]:
    """Return the action profiles by name. Older compilers declare them within tables."""
    profiles = {}
    for pipeline in document["pipelines"]:
        tables = pipeline["tables"]
        within_tables = [
            {**table, "name": table["act_prof_name"]} for table in tables if "act_prof_name" in table
        ]
        for item in (*pipeline.get("action_profiles", ()), *within_tables):
            name, selector = item["name"], None
            if item.get("selector") is not None:
                where = f"action profile {name}"
                with position_of(item):
                    algorithm = hash_name(item["selector"]["algo"], where)
                    selector = model.Selector(algorithm, scope.inputs(item["selector"]["input"], where))
            profiles[name] = model.ActionProfile(name, _size(item, "max_size"), selector)
    return profiles


def _size(item: Json, key: str = "size") -> int:
    """Return the size of an item. Raises BadProgram for a negative one."""
    size = int(item[key])
    if size < 0:
        raise BadProgram(f"{item['name']}: size {size}; compile the program again")
    return size


def _single_item(document: Json, section: str) -> Json:
    """Return the one item of a section. Raises UnsupportedConstruct if there are none or more."""
    if len(document[section]) != 1:
        raise UnsupportedConstruct(f"{section}: the program has {len(document[section])}; use exactly one")
    (item,) = document[section]
    return item  # type: ignore[no-any-return]


def _checksum(item: Json, scope: Scope) -> model.Checksum:
    calculation, where = scope.calculations[item["calculation"]], f"checksum {item['name']}"
    condition, inputs = item.get("if_cond"), calculation["input"]
    with position_of(item):
        return model.Checksum(
            name=item["name"],
            target=scope.field(item["target"]),
            algorithm=hash_name(calculation["algo"], where),
            inputs=scope.inputs([part for part in inputs if part["type"] != "payload"], where),
            payload=any(part["type"] == "payload" for part in inputs),
            condition=None if condition is None else scope.expression(condition),
            verify=bool(item.get("verify", True)),
            update=bool(item.get("update", True)),
        )


def _check(program: model.Program) -> None:
    """Refuse a program that lacks parts of v1model, or that refers to undeclared names."""
    metadata = program.headers.get("standard_metadata")
    for name in ("ingress_port", "egress_spec", "egress_port"):
        if metadata is None or metadata.field(name) is None:
            field = f"{program.name}: no standard_metadata.{name}"
            raise BadProgram(f"{field}; compile for v1model (p4c-bm2-ss)")
    for name in program.deparser:
        if name not in program.headers:
            raise BadProgram(f"{program.name}: deparser emits {name}, which is not a header; compile again")
    in_stacks = {name for elements in program.stacks.values() for element in elements for name in element}
    for name in in_stacks | program.unions.keys():
        if program.headers[name].metadata:
            raise BadProgram(f"header {name}: is metadata, in no stack or union; compile the program again")
    for header in program.headers.values():
        if not header.metadata and header.bits % 8:
            raise UnsupportedConstruct(
                f"header {header.name}: {header.bits} bits are not whole bytes; pad it"
            )
    parser = tuple(op for state in program.parser.states.values() for op in state.ops)
    conditions = tuple(
        part.condition for state in program.parser.states.values() for part in state.transitions
    )
    tables = tuple(program.tables.values())
    bodies = [program.deparser_body, *(action.body for action in program.actions.values())]
    for node in ops.walk((parser, conditions, tables, *bodies)):
        match node:
            case ops.ReadRegister() | ops.WriteRegister() if node.register not in program.registers:
                what = f"register {node.register}: is not declared"
            case ops.SetValidity() | model.Extract() if program.headers[node.header].metadata:
                what = f"header {node.header}: is metadata, in no packet"
            case model.Extract(name, None) if program.headers[name].varbit:
                what = f"header {name}: nothing says how long its varbit is"
            case ops.CountAt(counter) if counter not in program.counters:
                what = f"counter {counter}: is not declared"
            case model.TableDeclaration() if node.profile not in (None, *program.profiles):
                what = f"action profile {node.profile}: is not declared"
            case ops.ExecuteMeter(_, meter) if meter not in program.meters:
                what = f"meter {meter}: is not declared"
            case ops.InValueSet(name) if name not in program.value_sets:
                what = f"value set {name}: is not declared"
            case ops.SendDigest(number) if program.messages[number].kind != "digest" or not number:
                what = f"digest {number}: is not declared"
            case ops.Clone() | ops.Resubmit() | ops.Recirculate() if node.fields not in program.field_lists:
                what = f"field list {node.fields}: is not declared"
            case _:
                continue
        raise BadProgram(f"{what}; compile the program again")


#: Action number of the default action of tables without one, as in P4_14. It does nothing.
NO_ACTION = -1
#: Action number of the deparser's statements, in `Program.sources`.
DEPARSER = -2
_KINDS = ("exact", "lpm", "ternary", "range")


def load_pipeline(item: Json, scope: Scope, actions: Mapping[int, ops.Action]) -> model.PipelineGraph:
    """Return one pipeline with its tables and conditionals."""
    for call in item.get("action_calls", ()):
        raise UnsupportedConstruct(f"action call {call.get('name')}: not supported; recompile with p4c")
    nodes: dict[str, model.TableDeclaration | model.Conditional] = {}
    for node in (*item["tables"], *item["conditionals"]):
        scope.note_source(str(node["name"]), node)
    for node in item["tables"]:
        with position_of(node):
            nodes[node["name"]] = _table(node, scope, actions)
    for node in item["conditionals"]:
        condition = scope.expression(node["expression"])
        nodes[node["name"]] = model.Conditional(
            node["name"], condition, node["true_next"], node["false_next"]
        )
    targets = [item["init_table"], *(name for node in nodes.values() for name in model.successors(node))]
    for target in targets:
        if target is not None and target not in nodes:
            where = f"pipeline {item['name']}: leads to {target}"
            raise BadProgram(f"{where}, which is not declared; compile the program again")
    return model.PipelineGraph(item["name"], item["init_table"], nodes)


def _table(item: Json, scope: Scope, actions: Mapping[int, ops.Action]) -> model.TableDeclaration:
    """Return a table. Raises UnsupportedConstruct if the program's entries use an action profile."""
    name, profile = item["name"], item.get("action_profile") or item.get("act_prof_name")
    if profile is not None and item.get("entries"):
        raise UnsupportedConstruct(
            f"table {name}: entries with action profile {profile}: not supported, as in BMv2; let a "
            "controller insert them"
        )
    keys = tuple(_key(part, scope, name) for part in item["key"])
    # A table with an action profile has no default action in the file.
    default = (None if profile else item.get("default_entry")) or {"action_id": NO_ACTION}
    action, params = _action_call(default, actions, name)
    if "action_ids" in item:
        numbers = tuple(int(number) for number in item["action_ids"])
    else:  # of P4_14, where names of actions are unique
        ids = {action_of_number.name: number for number, action_of_number in actions.items()}
        numbers = tuple(ids[text] for text in item["actions"])
    for number in numbers:
        _find_action(actions, number, name)
    successors_by_name = item["next_tables"]
    numbers_by_name = dict(zip(item["actions"], numbers, strict=True))
    next_by_action = {
        numbers_by_name[key]: value for key, value in successors_by_name.items() if key in numbers_by_name
    }
    if action == NO_ACTION and "base_default_next" in item:
        next_by_action[NO_ACTION] = item["base_default_next"]
    next_by_hit = None
    if "__HIT__" in successors_by_name or "__MISS__" in successors_by_name:
        base = item.get("base_default_next")
        next_by_hit = (successors_by_name.get("__HIT__", base), successors_by_name.get("__MISS__", base))
    entries, const_entries = item.get("entries"), []
    has_priorities = any(key.kind in ("ternary", "range") for key in keys)
    last = max((int(entry.get("priority", 0)) for entry in entries or ()), default=0)
    for entry in entries or ():
        key = tuple(_key_value(part, key, name) for part, key in zip(entry["match_key"], keys, strict=True))
        number, arguments = _action_call(entry["action_entry"], actions, name)
        # In the file, the lowest priority wins.
        priority = last + 1 - int(entry.get("priority", 0)) if has_priorities else 0
        const_entries.append(model.TableEntry(key, actions[number].name, arguments, priority))
    return model.TableDeclaration(
        name=name,
        keys=keys,
        size=_size(item, "max_size"),
        actions=numbers,
        default_action=action,
        default_params=params,
        const_default=bool(default.get("action_entry_const") or default.get("action_const")),
        const_entries=None if entries is None else tuple(const_entries),
        next_by_action=next_by_action,
        next_by_hit=next_by_hit,
        profile=profile,
        idle_timeout=bool(item.get("support_timeout")),
    )


def _key(item: Json, scope: Scope, table: str) -> model.TableKey:
    kind = item["match_type"]
    header, field = item["target"] if kind != "valid" else (item["target"], VALID)
    if kind == "valid":  # P4_14's match on the validity of a header
        kind = "exact"
    if kind not in _KINDS:
        raise UnsupportedConstruct(
            f"table {table}: match kind {kind}: not supported; use {', '.join(_KINDS)}"
        )
    mask = None if item.get("mask") is None else int(item["mask"], 16)
    if field == VALID:
        ref, bits = ops.FieldRef(scope.header(header), VALID), 1
    else:
        ref = scope.field(item["target"])
        bits = scope.declared(ref).bits
    return model.TableKey(
        str(item.get("name") or f"{header}.{field}"), ref, cast(model.MatchKind, kind), bits, mask
    )


def _action_call(item: Json, actions: Mapping[int, ops.Action], table: str) -> tuple[int, tuple[int, ...]]:
    """Return the action's number and the arguments in an entry or a default entry."""
    number, data = int(item["action_id"]), item.get("action_data", ())
    action = _find_action(actions, number, table)
    if len(data) != len(action.params):
        raise BadProgram(
            f"table {table}: {len(data)} parameters for {action.name}, not {len(action.params)}; "
            "compile the program again"
        )
    return number, tuple(bits_of(value, param.bits) for value, param in zip(data, action.params, strict=True))


def _find_action(actions: Mapping[int, ops.Action], number: int, table: str) -> ops.Action:
    if number not in actions:
        raise BadProgram(f"table {table}: action {number} is not declared; compile the program again")
    return actions[number]


def _key_value(item: Json, key: model.TableKey, table: str) -> model.KeyValue:
    """Return one value of a const entry's key, in the form of its match kind."""

    def bits(name: str) -> int:
        return bits_of(item[name], key.bits)

    match item["match_type"]:
        case "exact":
            return bits("key")
        case "lpm":
            length = int(item["prefix_length"])
            prefix_mask = (1 << key.bits) - (1 << key.bits - length)
            return bits("key") & prefix_mask, length
        case "ternary":
            return bits("key") & bits("mask"), bits("mask")
    if item["start"].startswith("-") and not item["end"].startswith("-"):
        raise UnsupportedConstruct(
            f"table {table}: key {key.name}: a range from a negative number to another; split it at 0"
        )
    return bits("start"), bits("end")
