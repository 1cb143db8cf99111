"""Multicast groups and clone sessions over P4Runtime: replicas by number, their forms and their bounds."""

import pytest
from finsy.proto import p4r
from p4runtime_client import refusal, update

from peelsum.softswitch.p4runtime.pipeline import InstalledPipeline
from peelsum.softswitch.p4runtime.status import BatchError
from peelsum.softswitch.runtime.device import Device


def group(number, *replicas, older=(), **fields):
    entry = p4r.MulticastGroupEntry(multicast_group_id=number, **fields)
    return p4r.PacketReplicationEngineEntry(multicast_group_entry=filled(entry, replicas, older))


def session(number, *replicas, older=(), **fields):
    entry = p4r.CloneSessionEntry(session_id=number, **fields)
    return p4r.PacketReplicationEngineEntry(clone_session_entry=filled(entry, replicas, older))


def filled(entry, replicas, older):
    """Add replicas, each (port, instance); those in `older` have the older field `egress_port`."""
    for port, instance in replicas:
        entry.replicas.add(port=bytes([port]), instance=instance)
    for port, instance in older:
        entry.replicas.add(egress_port=port, instance=instance)
    return entry


def refused(client, kind, entry):
    return refusal(client, kind, packet_replication_engine_entry=entry)


def write(client, kind, entry):
    client.update(kind, packet_replication_engine_entry=entry)


def read(client, entry):
    return client.read(packet_replication_engine_entry=entry)


either = pytest.mark.parametrize("of", [group, session])


@either
def test_one_comes_changes_and_goes(client, device, of):
    wanted = of(5, (1, 0), (2, 0), (2, 7), **({"metadata": b"kept"} if of is group else {}))
    write(client, "INSERT", wanted)
    write(client, "INSERT", of(100, (3, 0)))
    kept = device.switch.groups if of is group else device.switch.sessions
    assert list(kept.get(5)) == [(1, 0), (2, 0), (2, 7)]
    assert refused(client, "INSERT", wanted)[0] == "ALREADY_EXISTS"
    assert read(client, of(5)) == [wanted]
    write(client, "MODIFY", of(5, (9, 1)))
    write(client, "INSERT", of(4))
    assert read(client, of(0)) == [of(4), of(5, (9, 1)), of(100, (3, 0))]
    write(client, "DELETE", of(5))
    assert (read(client, of(5)), read(client, of(0))) == ([], [of(4), of(100, (3, 0))])
    for kind in ("MODIFY", "DELETE"):
        assert refused(client, kind, wanted)[0] == "NOT_FOUND"


@either
def test_one_is_read_back_in_the_form_it_was_last_written_in(client, of):
    old, new = of(3, older=[(300, 1), (2, 0)]), of(3, (3, 0), (4, 1))
    write(client, "INSERT", old)
    assert read(client, of(3)) == [old]
    write(client, "MODIFY", new)
    assert read(client, of(3)) == [new]
    write(client, "MODIFY", old)
    assert refused(client, "MODIFY", of(3, (1, 1 << 16)))[0] == "INVALID_ARGUMENT"
    assert read(client, of(3)) == [old]
    write(client, "DELETE", old)
    write(client, "INSERT", new)
    assert read(client, of(3)) == [new]


NO_PORT = p4r.MulticastGroupEntry(multicast_group_id=1, replicas=[p4r.Replica(instance=1)])
BACKUP = p4r.Replica(port=b"\1", backup_replicas=[p4r.BackupReplica(port=b"\2")])
WITH_BACKUP = p4r.MulticastGroupEntry(multicast_group_id=1, replicas=[BACKUP])


@pytest.mark.parametrize(
    ("entry", "code", "named"),
    [
        (session(0, (1, 0)), "INVALID_ARGUMENT", "session_id: 0"),
        (session(1 << 15, (1, 0)), "INVALID_ARGUMENT", "session_id: 32768"),
        (session(1, (1, 0), (1, 0)), "INVALID_ARGUMENT", "clone session 1: port 1 instance 0 appears twice"),
        (session(1, (1, 0), packet_length_bytes=64), "UNIMPLEMENTED", "clone session 1: packet_length_bytes"),
        (session(1, (1, 0), class_of_service=1), "UNIMPLEMENTED", "clone session 1: class_of_service"),
        (p4r.PacketReplicationEngineEntry(), "INVALID_ARGUMENT", "give a multicast group or a clone session"),
        (group(0, (1, 0)), "INVALID_ARGUMENT", "multicast_group_id: 0"),
        (group(1 << 16, (1, 0)), "INVALID_ARGUMENT", "multicast_group_id: 65536"),
        (group(1, (1, 0), (1, 0)), "INVALID_ARGUMENT", "multicast group 1: port 1 instance 0 appears twice"),
        (p4r.PacketReplicationEngineEntry(multicast_group_entry=NO_PORT), "INVALID_ARGUMENT", "no port"),
        (p4r.PacketReplicationEngineEntry(multicast_group_entry=WITH_BACKUP), "UNIMPLEMENTED", "backup"),
    ],
)
def test_what_is_refused(client, entry, code, named):
    found, message = refused(client, "INSERT", entry)
    assert found == code
    assert named in message
    assert read(client, session(0)) + read(client, group(0)) == []


@pytest.mark.parametrize("entry", [group(1, (1, 0)), group(65535, (1, 0)), session(32767, (1, 0))])
def test_the_numbers_at_the_ends_are_taken(client, entry):
    write(client, "INSERT", entry)
    assert read(client, group(0)) + read(client, session(0)) == [entry]


def test_copies_leave_by_ports_that_are_there(schema):
    device = Device(mode="python", ports={1, 2})
    entities = InstalledPipeline(schema.get_pipeline_config(), device).entities
    device.close()
    entities.write([update("INSERT", packet_replication_engine_entry=group(1, (1, 0), (2, 0)))])
    with pytest.raises(BatchError, match="port 3 is not on this switch; use one of 1, 2"):
        entities.write([update("MODIFY", packet_replication_engine_entry=group(1, (1, 0), (3, 0)))])
