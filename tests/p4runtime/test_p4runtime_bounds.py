"""Values at their bounds, and the forms of matches, counters, groups and register cells."""

from __future__ import annotations

import pytest
from finsy.proto import p4d, p4r
from p4runtime_client import update
from p4runtime_entries import acl, refusal, route

from peelsum.softswitch.p4runtime.pipeline import Pipeline
from peelsum.softswitch.p4runtime.status import BatchError
from peelsum.softswitch.p4runtime.values import to_bytes
from peelsum.softswitch.runtime.device import Device


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


# Groups


def multicast(number, **replicas):
    entry = p4r.MulticastGroupEntry(multicast_group_id=number)
    for instance, port in enumerate(replicas.get("new", ())):
        entry.replicas.add(port=bytes([port]), instance=instance)
    for instance, port in enumerate(replicas.get("old", ())):
        entry.replicas.add(egress_port=port, instance=instance)
    return p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)


def test_a_group_is_read_back_in_the_form_it_was_last_written_in(client):
    def read():
        return client.read(packet_replication_engine_entry=multicast(3))

    old, new = multicast(3, old=[1, 2]), multicast(3, new=[3, 4])
    client.update("INSERT", packet_replication_engine_entry=old)
    assert read() == [old]
    client.update("MODIFY", packet_replication_engine_entry=new)
    assert read() == [new]
    client.update("MODIFY", packet_replication_engine_entry=old)
    assert read() == [old]
    client.update("DELETE", packet_replication_engine_entry=old)
    client.update("INSERT", packet_replication_engine_entry=new)
    assert read() == [new]


def test_the_form_and_metadata_of_one_group_are_not_anothers(client):
    old, new = multicast(3, old=[1]), multicast(4, new=[1])
    old.multicast_group_entry.metadata = b"three"
    client.write(*[update("INSERT", packet_replication_engine_entry=entry) for entry in (old, new)])
    assert client.read(packet_replication_engine_entry=multicast(0)) == [old, new]
    client.update("DELETE", packet_replication_engine_entry=old)
    again = multicast(3, old=[1])
    client.update("INSERT", packet_replication_engine_entry=again)
    assert client.read(packet_replication_engine_entry=multicast(3)) == [again]


@pytest.mark.parametrize(("number", "accepted"), [(1, True), (65535, True), (65536, False), (0, False)])
def test_group_numbers_have_bounds(client, number, accepted):
    change = update("INSERT", packet_replication_engine_entry=multicast(number, new=[1]))
    client.update("INSERT", packet_replication_engine_entry=multicast(9, new=[1]))
    if accepted:
        client.write(change)
        assert client.read(packet_replication_engine_entry=multicast(number)) == [multicast(number, new=[1])]
        return
    for kind in ("INSERT", "MODIFY", "DELETE"):
        change.type = p4r.Update.Type.Value(kind)
        assert refusal(client, change) == ["INVALID_ARGUMENT"]


def test_copies_leave_by_ports_that_are_there(schema):
    device = Device(mode="python", ports={1, 2})
    entities = Pipeline.build(schema.get_pipeline_config(), device).entities
    device.close()
    entities.write([update("INSERT", packet_replication_engine_entry=multicast(1, new=[1, 2]))])
    with pytest.raises(BatchError, match="port 3 is not on this switch; use one of 1, 2"):
        entities.write([update("MODIFY", packet_replication_engine_entry=multicast(1, new=[1, 3]))])


def test_backup_replicas_are_not_implemented(client):
    entry = multicast(1, new=[1])
    entry.multicast_group_entry.replicas[0].backup_replicas.add(port=b"\2")
    assert refusal(client, update("INSERT", packet_replication_engine_entry=entry)) == ["UNIMPLEMENTED"]


def test_the_same_port_may_appear_as_two_instances_only(client):
    twice = multicast(1, new=[1, 1])
    client.update("INSERT", packet_replication_engine_entry=twice)
    same = multicast(2, new=[1, 1])
    same.multicast_group_entry.replicas[1].instance = 0
    assert refusal(client, update("INSERT", packet_replication_engine_entry=same)) == ["INVALID_ARGUMENT"]


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
