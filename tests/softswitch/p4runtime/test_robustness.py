"""The server answers any input with a status, continues, and frees its resources."""

import contextlib
import random

import grpc
import pytest
from finsy.proto import U128, p4r, rpc_code
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from p4runtime_client import WAIT_S, Client, ids_of, outcomes
from p4runtime_entities import ENTITIES_OF, entities_of, schema_of

from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.runtime.device import Device

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


@pytest.fixture(scope="module", params=ENTITIES_OF)
def program(request):
    """Return the name of a program; tests run once with each."""
    return request.param


@pytest.fixture(scope="module")
def schema(program):
    return schema_of(program)


@pytest.fixture
def good(program, schema):
    """Return entities that the server accepts."""
    return entities_of(program, ids_of(schema.get_pipeline_config().p4info))


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
