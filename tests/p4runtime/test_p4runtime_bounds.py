"""Values at their bounds, and the forms of matches, counters and register cells."""

from __future__ import annotations

import pytest
from finsy.proto import p4d, p4r
from p4runtime_client import update
from p4runtime_entries import acl, refusal, route

from peelsum.softswitch.p4runtime.values import to_bytes


def test_a_range_of_one_value(client, schema, device):
    entry = acl(schema, 1, ttl="9...9")
    client.update("INSERT", table_entry=entry)
    assert client.read(table_entry=entry) == [entry]
    (row,) = device.switch.tables["MatchEverything.filter"].entries()
    assert row.keys[2] == (9, 9)


@pytest.mark.parametrize(("low", "high"), [(0, 254), (1, 255), (0, 0), (255, 255)])
def test_ranges_at_the_ends_are_not_everything(client, schema, low, high):
    entry = acl(schema, 1, ttl=f"{low}...{high}")
    client.update("INSERT", table_entry=entry)
    assert client.read(table_entry=entry) == [entry]


@pytest.mark.parametrize("length", [1, 31, 32])
def test_prefixes_at_the_ends_are_kept(client, schema, length):
    entry = route(schema, f"{'128.0.0.0' if length == 1 else '255.255.255.254'}/{length}")
    client.update("INSERT", table_entry=entry)
    assert client.read(table_entry=entry) == [entry]


def test_a_counter_is_set_by_a_modification_too(client, schema, device):
    client.update("INSERT", table_entry=route(schema))
    counted = route(schema, counter_data=p4r.CounterData())
    (found,) = client.read(table_entry=counted)
    assert found.HasField("counter_data"), "a counter at zero is there, too"
    data = p4r.CounterData(packet_count=6, byte_count=7)
    client.update("MODIFY", table_entry=route(schema, counter_data=data))
    table = device.switch.tables["MatchEverything.route"]
    assert table.read_counter(((0x0A010000, 16),)) == (6, 7)
    client.update("MODIFY", table_entry=route(schema, port=4))
    assert table.read_counter(((0x0A010000, 16),)) == (6, 7), "not mentioned, not touched"
    negative = p4r.CounterData(packet_count=1, byte_count=-1)
    assert refusal(client, update("MODIFY", table_entry=route(schema, counter_data=negative))) == [
        "INVALID_ARGUMENT"
    ]


# Cells


def test_the_last_cell_is_reached_and_the_one_after_is_not(client, schema):
    notes = schema.registers["notes"].id

    def cell(index, value):
        data = p4d.P4Data(bitstring=to_bytes(value))
        return p4r.RegisterEntry(register_id=notes, index=p4r.Index(index=index), data=data)

    client.update("MODIFY", register_entry=cell(7, (1 << 24) - 1))
    client.update("MODIFY", register_entry=cell(0, 5))
    assert client.read(register_entry=cell(7, 0)) == [cell(7, (1 << 24) - 1)]
    values = [found.data.bitstring for found in client.read(register_entry=p4r.RegisterEntry())]
    assert values == [b"\5", *[b"\0"] * 6, b"\xff\xff\xff"]
    assert refusal(client, update("MODIFY", register_entry=cell(8, 0))) == ["OUT_OF_RANGE"]
