"""Multicast groups and clone sessions over P4Runtime: both are replicas by number."""

import pytest
from finsy.proto import p4r
from p4runtime_client import refusal


def group(number, *replicas, **fields):
    entry = p4r.MulticastGroupEntry(multicast_group_id=number, **fields)
    for port, instance in replicas:
        entry.replicas.add(port=bytes([port]), instance=instance)
    return p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)


def session(number, *replicas, **fields):
    entry = p4r.CloneSessionEntry(session_id=number, **fields)
    for port, instance in replicas:
        entry.replicas.add(port=bytes([port]), instance=instance)
    return p4r.PacketReplicationEngineEntry(clone_session_entry=entry)


def refused(client, kind, entry):
    return refusal(client, kind, packet_replication_engine_entry=entry)


def write(client, kind, entry):
    client.update(kind, packet_replication_engine_entry=entry)


def read(client, entry):
    return client.read(packet_replication_engine_entry=entry)


def kept(device, of):
    return device.switch.groups if of is group else device.switch.sessions


either = pytest.mark.parametrize("of", [group, session])


@either
def test_one_comes_changes_and_goes(client, device, of):
    wanted = of(5, (1, 0), (2, 0), (2, 7), **({"metadata": b"kept"} if of is group else {}))
    write(client, "INSERT", wanted)
    write(client, "INSERT", of(100, (3, 0)))
    assert list(kept(device, of).get(5)) == [(1, 0), (2, 0), (2, 7)]
    assert refused(client, "INSERT", wanted)[0] == "ALREADY_EXISTS"
    assert read(client, of(5)) == [wanted]
    write(client, "MODIFY", of(5, (9, 1)))
    write(client, "INSERT", of(4))
    assert read(client, of(0)) == [of(4), of(5, (9, 1)), of(100, (3, 0))]
    write(client, "DELETE", of(5))
    assert (read(client, of(5)), read(client, of(0))) == ([], [of(4), of(100, (3, 0))])
    for kind in ("MODIFY", "DELETE"):
        assert refused(client, kind, wanted)[0] == "NOT_FOUND"


def test_sessions_and_groups_are_numbered_on_their_own(client, device):
    write(client, "INSERT", group(5, (4, 0)))
    write(client, "INSERT", session(5, (1, 0)))
    assert (read(client, group(5)), read(client, session(5))) == ([group(5, (4, 0))], [session(5, (1, 0))])
    assert device.switch.groups.get(5) == ((4, 0),)


@either
def test_one_written_the_older_way_is_read_back_that_way(client, of):
    wanted = of(3)
    entry = wanted.multicast_group_entry if of is group else wanted.clone_session_entry
    entry.replicas.add(egress_port=300, instance=1)
    write(client, "INSERT", wanted)
    assert read(client, of(3)) == [wanted]
    assert refused(client, "MODIFY", of(3, (1, 1 << 16)))[0] == "INVALID_ARGUMENT"
    assert read(client, of(3)) == [wanted]
    write(client, "MODIFY", of(3, (1, 1)))
    assert read(client, of(3)) == [of(3, (1, 1))]


NO_PORT = p4r.MulticastGroupEntry(multicast_group_id=1, replicas=[p4r.Replica(instance=1)])


@pytest.mark.parametrize(
    ("entry", "code", "named"),
    [
        (session(0, (1, 0)), "INVALID_ARGUMENT", "session_id: 0"),
        (session(1 << 15, (1, 0)), "INVALID_ARGUMENT", "session_id: 32768"),
        (session(1, (1, 0), (1, 0)), "INVALID_ARGUMENT", "clone session 1: port 1 instance 0 appears twice"),
        (session(1, (1, 0), packet_length_bytes=64), "UNIMPLEMENTED", "clone session 1: packet_length_bytes"),
        (session(1, (1, 0), class_of_service=1), "UNIMPLEMENTED", "clone session 1: class_of_service"),
        (group(0, (1, 0)), "INVALID_ARGUMENT", "multicast_group_id: 0"),
        (group(1 << 16, (1, 0)), "INVALID_ARGUMENT", "multicast_group_id: 65536"),
        (group(1, (1, 0), (1, 0)), "INVALID_ARGUMENT", "multicast group 1: port 1 instance 0 appears twice"),
        (p4r.PacketReplicationEngineEntry(multicast_group_entry=NO_PORT), "INVALID_ARGUMENT", "no port"),
    ],
)
def test_what_is_refused(client, entry, code, named):
    found, message = refused(client, "INSERT", entry)
    assert found == code
    assert named in message
    assert read(client, session(0)) + read(client, group(0)) == []


def test_the_largest_number_is_a_session(client):
    write(client, "INSERT", session((1 << 15) - 1, (1, 0)))
    assert read(client, session(0)) == [session((1 << 15) - 1, (1, 0))]


@either
def test_reconcile_carries_them_over(client, schema, device, of):
    write(client, "INSERT", of(4, (2, 1)))
    running = device.switch
    config = schema.get_pipeline_config()
    config.p4_device_config += b"\n"
    client.set_pipeline(config, "RECONCILE_AND_COMMIT")
    assert device.switch is not running
    assert read(client, of(0)) == [of(4, (2, 1))]
    assert kept(device, of).get(4) == ((2, 1),)
