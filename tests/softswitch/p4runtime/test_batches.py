"""Writes of all or none of their updates: ROLLBACK_ON_ERROR and DATAPLANE_ATOMIC."""

import random
from itertools import product
from pathlib import Path
from threading import Thread

import grpc
import pytest
from finsy.p4schema import P4Schema
from finsy.proto import p4r
from p4runtime_client import ids_of, outcomes, status_of, update

from peelsum.softswitch import Frames
from peelsum.softswitch.p4runtime.pipeline import InstalledPipeline
from peelsum.softswitch.p4runtime.status import BatchError, Code, RequestError
from peelsum.softswitch.runtime.device import Device

P4 = Path(__file__).parent / "p4"
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
    schema = P4Schema(P4 / f"{name}.p4info.txtpb", (P4 / f"{name}.json").read_bytes())
    config = schema.get_pipeline_config()
    return InstalledPipeline(config, Device(mode="python")), ids_of(config.p4info)


def state(entities):
    """Return all that can be read. Of entries of one priority, packets hit the first."""
    return [str(entity) for what in ALL for entity in entities.read(what)]


def exact(number):
    return [{"field_id": 1, "exact": {"value": bytes([number])}}]


def action(ids, name, port=None):
    params = [] if port is None else [{"param_id": 1, "value": bytes([port])}]
    return p4r.Action(action_id=ids[name], params=params)


def entities_of_externs(ids):
    """Return entities of each kind that this program has, twice with other values."""
    paths, rates = ids["paths"], [p4r.MeterConfig(cir=1, cburst=size, pir=2, pburst=9) for size in (1, 2)]
    entities = []
    for number, value in product((1, 2), repeat=2):
        shaped = {"table_id": ids["shaped"], "match": exact(number)}
        metered = {"action": {"action": action(ids, "metered", value)}, "meter_config": rates[value - 1]}
        balanced = {"table_id": ids["balanced"], "match": exact(number), "idle_timeout_ns": value}
        member = {"action_profile_id": paths, "member_id": number, "action": action(ids, "send", value)}
        group = {
            "action_profile_id": paths,
            "group_id": number,
            "members": [{"member_id": value, "weight": 3}],
        }
        meter = {"meter_id": ids["police"], "index": {"index": number}, "config": rates[value - 1]}
        entities += [
            {"table_entry": {**shaped, **metered}},
            {"table_entry": {**balanced, "action": {"action_profile_member_id": value}}},
            {"table_entry": {**balanced, "action": {"action_profile_group_id": value}}},
            {"direct_meter_entry": {"table_entry": shaped, "config": rates[value - 1]}},
            {"meter_entry": meter},
            {"action_profile_member": member},
            {"action_profile_group": group},
            {"value_set_entry": {"value_set_id": ids["tagged_keys"], "members": [{"match": exact(value)}]}},
            {"digest_entry": {"digest_id": ids["sighting_t"], "config": {"max_list_size": value}}},
        ]
    return [p4r.Entity(**entity) for entity in entities]


def entities_of_every_match_kind(ids):
    """Return entities of each kind that this program has, twice with other values."""
    entities = []
    for number, value in product((1, 2), repeat=2):
        filtered = {"table_id": ids["filter"], "priority": number, "metadata": bytes([value])}
        ternary = {"field_id": 1, "ternary": {"value": b"\1\0\0\0", "mask": b"\1\0\0\0"}}
        routed = {
            "table_id": ids["route"],
            "match": [{"field_id": 1, "lpm": {"value": b"\1", "prefix_len": 32}}],
        }
        drop, forward = {"action": action(ids, "drop")}, {"action": action(ids, "forward", value)}
        counts, replicas = {"packet_count": value}, [{"port": bytes([value]), "instance": 1}]
        entities += [
            {"table_entry": {**filtered, "action": drop}},
            {"table_entry": {**filtered, "action": drop, "match": [ternary]}},
            {"table_entry": {**routed, "action": forward, "counter_data": counts}},
            {"table_entry": {"table_id": ids["route"], "is_default_action": True, "action": forward}},
            {"table_entry": {"table_id": ids["route"], "is_default_action": True}},
            {"direct_counter_entry": {"table_entry": routed, "data": counts}},
            {"counter_entry": {"counter_id": ids["seen"], "index": {"index": number}, "data": counts}},
            {
                "register_entry": {
                    "register_id": ids["notes"],
                    "index": {"index": number},
                    "data": {"bitstring": bytes([value])},
                }
            },
        ]
        for kind, field in (
            ("multicast_group_entry", "multicast_group_id"),
            ("clone_session_entry", "session_id"),
        ):
            group = {kind: {field: number, "replicas": replicas}}
            entities.append({"packet_replication_engine_entry": group})
    return [p4r.Entity(**entity) for entity in entities]


@pytest.mark.parametrize("atomicity", [ROLLBACK, ATOMIC])
@pytest.mark.parametrize(
    ("program", "entities_of"),
    [("externs", entities_of_externs), ("every_match_kind", entities_of_every_match_kind)],
)
def test_a_batch_that_fails_changes_nothing(program, entities_of, atomicity):
    """Random batches, beside a second switch to which the good ones are written in the usual way."""
    (pipeline, ids), (other, _) = installed(program), installed(program)
    drawn, entities, written, failures = random.Random(atomicity), entities_of(ids), set(), []
    for _ in range(5000):
        batch = [
            p4r.Update(type=drawn.choice([1, 2, 3]), entity=drawn.choice(entities))
            for _ in range(drawn.randint(1, 4))
        ]
        try:
            pipeline.entities.write(batch, atomicity=atomicity)
        except BatchError as error:
            failures.append(error)
        else:
            other.entities.write(batch)
            written |= {(item.type, str(item.entity)) for item in batch}
        assert state(pipeline.entities) == state(other.entities), batch
    assert all(
        [result.code for result in error.results].count(Code.ABORTED) == len(error.results) - 1
        for error in failures
    )
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
    batch = [
        update("INSERT", packet_replication_engine_entry=group),
        update("INSERT", packet_replication_engine_entry=group),
        update("DELETE", packet_replication_engine_entry=group),
    ]
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
