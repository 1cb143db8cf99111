"""The server answers any input with a status, continues, and frees its resources."""

import contextlib
import random
from pathlib import Path

import grpc
import pytest
from finsy.p4entity import P4CounterData, P4CounterEntry, P4MulticastGroupEntry, P4RegisterEntry
from finsy.p4entity import P4TableAction as Action
from finsy.p4entity import P4TableEntry as Entry
from finsy.p4entity import P4TableMatch as Match
from finsy.p4schema import P4Schema
from finsy.proto import U128, p4r, rpc_code
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from p4runtime_client import WAIT_S, Client, ids_of, outcomes

from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.runtime.device import Device

P4 = Path(__file__).parent / "p4"
#: Numbers and bytes that are often meaningful; random ones hardly ever are.
INTEGERS = [0, 1, 2, 3, 7, 255, 1 << 31, (1 << 63) - 1, -1, -5]
CODES_OF_BUGS = {"INTERNAL", "UNKNOWN"}


def fill(message, pick, depth=0):
    """Set random fields of a message, by its descriptor; identifiers are often those that exist."""
    chosen = {pick.choice(oneof.fields).number for oneof in message.DESCRIPTOR.oneofs}
    for field in message.DESCRIPTOR.fields:
        skipped = field.number not in chosen if field.containing_oneof else pick.random() < 0.45
        if not skipped and depth < 7:
            fill_field(message, field, pick, depth)


def fill_field(message, field, pick, depth):
    if field.is_repeated:
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for _ in range(pick.randint(0, 3)):
                fill(getattr(message, field.name).add(), pick, depth + 1)
    elif field.message_type is not None:
        child = getattr(message, field.name)
        child.SetInParent()
        fill(child, pick, depth + 1)
    else:
        setattr(message, field.name, scalar(field, pick))


def spoil(message, pick):
    """Change a few fields of a valid message."""
    for field, value in message.ListFields():
        if pick.random() < 0.06:
            message.ClearField(field.name)
        elif pick.random() < 0.06:
            fill_field(message, field, pick, 5)
        elif field.message_type is not None:
            for child in value if field.is_repeated else [value]:
                spoil(child, pick)


def scalar(field, pick):
    match field.type:
        case field.TYPE_BYTES:
            return pick.choice([b"", b"\0", b"\1", b"\0\5", pick.randbytes(4), pick.randbytes(40)])
        case field.TYPE_STRING:
            return pick.choice(["", "x", "x" * 2000])
        case field.TYPE_BOOL:
            return pick.random() < 0.5
        case field.TYPE_ENUM:
            return pick.randint(0, 5)
    value = pick.choice([*INTEGERS, *pick.ids]) if field.name.endswith("id") else pick.choice(INTEGERS)
    low, high = LIMITS[field.type]
    return min(max(value, low), high)


_F = p4r.Entity.DESCRIPTOR.fields[0]
LIMITS = {
    _F.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    _F.TYPE_UINT32: (0, (1 << 32) - 1),
    _F.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    _F.TYPE_UINT64: (0, (1 << 64) - 1),
}


@pytest.fixture(scope="module", params=["every_match_kind", "externs"])
def schema(request):
    """Return the P4Info and JSON of a program; tests run once with each."""
    return P4Schema(P4 / f"{request.param}.p4info.txtpb", (P4 / f"{request.param}.json").read_bytes())


@pytest.fixture
def good(schema):
    """Return entities that the server accepts."""
    if any(table.alias == "balanced" for table in schema.tables):
        return list(of_externs(schema))
    route = Entry("route", match=Match({"hdr.ipv4.dst": "10.1.0.0/16"}), action=Action("forward", port=3))
    source = Match(
        {"hdr.ipv4.src": "10.0.0.0/&255.0.255.0", "hdr.ipv4.protocol": 17, "hdr.ipv4.ttl": "2...9"}
    )
    entries = (
        route,
        Entry("filter", match=source, action=Action("drop"), priority=4),
        Entry("exact_match", is_default_action=True, action=Action("flood", group=3)),
        P4MulticastGroupEntry(5, replicas=[1, 2]),
        P4CounterEntry("seen", index=3, data=P4CounterData(packet_count=4, byte_count=5)),
        P4RegisterEntry("notes", index=3, data=77),
    )
    return [entry.encode(schema) for entry in entries]


def of_externs(schema):
    """Yield entities of the program externs.p4, of each kind that only it has."""
    ids = ids_of(schema.get_pipeline_config().p4info)
    action = p4r.Action(action_id=ids["send"], params=[p4r.Action.Param(param_id=1, value=b"\3")])
    config = p4r.MeterConfig(cir=1, cburst=2, pir=3, pburst=4)
    match = [p4r.FieldMatch(field_id=1, exact={"value": b"\1"})]
    member = p4r.ActionProfileMember(action_profile_id=ids["paths"], member_id=3, action=action)
    group = p4r.ActionProfileGroup(
        action_profile_id=ids["paths"], group_id=7, members=[{"member_id": 3, "weight": 2}]
    )
    actions = [p4r.ActionProfileAction(action=action, weight=1)]
    for choice in (
        {"action_profile_member_id": 3},
        {"action_profile_group_id": 7},
        {"action_profile_action_set": {"action_profile_actions": actions}},
    ):
        entry = p4r.TableEntry(table_id=ids["balanced"], match=match, action=choice, idle_timeout_ns=1)
        yield p4r.Entity(table_entry=entry)
    shaped = p4r.TableEntry(table_id=ids["shaped"], match=match, meter_config=config)
    yield p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry(table_entry=shaped, config=config))
    yield p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=ids["police"], index={"index": 3}, config=config))
    members = [p4r.ValueSetMember(match=match)]
    yield p4r.Entity(value_set_entry=p4r.ValueSetEntry(value_set_id=ids["tagged_keys"], members=members))
    digest = p4r.DigestEntry(digest_id=ids["sighting_t"], config={"max_timeout_ns": 5, "max_list_size": 2})
    yield p4r.Entity(digest_entry=digest)
    yield from (p4r.Entity(action_profile_member=member), p4r.Entity(action_profile_group=group))


@pytest.fixture
def ids(schema):
    return list(ids_of(schema.get_pipeline_config().p4info).values())


def error_of(call):
    """Return the RpcError that a call ends with, or None."""
    with contextlib.suppress(EOFError):
        try:
            call()
        except grpc.RpcError as error:
            return error
    return None


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_random_entities_never_get_a_status_that_means_a_bug(client, ids, good, seed):
    pick = random.Random(seed)
    pick.ids = ids
    request = p4r.WriteRequest(device_id=1, election_id=U128.encode(1))
    for _ in range(pick.randint(1, 4)):
        change = request.updates.add(type=pick.randint(0, 4))
        if pick.random() < 0.3:
            fill(change.entity, pick)
        else:
            change.entity.CopyFrom(pick.choice(good))
            spoil(change.entity, pick)
    error = error_of(lambda: client.stub.Write(request, timeout=WAIT_S))
    if error is not None:
        # A Write's own status is UNKNOWN if updates failed; each update's status has the reason.
        assert error.code().name == "UNKNOWN"
        assert rpc_code.INTERNAL not in {code for code, _ in outcomes(error)}, outcomes(error)
    read = p4r.ReadRequest(device_id=1, entities=[change.entity for change in request.updates])
    error = error_of(lambda: list(client.stub.Read(read, timeout=WAIT_S)))
    assert error is None or error.code().name not in CODES_OF_BUGS, error.details()


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_random_pipelines_never_get_a_status_that_means_a_bug(client, schema, ids, seed):
    pick = random.Random(seed)
    pick.ids = ids
    config = p4r.ForwardingPipelineConfig(p4_device_config=schema.p4blob)
    fill(config.p4info, pick)
    error = error_of(lambda: client.set_pipeline(config, "VERIFY"))
    # None: an empty P4Info is consistent with every program.
    assert error is None or error.code().name in ("INVALID_ARGUMENT", "UNIMPLEMENTED"), error.details()


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_random_stream_messages_do_not_harm_others(client, connect, ids, seed):
    pick = random.Random(seed)
    pick.ids = ids
    message = p4r.StreamMessageRequest()
    fill(message, pick)
    if message.arbitration.election_id.high or message.arbitration.election_id.low:
        message.arbitration.election_id.CopyFrom(U128.encode(1))  # held by the primary, who keeps it
    stream = connect(0).stream()
    stream._outgoing.put(message)
    stream.close()
    error = error_of(lambda: all(stream.receive() for _ in iter(int, 1)))
    assert error is None or error.code().name not in CODES_OF_BUGS, error.details()
    client.write()


@pytest.mark.parametrize("method", ["Write", "SetForwardingPipelineConfig", "GetForwardingPipelineConfig"])
def test_bytes_that_are_no_message_get_a_status(client, method):
    call = client.channel.unary_unary(f"/p4.v1.P4Runtime/{method}")
    with pytest.raises(grpc.RpcError):
        call(b"\xff" * 50, timeout=WAIT_S)
    client.write()


def test_stopping_ends_streams_and_frees_the_port():
    device = Device(mode="python")
    server = serve(device, "127.0.0.1:0")
    client = Client(server.address)
    client.become_primary()
    server.stop()
    with pytest.raises(grpc.RpcError):
        client.primary.receive()
    client.channel.close()
    serve(device, server.address).stop()
    device.close()
