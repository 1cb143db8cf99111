"""Converts a BMv2 JSON document to a `Program`.

Format: behavioral-model's docs/JSON_format.md, version 2. An unsupported construct is refused
here or by the compiler, with its name in the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peelsum.softswitch.errors import BadProgram, UnsupportedConstruct
from peelsum.softswitch.program.load_actions import load_action, load_parser
from peelsum.softswitch.program.load_expressions import Scope
from peelsum.softswitch.program.load_tables import NO_ACTION, load_pipeline
from peelsum.softswitch.program.model import (
    Checksum,
    CounterArray,
    Extract,
    FieldDeclaration,
    Header,
    PipelineGraph,
    Program,
    RegisterArray,
)
from peelsum.softswitch.program.operations import (
    Action,
    Clone,
    CountAt,
    FieldRef,
    ReadRegister,
    Recirculate,
    Resubmit,
    SetValidity,
    WriteRegister,
    walk,
)

#: Sections that must be empty, and what their items are called in errors.
_UNSUPPORTED_SECTIONS = {
    "header_unions": "header union",
    "header_union_stacks": "header union stack",
    "parse_vsets": "parser value set",
    "meter_arrays": "meter",
    "learn_lists": "digest",
    "extern_instances": "extern instance",
}
_CORE_ERRORS = (
    *("NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds"),
    *("HeaderTooShort", "ParserTimeout", "ParserInvalidArgument"),
)
#: Most bits of a field, the same as p4c's limit. The compiler's time grows with their square.
_MOST_FIELD_BITS = 2048
_PIPELINES = ("ingress", "egress")
_STANDARD_METADATA = "standard_metadata"
_REQUIRED_FIELDS = ("ingress_port", "egress_spec", "egress_port")


def read(document: Mapping[str, Any], name: str) -> Program:
    """Return the program `name` in a BMv2 JSON document. Raises BadProgram or UnsupportedConstruct."""
    for section, noun in _UNSUPPORTED_SECTIONS.items():
        for item in document.get(section, ()):
            item_name = item.get("name", item) if isinstance(item, dict) else item
            raise UnsupportedConstruct(f"{noun} {item_name}: not supported; leave it out of the program")
    headers = _headers(document)
    calculations = {item["name"]: item for item in document.get("calculations", ())}
    aliases = {alias: FieldRef(*target) for alias, target in document.get("field_aliases", ())}
    scope = Scope(headers, _stacks(document), calculations, aliases, _signed_parameters(document))
    actions = {item["id"]: load_action(item, scope) for item in document["actions"]}
    if any(not table.get("default_entry") for item in document["pipelines"] for table in item["tables"]):
        actions[NO_ACTION] = Action(NO_ACTION, "NoAction", (), ())
    pipelines = {item["name"]: load_pipeline(item, scope, actions) for item in document["pipelines"]}
    empty = PipelineGraph("none", None, {})
    program = Program(
        name=name,
        headers=headers,
        parser=load_parser(_single_item(document, "parsers"), scope),
        ingress=pipelines.get("ingress", empty),
        egress=pipelines.get("egress", empty),
        deparser=_deparser(document),
        actions=actions,
        registers=_registers(document),
        counters=_counters(document),
        checksums=tuple(_checksum(item, scope) for item in document.get("checksums", ())),
        errors=_errors(document),
        aliases=aliases,
        stacks=scope.stacks,
        field_lists={int(item["id"]): _list_fields(item, scope) for item in document.get("field_lists", ())},
    )
    _check(program)
    return program


def _headers(document: Mapping[str, Any]) -> dict[str, Header]:
    """Return the header instances by name. Raises UnsupportedConstruct for varbit and too wide fields."""
    types: dict[str, tuple[FieldDeclaration, ...]] = {}
    for item in document["header_types"]:
        fields = []
        for field_name, bits, *signed in item["fields"]:
            if bits == "*":
                raise UnsupportedConstruct(
                    f"varbit {item['name']}.{field_name}: not supported; give it a fixed width"
                )
            if not 1 <= int(bits) <= _MOST_FIELD_BITS:
                raise UnsupportedConstruct(
                    f"field {item['name']}.{field_name}: {bits} bits; use 1 to {_MOST_FIELD_BITS}"
                )
            fields.append(FieldDeclaration(field_name, int(bits), bool(signed and signed[0])))
        types[item["name"]] = tuple(fields)
    headers: dict[str, Header] = {}
    for item in document["headers"]:
        kind = item["header_type"]
        headers[item["name"]] = Header(item["name"], kind, types[kind], bool(item["metadata"]))
    return headers


def _errors(document: Mapping[str, Any]) -> dict[str, int]:
    """Return error numbers by name; P4's core errors are included even if they were not declared."""
    errors = {str(key): int(value) for key, value in document.get("errors", ())}
    for name in _CORE_ERRORS:
        errors.setdefault(name, max(errors.values(), default=-1) + 1)
    return errors


def _stacks(document: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the names of the headers that each header stack consists of."""
    names = {item["id"]: item["name"] for item in document["headers"]}
    return {
        item["name"]: tuple(names[number] for number in item["header_ids"])
        for item in document.get("header_stacks", ())
    }


def _signed_parameters(document: Mapping[str, Any]) -> frozenset[tuple[int, int]]:
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


def _list_fields(item: Mapping[str, Any], scope: Scope) -> tuple[FieldRef, ...]:
    """Return the metadata fields of a field list.

    Its packet fields are left out: a copy of the packet either keeps all headers or parses them again.
    """
    for element in item["elements"]:
        if element["type"] != "field":
            raise UnsupportedConstruct(
                f"field list {item['name']}: holds a {element['type']}; use fields only"
            )
    refs = [scope.field(element["value"]) for element in item["elements"]]
    return tuple(ref for ref in refs if scope.headers[ref.header].metadata)


def _registers(document: Mapping[str, Any]) -> dict[str, RegisterArray]:
    registers = {}
    for item in document.get("register_arrays", ()):
        if not 1 <= item["bitwidth"] <= 64:
            raise UnsupportedConstruct(
                f"register {item['name']}: cells of {item['bitwidth']} bits; use 1 to 64"
            )
        registers[item["name"]] = RegisterArray(item["name"], _size(item), int(item["bitwidth"]))
    return registers


def _counters(document: Mapping[str, Any]) -> dict[str, CounterArray]:
    """Return the counters by name; a direct counter has a cell for each entry of its table."""
    counters = {}
    tables = [
        table for pipe in document["pipelines"] if pipe["name"] in _PIPELINES for table in pipe["tables"]
    ]
    tables_by_name = {table["name"]: table for table in tables}
    for item in document.get("counter_arrays", ()):
        if item["is_direct"]:
            table = tables_by_name[item["binding"]]
            size = max(int(table["max_size"]), len(table.get("entries", ())))
            counters[item["name"]] = CounterArray(item["name"], size, item["binding"])
        else:
            counters[item["name"]] = CounterArray(item["name"], _size(item), None)
    return counters


def _size(item: Mapping[str, Any]) -> int:
    size = int(item["size"])
    if size < 0:
        raise BadProgram(f"{item['name']}: size {size}; compile the program again")
    return size


def _single_item(document: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    """Return the one item of a section. Raises UnsupportedConstruct if there are none or more."""
    if len(document[section]) != 1:
        raise UnsupportedConstruct(f"{section}: the program has {len(document[section])}; use exactly one")
    (item,) = document[section]
    return item  # type: ignore[no-any-return]


def _deparser(document: Mapping[str, Any]) -> tuple[str, ...]:
    deparser = _single_item(document, "deparsers")
    for primitive in deparser.get("primitives", ()):
        raise UnsupportedConstruct(f"deparser: primitive {primitive.get('op')}: not supported; use emit only")
    return tuple(deparser["order"])


def _checksum(item: Mapping[str, Any], scope: Scope) -> Checksum:
    calculation = scope.calculations[item["calculation"]]
    if calculation["algo"] != "csum16":
        raise UnsupportedConstruct(
            f"checksum {item['name']}: algorithm {calculation['algo']}: not supported; use csum16"
        )
    condition = item.get("if_cond")
    return Checksum(
        name=item["name"],
        target=scope.field(item["target"]),
        inputs=scope.inputs(calculation, f"checksum {item['name']}"),
        condition=None if condition is None else scope.expression(condition),
        verify=bool(item.get("verify", True)),
        update=bool(item.get("update", True)),
    )


def _check(program: Program) -> None:
    """Refuse a program that lacks parts of v1model, or that refers to undeclared names."""
    standard_metadata = program.headers.get(_STANDARD_METADATA)
    for field_name in _REQUIRED_FIELDS:
        if standard_metadata is None or standard_metadata.field(field_name) is None:
            raise BadProgram(
                f"{program.name}: no {_STANDARD_METADATA}.{field_name}; compile for v1model (p4c-bm2-ss)"
            )
    for name in program.deparser:
        if name not in program.headers:
            raise BadProgram(f"{program.name}: deparser emits {name}, which is not a header; compile again")
    for header in program.headers.values():
        if not header.metadata and header.bits % 8:
            raise UnsupportedConstruct(
                f"header {header.name}: {header.bits} bits are not whole bytes; pad it"
            )
    _check_references(program)


def _check_references(program: Program) -> None:
    """Raise BadProgram if a statement refers to something that the program does not declare."""
    parser = tuple(op for state in program.parser.states.values() for op in state.ops)
    for node in walk((parser, *(action.body for action in program.actions.values()))):
        if isinstance(node, (ReadRegister, WriteRegister)) and node.register not in program.registers:
            raise BadProgram(f"register {node.register}: is not declared; compile the program again")
        if isinstance(node, (SetValidity, Extract)) and program.headers[node.header].metadata:
            raise BadProgram(f"header {node.header}: is metadata, in no packet; compile the program again")
        if isinstance(node, CountAt) and node.counter not in program.counters:
            raise BadProgram(f"counter {node.counter}: is not declared; compile the program again")
        if isinstance(node, (Clone, Resubmit, Recirculate)) and node.fields not in program.field_lists:
            raise BadProgram(f"field list {node.fields}: is not declared; compile the program again")
