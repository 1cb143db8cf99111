"""Details that are easy to get wrong: filters, bounds, forms, and the pipeline that requests refer to."""

import json

import grpc
import pytest
from finsy.p4entity import P4TableAction as Action
from finsy.p4entity import P4TableEntry as Entry
from finsy.p4entity import P4TableMatch as Match
from finsy.proto import p4d, p4i, p4r, rpc_code
from p4runtime_client import forward, outcomes, update

from peelsum.softswitch.p4runtime.info import PipelineInfo
from peelsum.softswitch.p4runtime.pipeline import Pipeline
from peelsum.softswitch.p4runtime.status import BatchError
from peelsum.softswitch.p4runtime.values import to_bytes
from peelsum.softswitch.runtime.device import Device

ETHERNET = bytes.fromhex("020000000001 020000000002")
FRAME = ETHERNET + b"\x88\xb5payload"


def route(schema, dst="10.1.0.0/16", port=3, **fields):
    entry = Entry("route", match=Match({"hdr.ipv4.dst": dst}), action=Action("forward", port=port))
    made = entry.encode_entry(schema)
    made.MergeFrom(p4r.TableEntry(**fields))
    return made


def acl(schema, priority, action="drop", **match):
    fields = {f"hdr.ipv4.{name}": value for name, value in match.items()}
    return Entry("filter", match=Match(fields), action=Action(action), priority=priority).encode_entry(schema)


def refusal(client, *updates):
    with pytest.raises(grpc.RpcError) as error:
        client.write(*updates)
    return [rpc_code.Code.Name(code) for code, _ in outcomes(error.value)]


def packet_out(port, payload=FRAME):
    packet = p4r.PacketOut(payload=payload)
    packet.metadata.add(metadata_id=1, value=to_bytes(port))
    return packet


# The pipeline that requests refer to


def test_after_a_save_and_a_reconciliation_reads_are_of_the_running_pipeline(client, schema, device):
    config, kept = schema.get_pipeline_config(), route(schema)
    client.update("INSERT", table_entry=kept)
    running = device.switch
    client.set_pipeline(config, "VERIFY_AND_SAVE")
    client.update("INSERT", table_entry=route(schema, "10.2.0.0/16"))
    everything = p4r.TableEntry(table_id=kept.table_id)
    assert client.read(table_entry=everything) == [route(schema, "10.2.0.0/16")]
    config.cookie.cookie = 5
    client.set_pipeline(config, "RECONCILE_AND_COMMIT")
    assert device.switch is running
    assert client.read(table_entry=everything) == [kept]
    assert client.get_pipeline("COOKIE_ONLY").cookie.cookie == 5


def test_reconciliation_keeps_the_running_state_not_the_saved_one(client, schema, device):
    config, kept = schema.get_pipeline_config(), route(schema, metadata=b"mine")
    client.update("INSERT", table_entry=kept)
    client.set_pipeline(config, "VERIFY_AND_SAVE")
    client.update("INSERT", table_entry=route(schema, "10.2.0.0/16"))
    config.p4_device_config += b"\n"
    client.set_pipeline(config, "RECONCILE_AND_COMMIT")
    assert client.read(table_entry=p4r.TableEntry(table_id=kept.table_id)) == [kept]
    assert client.get_pipeline() == config


def test_a_commit_forgets_what_was_saved(client, schema):
    config = schema.get_pipeline_config()
    client.set_pipeline(config, "VERIFY_AND_SAVE")
    client.set_pipeline(config)
    with pytest.raises(grpc.RpcError) as error:
        client.set_pipeline(None, "COMMIT")
    assert error.value.code().name == "FAILED_PRECONDITION"


def test_another_p4info_is_another_pipeline(client, schema, device):
    config, running = schema.get_pipeline_config(), device.switch
    config.p4info.tables[0].size += 1
    client.set_pipeline(config, "RECONCILE_AND_COMMIT")
    assert device.switch is not running


def test_reconciliation_before_any_commit_commits(connect, schema, device):
    client = connect()
    client.become_primary()
    client.set_pipeline(schema.get_pipeline_config(), "RECONCILE_AND_COMMIT")
    assert "MatchEverything.route" in device.switch.tables


def test_packets_go_by_the_running_pipelines_headers(client, schema, device):
    """A saved program with other headers changes nothing for packets until it is committed."""
    config = schema.get_pipeline_config()
    for header in config.p4info.controller_packet_metadata:
        del header.metadata[:]
    client.set_pipeline(config, "VERIFY_AND_SAVE")
    client.primary.send(packet=packet_out(5))
    assert forward(device) == [(5, FRAME)]
    device.deliver_to_cpu([b"\1\2" + FRAME])
    assert client.primary.receive().packet.payload == FRAME


def test_packets_that_waited_for_the_old_pipeline_are_dropped(client, schema, device):
    client.primary.send(packet=packet_out(5))
    # The bid is answered after the packet before it was handled.
    client.primary.bid(1)
    client.set_pipeline(schema.get_pipeline_config())
    client.primary.send(packet=packet_out(6))
    assert forward(device) == [(6, FRAME)]


# Reading


def test_reads_are_filtered_by_what_a_controller_keeps_beside_an_entry(client, schema):
    kept = [
        route(schema, f"10.{n}.0.0/16", port=n, metadata=bytes([n % 2 + 65]), controller_metadata=n % 3)
        for n in range(1, 7)
    ]
    for entry in kept:
        client.update("INSERT", table_entry=entry)

    def chosen(**fields):
        return client.read(table_entry=p4r.TableEntry(table_id=kept[0].table_id, **fields))

    assert chosen() == kept
    assert chosen(metadata=b"A") == kept[1::2]
    assert chosen(metadata=b"B") == kept[::2]
    assert chosen(metadata=b"C") == []
    assert chosen(controller_metadata=1) == [kept[0], kept[3]]
    assert chosen(controller_metadata=1, metadata=b"A") == [kept[3]]
    assert client.read(table_entry=p4r.TableEntry(metadata=b"A")) == kept[1::2]
    client.update("MODIFY", table_entry=route(schema, "10.1.0.0/16", port=1, controller_metadata=8))
    assert chosen(controller_metadata=8) == [route(schema, "10.1.0.0/16", port=1, controller_metadata=8)]


def test_reads_are_filtered_by_action_and_priority(client, schema):
    drop, nothing = acl(schema, 5, ttl="1...1"), acl(schema, 6, "NoAction", ttl="1...1")
    client.write(*[update("INSERT", table_entry=entry) for entry in (drop, nothing)])
    table_id = drop.table_id
    assert client.read(table_entry=p4r.TableEntry(table_id=table_id)) == [nothing, drop]
    assert client.read(table_entry=p4r.TableEntry(table_id=table_id, action=drop.action)) == [drop]
    assert client.read(table_entry=p4r.TableEntry(table_id=table_id, priority=6)) == [nothing]
    assert client.read(table_entry=p4r.TableEntry(table_id=table_id, priority=7)) == []
    # A match without its priority selects no entry.
    assert client.read(table_entry=p4r.TableEntry(table_id=table_id, match=drop.match)) == []


def test_metadata_goes_with_its_entry(client, schema):
    client.update("INSERT", table_entry=route(schema, metadata=b"old", controller_metadata=4))
    client.update("MODIFY", table_entry=route(schema))
    assert client.read(table_entry=route(schema)) == [route(schema)]
    client.update("MODIFY", table_entry=route(schema, metadata=b"new"))
    client.update("DELETE", table_entry=route(schema))
    client.update("INSERT", table_entry=route(schema))
    assert client.read(table_entry=route(schema)) == [route(schema)]


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
        assert refusal(client, update("MODIFY", table_entry=default)) == ["INVALID_ARGUMENT"]
    assert refusal(
        client,
        update("DELETE", table_entry=p4r.TableEntry(table_id=default.table_id, is_default_action=True)),
    ) == ["INVALID_ARGUMENT"]


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


# Matching


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


def test_packets_enter_in_the_order_in_which_they_were_sent(client, device):
    for port in (5, 6, 7):
        client.primary.send(packet=packet_out(port))
    client.primary.bid(1)
    assert forward(device) == [(port, FRAME) for port in (5, 6, 7)]


def test_packets_come_to_the_primary_in_order(client, device):
    device.deliver_to_cpu([bytes([0, 2 * number]) + FRAME for number in range(3)])
    numbers = [client.primary.receive().packet.metadata[1].value for _ in range(3)]
    assert numbers == [b"\0", b"\2", b"\4"]


# P4Info


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


def _other_kind(program):
    program["pipelines"][0]["tables"][3]["key"][0]["match_type"] = "exact"


def _other_counter_size(program):
    next(part for part in program["counter_arrays"] if part["name"].endswith("seen"))["size"] = 15


def _other_register_size(program):
    program["register_arrays"][0]["size"] = 9


def _other_parameters(program):
    action = next(part for part in program["actions"] if part["name"].endswith("to_cpu"))
    action["runtime_data"].append({"name": "more", "bitwidth": 8})


@pytest.mark.parametrize("spoil", [_other_kind, _other_counter_size, _other_register_size, _other_parameters])
def test_a_program_that_is_not_its_p4infos_is_refused(client, schema, spoil):
    config = schema.get_pipeline_config()
    program = json.loads(config.p4_device_config)
    spoil(program)
    config.p4_device_config = json.dumps(program).encode()
    with pytest.raises(grpc.RpcError) as error:
        client.set_pipeline(config, "VERIFY")
    assert error.value.code().name == "INVALID_ARGUMENT"
    assert "p4info and p4_device_config differ in" in error.value.details()
