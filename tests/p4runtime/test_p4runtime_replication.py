"""Multicast groups over P4Runtime."""

import pytest
from finsy.proto import p4r
from p4runtime_client import refusal


def group(number, *replicas, **fields):
    entry = p4r.MulticastGroupEntry(multicast_group_id=number, **fields)
    for port, instance in replicas:
        entry.replicas.add(port=bytes([port]), instance=instance)
    return p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)


def refused(client, kind, entry):
    return refusal(client, kind, packet_replication_engine_entry=entry)


def write(client, kind, entry):
    client.update(kind, packet_replication_engine_entry=entry)


def read(client, entry):
    return client.read(packet_replication_engine_entry=entry)


def test_one_comes_changes_and_goes(client, device):
    wanted = group(5, (1, 0), (2, 0), (2, 7), metadata=b"kept")
    write(client, "INSERT", wanted)
    write(client, "INSERT", group(100, (3, 0)))
    assert list(device.switch.groups.get(5)) == [(1, 0), (2, 0), (2, 7)]
    assert refused(client, "INSERT", wanted)[0] == "ALREADY_EXISTS"
    assert read(client, group(5)) == [wanted]
    write(client, "MODIFY", group(5, (9, 1)))
    write(client, "INSERT", group(4))
    assert read(client, group(0)) == [group(4), group(5, (9, 1)), group(100, (3, 0))]
    write(client, "DELETE", group(5))
    assert (read(client, group(5)), read(client, group(0))) == ([], [group(4), group(100, (3, 0))])
    for kind in ("MODIFY", "DELETE"):
        assert refused(client, kind, wanted)[0] == "NOT_FOUND"


def test_one_written_the_older_way_is_read_back_that_way(client):
    wanted = group(3)
    wanted.multicast_group_entry.replicas.add(egress_port=300, instance=1)
    write(client, "INSERT", wanted)
    assert read(client, group(3)) == [wanted]
    assert refused(client, "MODIFY", group(3, (1, 1 << 16)))[0] == "INVALID_ARGUMENT"
    assert read(client, group(3)) == [wanted]
    write(client, "MODIFY", group(3, (1, 1)))
    assert read(client, group(3)) == [group(3, (1, 1))]


NO_PORT = p4r.MulticastGroupEntry(multicast_group_id=1, replicas=[p4r.Replica(instance=1)])


@pytest.mark.parametrize(
    ("entry", "code", "named"),
    [
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
    assert read(client, group(0)) == []


def test_reconcile_carries_them_over(client, schema, device):
    write(client, "INSERT", group(4, (2, 1)))
    running = device.switch
    config = schema.get_pipeline_config()
    config.p4_device_config += b"\n"
    client.set_pipeline(config, "RECONCILE_AND_COMMIT")
    assert device.switch is not running
    assert read(client, group(0)) == [group(4, (2, 1))]
    assert device.switch.groups.get(4) == ((2, 1),)
