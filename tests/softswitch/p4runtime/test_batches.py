"""Writes of all or none of their updates: ROLLBACK_ON_ERROR and DATAPLANE_ATOMIC."""

import random
from threading import Thread

import grpc
import pytest
from finsy.proto import p4r
from p4runtime_client import ids_of, outcomes, status_of, update
from p4runtime_entities import ENTITIES_OF, action, entities_of, exact, schema_of

from peelsum.softswitch import Frames
from peelsum.softswitch.p4runtime.pipeline import InstalledPipeline
from peelsum.softswitch.p4runtime.status import BatchError, Code, RequestError
from peelsum.softswitch.runtime.device import Device

ROLLBACK, ATOMIC = p4r.WriteRequest.ROLLBACK_ON_ERROR, p4r.WriteRequest.DATAPLANE_ATOMIC
ALL = (
    p4r.Entity(table_entry=p4r.TableEntry(counter_data={}, meter_config={})),
    p4r.Entity(table_entry=p4r.TableEntry(is_default_action=True)),
    p4r.Entity(counter_entry=p4r.CounterEntry()),
    p4r.Entity(meter_entry=p4r.MeterEntry()),
    p4r.Entity(register_entry=p4r.RegisterEntry()),
    p4r.Entity(action_profile_member=p4r.ActionProfileMember()),
    p4r.Entity(action_profile_group=p4r.ActionProfileGroup()),
    p4r.Entity(value_set_entry=p4r.ValueSetEntry()),
    p4r.Entity(digest_entry=p4r.DigestEntry()),
    p4r.Entity(packet_replication_engine_entry={"multicast_group_entry": {}}),
    p4r.Entity(packet_replication_engine_entry={"clone_session_entry": {}}),
)


def installed(name):
    """Return the pipeline of a new switch with a program of this folder, and its ids by alias."""
    config = schema_of(name).get_pipeline_config()
    return InstalledPipeline(config, Device(mode="python")), ids_of(config.p4info)


def state(entities):
    """Return all that can be read. Of entries of one priority, packets hit the first."""
    return [str(entity) for what in ALL for entity in entities.read(what)]


@pytest.mark.parametrize("atomicity", [ROLLBACK, ATOMIC])
@pytest.mark.parametrize("program", ENTITIES_OF)
def test_a_batch_that_fails_changes_nothing(program, atomicity):
    """Random batches, beside a second switch to which the good ones are written in the usual way."""
    (pipeline, ids), (other, _) = installed(program), installed(program)
    drawn, entities, written, failures = random.Random(atomicity), entities_of(program, ids), set(), []
    for _ in range(5000):
        kinds = drawn.choices([1, 2, 3], k=drawn.randint(1, 4))
        batch = [p4r.Update(type=kind, entity=drawn.choice(entities)) for kind in kinds]
        try:
            pipeline.entities.write(batch, atomicity=atomicity)
        except BatchError as error:
            failures.append(error)
        else:
            other.entities.write(batch)
            written |= {(item.type, str(item.entity)) for item in batch}
        assert state(pipeline.entities) == state(other.entities), batch
    for error in failures:
        assert [result.code for result in error.results].count(Code.ABORTED) == len(error.results) - 1
    assert len(failures) < 4500
    assert {str(entity) for entity in entities} == {entity for _, entity in written}


def test_an_entry_that_comes_back_is_in_its_place():
    """Of entries of one priority, packets hit the oldest."""
    pipeline, ids = installed("every_match_kind")
    match = [{"field_id": 1, "ternary": {"value": b"\1\0\0\0", "mask": b"\1\0\0\0"}}]
    first, second = (p4r.TableEntry(table_id=ids["filter"], priority=1, match=key) for key in ([], match))
    for entry in (first, second):
        entry.action.action.CopyFrom(action(ids, "drop"))
        pipeline.entities.write([update("INSERT", table_entry=entry)])
    batch = [update("DELETE", table_entry=first), update("INSERT", table_entry=second)]
    with pytest.raises(BatchError):
        pipeline.entities.write(batch, atomicity=ROLLBACK)
    selector = p4r.Entity(table_entry={"table_id": ids["filter"]})
    assert [entity.table_entry for entity in pipeline.read(selector)] == [first, second]


def test_packets_of_the_meantime_stay_counted():
    pipeline, ids = installed("every_match_kind")
    match = [{"field_id": 1, "lpm": {"value": b"\1", "prefix_len": 32}}]
    entry = p4r.TableEntry(table_id=ids["route"], match=match)
    entry.action.action.CopyFrom(action(ids, "forward", 1))
    pipeline.entities.write([update("INSERT", table_entry=entry)])

    def active():
        table = pipeline.switch.tables["MatchEverything.route"]
        table.write_counter(((1, 32),), table.read_counter(((1, 32),))[0] + 1, 0)
        return True

    batch = [update("MODIFY", table_entry=entry), update("INSERT", table_entry=entry)]
    with pytest.raises(BatchError):
        pipeline.entities.write(batch, active, ROLLBACK)
    selector = p4r.TableEntry(table_id=ids["route"], counter_data={})
    (read,) = pipeline.read(p4r.Entity(table_entry=selector))
    assert read.table_entry.counter_data.packet_count == 2


def test_the_failed_update_has_its_code_and_the_others_are_aborted(client):
    group = p4r.PacketReplicationEngineEntry(multicast_group_entry={"multicast_group_id": 7})
    kinds = ("INSERT", "INSERT", "DELETE")
    batch = [update(kind, packet_replication_engine_entry=group) for kind in kinds]
    for atomicity in ("ROLLBACK_ON_ERROR", "DATAPLANE_ATOMIC"):
        with pytest.raises(grpc.RpcError) as error:
            client.write(*batch, atomicity=atomicity)
        names = [Code.ABORTED.value[0], Code.ALREADY_EXISTS.value[0], Code.ABORTED.value[0]]
        assert [code for code, _ in outcomes(error.value)] == names
        assert client.read(packet_replication_engine_entry=group) == []
        client.write(batch[0], batch[2], atomicity=atomicity)
    assert status_of(lambda: client.write(atomicity=3))[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("atomicity", [ROLLBACK, ATOMIC])
def test_a_client_that_cancels_changes_nothing(atomicity):
    pipeline, ids = installed("externs")
    entry = p4r.DigestEntry(digest_id=ids["sighting_t"])
    answers = iter([True, False])
    with pytest.raises(RequestError) as error:
        pipeline.entities.write([update("INSERT", digest_entry=entry)] * 2, lambda: next(answers), atomicity)
    assert error.value.code is Code.CANCELLED
    assert list(pipeline.entities.read(p4r.Entity(digest_entry=p4r.DigestEntry()))) == []


@pytest.mark.parametrize("at_once", [False, True])
def test_packets_see_all_of_an_atomic_batch_or_none(at_once):
    """Between updates, other threads send a packet. Without `at_once`, they see an entry of the old batch."""
    pipeline, ids = installed("externs")
    entry = p4r.TableEntry(table_id=ids["shaped"], match=exact(1))
    entry.action.action.CopyFrom(action(ids, "metered", 2))
    insert, delete = update("INSERT", table_entry=entry), update("DELETE", table_entry=entry)
    pipeline.entities.write([insert])
    frame, ports, threads = bytes([9, 0, 0, 1]) + bytes(16), [], []

    def send():
        sent = pipeline.switch.process(Frames.of([(3, frame)]), 0)
        ports.extend(port for port, _ in sent.pairs())

    def active():
        threads.append(Thread(target=send))
        threads[-1].start()
        threads[-1].join(0.2)
        return True

    pipeline.entities.write([delete, insert] * 2, active, ATOMIC if at_once else ROLLBACK)
    for thread in threads:
        thread.join()
    assert ports == ([2] * 4 if at_once else [2, 1, 2, 1])


def test_secrets_are_not_part_of_such_a_batch(client):
    with pytest.raises(grpc.RpcError) as error:
        client.write(update("INSERT", extern_entry=p4r.ExternEntry()), atomicity="ROLLBACK_ON_ERROR")
    ((code, message),) = outcomes(error.value)
    assert (code, "extern_entry" in message) == (Code.UNIMPLEMENTED.value[0], True)
