"""Facts that are read from P4Info."""

from __future__ import annotations

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


@pytest.mark.parametrize("kind", [p4i.MatchField.TERNARY, p4i.MatchField.RANGE, p4i.MatchField.OPTIONAL])
def test_every_kind_that_overlaps_needs_a_priority(schema, kind):
    p4info = p4i.P4Info()
    p4info.CopyFrom(schema.p4info)
    del p4info.tables[1:]
    del p4info.tables[0].match_fields[1:]
    p4info.tables[0].match_fields[0].match_type = kind
    (table,) = PipelineInfo.of(p4info).tables.values()
    assert table.needs_priority
