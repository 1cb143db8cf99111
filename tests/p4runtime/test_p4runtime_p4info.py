"""Facts that are read from P4Info, and programs that differ from their P4Info."""

from __future__ import annotations

import json

import grpc
import pytest
from finsy.proto import p4i

from peelsum.softswitch.p4runtime.info import PipelineInfo


def test_what_a_table_may_do_is_read_from_p4info(schema):
    info = PipelineInfo.of(schema.p4info)
    table = next(table for table in info.tables.values() if table.name == "MatchEverything.exact_match")
    names = {number: action.name.rpartition(".")[2] for number, action in info.actions.items()}
    assert {names[n] for n in table.entry_actions} == {"forward", "flood", "to_cpu", "drop"}
    assert {names[n] for n in table.default_actions} == {"forward", "flood", "to_cpu", "give_up"}
    by_name = {table.name.rpartition(".")[2]: table for table in info.tables.values()}
    assert {name for name, table in by_name.items() if table.needs_priority} == {"filter"}
    assert {name for name, table in by_name.items() if table.is_const} == {"fixed"}
    assert {name for name, table in by_name.items() if table.const_default} == {"fixed"}
    assert {name: table.direct_counter for name, table in by_name.items() if table.direct_counter} == {
        "route": "MatchEverything.routed"
    }


@pytest.mark.parametrize("kind", ["counters", "registers"])
def test_cells_that_the_program_lacks_are_named(client, schema, kind):
    config = schema.get_pipeline_config()
    getattr(config.p4info, kind)[0].preamble.name = "elsewhere"
    with pytest.raises(grpc.RpcError) as error:
        client.set_pipeline(config, "VERIFY")
    assert error.value.code().name == "INVALID_ARGUMENT"
    assert f"differ in {kind[:-1]} elsewhere" in error.value.details()


@pytest.mark.parametrize("kind", [p4i.MatchField.TERNARY, p4i.MatchField.RANGE, p4i.MatchField.OPTIONAL])
def test_every_kind_that_overlaps_needs_a_priority(schema, kind):
    p4info = p4i.P4Info()
    p4info.CopyFrom(schema.p4info)
    del p4info.tables[1:]
    del p4info.tables[0].match_fields[1:]
    p4info.tables[0].match_fields[0].match_type = kind
    (table,) = PipelineInfo.of(p4info).tables.values()
    assert table.needs_priority


def named(parts, end):
    return next(part for part in parts if part["name"].endswith(end))


SPOILED = {
    "kind": lambda d: d["pipelines"][0]["tables"][3]["key"][0].update(match_type="exact"),
    "counter size": lambda d: named(d["counter_arrays"], "seen").update(size=15),
    "register size": lambda d: d["register_arrays"][0].update(size=9),
    "parameters": lambda d: named(d["actions"], "to_cpu")["runtime_data"].append(
        {"name": "more", "bitwidth": 8}
    ),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_program_that_is_not_its_p4infos_is_refused(client, schema, spoil):
    config = schema.get_pipeline_config()
    program = json.loads(config.p4_device_config)
    spoil(program)
    config.p4_device_config = json.dumps(program).encode()
    with pytest.raises(grpc.RpcError) as error:
        client.set_pipeline(config, "VERIFY")
    assert error.value.code().name == "INVALID_ARGUMENT"
    assert "p4info and p4_device_config differ in" in error.value.details()
