"""Clone sessions over P4Runtime."""

import grpc
import pytest
from finsy.proto import p4r, rpc_code
from p4runtime_client import outcomes


def session(number, *replicas, **fields):
    entry = p4r.CloneSessionEntry(session_id=number, **fields)
    for port, instance in replicas:
        entry.replicas.add(port=bytes([port]), instance=instance)
    return p4r.PacketReplicationEngineEntry(clone_session_entry=entry)


def refusal(client, kind, entry):
    with pytest.raises(grpc.RpcError) as error:
        client.update(kind, packet_replication_engine_entry=entry)
    ((code, message),) = outcomes(error.value)
    return rpc_code.Code.Name(code), message


def read(client, entry):
    return client.read(packet_replication_engine_entry=entry)


def test_a_session_comes_changes_and_goes(client, device):
    wanted = session(5, (1, 0), (2, 7))
    client.update("INSERT", packet_replication_engine_entry=wanted)
    client.update("INSERT", packet_replication_engine_entry=session(100, (3, 0)))
    assert list(device.switch.sessions.get(5)) == [(1, 0), (2, 7)]
    assert refusal(client, "INSERT", wanted)[0] == "ALREADY_EXISTS"
    assert read(client, session(5)) == [wanted]
    client.update("MODIFY", packet_replication_engine_entry=session(5, (9, 1)))
    assert read(client, session(0)) == [session(5, (9, 1)), session(100, (3, 0))]
    client.update("DELETE", packet_replication_engine_entry=session(5))
    assert read(client, session(0)) == [session(100, (3, 0))]
    for kind in ("MODIFY", "DELETE"):
        assert refusal(client, kind, wanted)[0] == "NOT_FOUND"


def test_sessions_and_groups_are_numbered_on_their_own(client, device):
    group = p4r.MulticastGroupEntry(multicast_group_id=5, replicas=[p4r.Replica(port=b"\4")])
    entry = p4r.PacketReplicationEngineEntry(multicast_group_entry=group)
    client.update("INSERT", packet_replication_engine_entry=entry)
    client.update("INSERT", packet_replication_engine_entry=session(5, (1, 0)))
    assert read(client, entry) == [entry]
    assert read(client, session(5)) == [session(5, (1, 0))]
    assert device.switch.groups.get(5) == ((4, 0),)


def test_a_session_written_the_older_way_is_read_back_that_way(client):
    wanted = session(3)
    wanted.clone_session_entry.replicas.add(egress_port=300, instance=1)
    client.update("INSERT", packet_replication_engine_entry=wanted)
    assert read(client, session(3)) == [wanted]
    assert refusal(client, "MODIFY", session(3, (1, 1 << 16)))[0] == "INVALID_ARGUMENT"
    assert read(client, session(3)) == [wanted]
    client.update("MODIFY", packet_replication_engine_entry=session(3, (1, 1)))
    assert read(client, session(3)) == [session(3, (1, 1))]


@pytest.mark.parametrize(
    ("entry", "code", "named"),
    [
        (session(0, (1, 0)), "INVALID_ARGUMENT", "session_id: 0"),
        (session(1 << 15, (1, 0)), "INVALID_ARGUMENT", "session_id: 32768"),
        (session(1, (1, 0), (1, 0)), "INVALID_ARGUMENT", "clone session 1: port 1 instance 0 appears twice"),
        (session(1, (1, 0), packet_length_bytes=64), "UNIMPLEMENTED", "clone session 1: packet_length_bytes"),
        (session(1, (1, 0), class_of_service=1), "UNIMPLEMENTED", "clone session 1: class_of_service"),
    ],
)
def test_what_sessions_refuse(client, entry, code, named):
    found, message = refusal(client, "INSERT", entry)
    assert found == code
    assert named in message
    assert read(client, session(0)) == []


def test_the_largest_number_is_a_session(client):
    client.update("INSERT", packet_replication_engine_entry=session((1 << 15) - 1, (1, 0)))
    assert read(client, session(0)) == [session((1 << 15) - 1, (1, 0))]


def test_reconcile_carries_sessions_over(client, schema, device):
    wanted = session(4, (2, 1))
    client.update("INSERT", packet_replication_engine_entry=wanted)
    running = device.switch
    config = schema.get_pipeline_config()
    config.p4_device_config += b"\n"
    client.set_pipeline(config, "RECONCILE_AND_COMMIT")
    assert device.switch is not running
    assert read(client, session(0)) == [wanted]
    assert device.switch.sessions.get(4) == ((2, 1),)
