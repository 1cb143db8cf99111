"""Reads: their filters, metadata, default actions, and requests that are refused."""

from __future__ import annotations

import grpc
import pytest
from finsy.p4entity import P4TableAction as Action
from finsy.p4entity import P4TableEntry as Entry
from finsy.p4entity import P4TableMatch as Match
from finsy.proto import p4r
from p4runtime_client import refusal, update


def route(schema, dst="10.1.0.0/16", port=3, **fields):
    """Return an entry of table `route`, with other fields of a TableEntry."""
    entry = Entry("route", match=Match({"hdr.ipv4.dst": dst}), action=Action("forward", port=port))
    table_entry = entry.encode_entry(schema)
    table_entry.MergeFrom(p4r.TableEntry(**fields))
    return table_entry


def ttl_of_one(schema, priority, action):
    """Return an entry of table `filter`."""
    match = Match({"hdr.ipv4.ttl": "1...1"})
    return Entry("filter", match=match, action=Action(action), priority=priority).encode_entry(schema)


def test_reads_are_filtered_by_what_a_controller_keeps_beside_an_entry(client, schema):
    entries = [
        route(schema, f"10.{n}.0.0/16", port=n, metadata=bytes([n % 2 + 65]), controller_metadata=n % 3)
        for n in range(1, 7)
    ]
    for entry in entries:
        client.update("INSERT", table_entry=entry)

    def chosen(**fields):
        return client.read(table_entry=p4r.TableEntry(table_id=entries[0].table_id, **fields))

    assert chosen() == entries
    assert chosen(metadata=b"A") == entries[1::2]
    assert chosen(metadata=b"B") == entries[::2]
    assert chosen(metadata=b"C") == []
    assert chosen(controller_metadata=1) == [entries[0], entries[3]]
    assert chosen(controller_metadata=1, metadata=b"A") == [entries[3]]
    assert client.read(table_entry=p4r.TableEntry(metadata=b"A")) == entries[1::2]
    client.update("MODIFY", table_entry=route(schema, "10.1.0.0/16", port=1, controller_metadata=8))
    assert chosen(controller_metadata=8) == [route(schema, "10.1.0.0/16", port=1, controller_metadata=8)]


def test_reads_are_filtered_by_action_and_priority(client, schema):
    drop, nothing = ttl_of_one(schema, 5, "drop"), ttl_of_one(schema, 6, "NoAction")
    client.write(*[update("INSERT", table_entry=entry) for entry in (drop, nothing)])
    table_id = drop.table_id
    assert client.read(table_entry=p4r.TableEntry(table_id=table_id)) == [nothing, drop]
    assert client.read(table_entry=p4r.TableEntry(table_id=table_id, action=drop.action)) == [drop]
    assert client.read(table_entry=p4r.TableEntry(table_id=table_id, priority=6)) == [nothing]
    assert client.read(table_entry=p4r.TableEntry(table_id=table_id, priority=7)) == []
    # A match without its priority selects no entry.
    assert client.read(table_entry=p4r.TableEntry(table_id=table_id, match=drop.match)) == []


def test_a_default_action_has_metadata_of_its_own(client, schema):
    default = Entry("route", action=Action("drop"), is_default_action=True).encode_entry(schema)
    default.metadata, default.controller_metadata = b"default", 3
    client.update("MODIFY", table_entry=default)
    query = p4r.TableEntry(table_id=default.table_id, is_default_action=True)
    assert client.read(table_entry=query) == [default]
    assert client.read(table_entry=p4r.TableEntry(table_id=default.table_id)) == []
    client.update("MODIFY", table_entry=query)
    (again,) = client.read(table_entry=query)
    assert (again.metadata, again.controller_metadata) == (b"", 0)


def test_a_default_action_has_neither_match_nor_priority(client, schema):
    for fields in ({"priority": 1}, {"match": route(schema).match}):
        default = Entry("route", action=Action("drop"), is_default_action=True).encode_entry(schema)
        default.MergeFrom(p4r.TableEntry(**fields))
        assert refusal(client, "MODIFY", table_entry=default)[0] == "INVALID_ARGUMENT"
    alone = p4r.TableEntry(table_id=default.table_id, is_default_action=True)
    assert refusal(client, "DELETE", table_entry=alone)[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "wanted",
    [
        {"table_entry": p4r.TableEntry(table_id=77)},
        {"table_entry": p4r.TableEntry(match=[p4r.FieldMatch(field_id=1)])},
        {"counter_entry": p4r.CounterEntry(counter_id=77)},
        {"register_entry": p4r.RegisterEntry(register_id=77)},
        {"direct_counter_entry": p4r.DirectCounterEntry(table_entry=p4r.TableEntry(table_id=77))},
    ],
    ids=["table", "match without table", "counter", "register", "direct counter"],
)
def test_reads_of_what_is_not_there_are_refused(client, wanted):
    with pytest.raises(grpc.RpcError) as error:
        client.read(**wanted)
    assert error.value.code().name == "INVALID_ARGUMENT"


def test_roles_are_not_implemented(client):
    with pytest.raises(grpc.RpcError) as error:
        list(client.stub.Read(p4r.ReadRequest(device_id=1, role="operator")))
    assert error.value.code().name == "UNIMPLEMENTED"
    with pytest.raises(grpc.RpcError) as error:
        client.write(role="operator")
    assert error.value.code().name == "UNIMPLEMENTED"


@pytest.mark.parametrize(
    "call",
    [
        lambda stub: list(stub.Read(p4r.ReadRequest(device_id=2))),
        lambda stub: stub.Write(p4r.WriteRequest(device_id=2)),
        lambda stub: stub.SetForwardingPipelineConfig(p4r.SetForwardingPipelineConfigRequest(device_id=2)),
    ],
    ids=["Read", "Write", "SetForwardingPipelineConfig"],
)
def test_requests_for_another_device_are_refused(client, call):
    with pytest.raises(grpc.RpcError) as error:
        call(client.stub)
    assert error.value.code().name == "NOT_FOUND"
