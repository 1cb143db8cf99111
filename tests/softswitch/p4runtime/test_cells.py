"""Counters and registers over P4Runtime."""

import grpc
import pytest
from finsy.proto import p4d, p4r
from p4runtime_client import refusal, update


@pytest.fixture
def seen(schema):
    return schema.counters["seen"].id


@pytest.fixture
def notes(schema):
    return schema.registers["notes"].id


def at(index):
    return p4r.Index(index=index)


def test_one_counter_cell_and_all(client, seen, device):
    data = p4r.CounterData(packet_count=11, byte_count=700)
    cell = p4r.CounterEntry(counter_id=seen, index=at(2), data=data)
    client.update("MODIFY", counter_entry=cell)
    assert device.switch.counters["MatchEverything.seen"].read(2) == (11, 700)
    assert client.read(counter_entry=p4r.CounterEntry(counter_id=seen, index=at(2))) == [cell]
    everything = client.read(counter_entry=p4r.CounterEntry())
    assert [entry.index.index for entry in everything] == list(range(16))
    assert [entry.data.packet_count for entry in everything] == [0, 0, 11] + [0] * 13


def test_one_register_cell_and_all(client, notes, device):
    last, first = (
        p4r.RegisterEntry(register_id=notes, index=at(index), data=p4d.P4Data(bitstring=value))
        for index, value in ((7, b"\xff\xff\xff"), (0, b"\5"))
    )
    for cell in (last, first):
        client.update("MODIFY", register_entry=cell)
    assert device.switch.registers["MatchEverything.notes"].read(7) == (1 << 24) - 1
    assert client.read(register_entry=p4r.RegisterEntry(register_id=notes, index=at(7))) == [last]
    everything = client.read(register_entry=p4r.RegisterEntry())
    assert [entry.data.bitstring for entry in everything] == [b"\5", *[b"\0"] * 6, b"\xff\xff\xff"]


@pytest.mark.parametrize("index", [-1, 16, 1 << 40])
def test_indices_have_bounds(client, seen, notes, index):
    cell = p4r.CounterEntry(counter_id=seen, index=at(index), data=p4r.CounterData())
    assert refusal(client, "MODIFY", counter_entry=cell)[0] == "OUT_OF_RANGE"
    note = p4r.RegisterEntry(register_id=notes, index=at(index // 2), data=p4d.P4Data(bitstring=b"\0"))
    assert refusal(client, "MODIFY", register_entry=note)[0] == "OUT_OF_RANGE"
    with pytest.raises(grpc.RpcError) as error:
        client.read(counter_entry=cell)
    assert error.value.code().name == "OUT_OF_RANGE"


def test_cells_are_only_modified(client, seen, notes):
    counter = p4r.CounterEntry(counter_id=seen, index=at(0), data=p4r.CounterData())
    register = p4r.RegisterEntry(register_id=notes, index=at(0), data=p4d.P4Data(bitstring=b"\0"))
    for kind in ("INSERT", "DELETE"):
        assert refusal(client, kind, counter_entry=counter)[0] == "INVALID_ARGUMENT"
        assert refusal(client, kind, register_entry=register)[0] == "INVALID_ARGUMENT"


def test_what_cells_refuse(client, seen, notes):
    for counter in (
        p4r.CounterEntry(counter_id=1, index=at(0), data=p4r.CounterData()),
        p4r.CounterEntry(counter_id=seen, data=p4r.CounterData()),
        p4r.CounterEntry(counter_id=seen, index=at(0)),
        p4r.CounterEntry(counter_id=seen, index=at(0), data=p4r.CounterData(packet_count=-1)),
    ):
        assert refusal(client, "MODIFY", counter_entry=counter)[0] == "INVALID_ARGUMENT"
    for register in (
        p4r.RegisterEntry(register_id=notes, index=at(0), data=p4d.P4Data(bitstring=b"\1\0\0\0")),
        p4r.RegisterEntry(register_id=notes, index=at(0), data=p4d.P4Data(bool=True)),
    ):
        assert refusal(client, "MODIFY", register_entry=register)[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "name",
    ["action_profile_member", "action_profile_group", "meter_entry", "value_set_entry", "digest_entry"],
)
def test_entities_that_are_not_implemented_are_refused_by_name(client, name):
    empty = {field.name: field.message_type for field in p4r.Entity.DESCRIPTOR.fields}[name]
    entity = {name: getattr(p4r, empty.name)()}
    code, message = refusal(client, "INSERT", **entity)
    assert (code, message.split(":")[0]) == ("UNIMPLEMENTED", name)
    with pytest.raises(grpc.RpcError) as error:
        client.read(**entity)
    assert error.value.code().name == "UNIMPLEMENTED"


def test_updates_of_a_batch_may_be_of_different_kinds(client, seen, device):
    counter = p4r.CounterEntry(counter_id=seen, index=at(1), data=p4r.CounterData(packet_count=4))
    group = p4r.MulticastGroupEntry(multicast_group_id=2, replicas=[p4r.Replica(port=b"\1")])
    engine = p4r.PacketReplicationEngineEntry(multicast_group_entry=group)
    client.write(
        update("INSERT", packet_replication_engine_entry=engine), update("MODIFY", counter_entry=counter)
    )
    assert device.switch.groups.ids() == [2]
    assert device.switch.counters["MatchEverything.seen"].read(1) == (4, 0)
