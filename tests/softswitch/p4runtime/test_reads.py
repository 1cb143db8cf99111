"""Reads, their filters and metadata, counters and registers, and requests that are refused."""

import pytest
from finsy.p4entity import P4TableAction as Action
from finsy.p4entity import P4TableEntry as Entry
from finsy.p4entity import P4TableMatch as Match
from finsy.proto import p4d, p4r
from p4runtime_client import refusal, status_of, update


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
    entries = []
    for n in range(1, 7):
        kept = {"metadata": bytes([n % 2 + 65]), "controller_metadata": n % 3}
        entries.append(route(schema, f"10.{n}.0.0/16", port=n, **kept))
        client.update("INSERT", table_entry=entries[-1])

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
        {"table_entry": {"match": [{"field_id": 1}]}},
        {"table_entry": {"is_default_action": True, "time_since_last_hit": {}}},
        *({f"{kind}_entry": {f"{kind}_id": 77}} for kind in ("table", "counter", "register", "meter")),
        *({f"direct_{kind}_entry": {"table_entry": {"table_id": 77}}} for kind in ("counter", "meter")),
        *({f"action_profile_{kind}": {"action_profile_id": 77}} for kind in ("member", "group")),
        *({f"{kind}_entry": {f"{kind}_id": 77}} for kind in ("value_set", "digest")),
    ],
)
def test_reads_of_what_is_not_there_are_refused(client, wanted):
    assert status_of(lambda: client.read(**wanted))[0] == "INVALID_ARGUMENT"


def test_only_the_primary_of_a_role_writes_in_it_but_all_read(client):
    assert list(client.stub.Read(p4r.ReadRequest(device_id=1, role="operator"))) == []
    assert status_of(lambda: client.write(role="operator"))[0] == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    "call",
    [
        lambda stub: list(stub.Read(p4r.ReadRequest(device_id=2))),
        lambda stub: stub.Write(p4r.WriteRequest(device_id=2)),
        lambda stub: stub.SetForwardingPipelineConfig(p4r.SetForwardingPipelineConfigRequest(device_id=2)),
        lambda stub: stub.GetForwardingPipelineConfig(p4r.GetForwardingPipelineConfigRequest(device_id=2)),
    ],
    ids=["Read", "Write", "SetForwardingPipelineConfig", "GetForwardingPipelineConfig"],
)
def test_requests_for_another_device_are_refused(client, call):
    assert status_of(lambda: call(client.stub))[0] == "NOT_FOUND"


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
    for index, value in ((0, b"\5"), (7, b"\xff\xff\xff")):
        last = p4r.RegisterEntry(register_id=notes, index=at(index), data={"bitstring": value})
        client.update("MODIFY", register_entry=last)
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
    assert status_of(lambda: client.read(counter_entry=cell))[0] == "OUT_OF_RANGE"


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
    for data in ({"bitstring": b"\1\0\0\0"}, {"bool": True}):
        register = p4r.RegisterEntry(register_id=notes, index=at(0), data=data)
        assert refusal(client, "MODIFY", register_entry=register)[0] == "INVALID_ARGUMENT"


def test_entities_that_are_not_implemented_are_refused_by_name(client):
    """This device has no UDP ports, which could have secrets."""
    code, message = refusal(client, "INSERT", extern_entry=p4r.ExternEntry())
    assert (code, message.split(":")[0]) == ("UNIMPLEMENTED", "extern_entry")
    assert status_of(lambda: client.read(extern_entry=p4r.ExternEntry()))[0] == "UNIMPLEMENTED"
