"""Meters, digests, action profiles, value sets and idle time-outs over P4Runtime."""

import json
import struct

import pytest
from finsy.proto import p4d, p4r, p4t, rpc_code
from p4runtime_client import ids_of, process, refusal, update
from p4runtime_entities import action, exact, schema_of

from peelsum.softswitch import Frames
from peelsum.softswitch.p4runtime.entities import Entities
from peelsum.softswitch.p4runtime.notifications import notify
from peelsum.softswitch.p4runtime.pipeline import InstalledPipeline, verify
from peelsum.softswitch.p4runtime.status import BatchError, Code, RequestError

SECOND = 10**9
DIGEST, METER, TABLES = 1, 2, 9


@pytest.fixture(scope="session")
def schema():
    """Return the program of externs.p4, in place of the one that other tests use."""
    return schema_of("externs")


@pytest.fixture
def ids(schema):
    return ids_of(schema.get_pipeline_config().p4info)


class Clock:
    """A clock that tests set."""

    now = 5 * SECOND

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def entities(schema, device, clock):
    """Return the entities of a switch without a server, whose time-outs go by `clock`."""
    info, program = verify(schema.get_pipeline_config())
    device.install(device.build(program))
    return Entities(info, device.switch, ports={1, 2, 3}, clock=clock)


def read(entities, **selector):
    (name,) = selector
    return [getattr(entity, name) for entity in entities.read(p4r.Entity(**selector))]


def code_of(entities, kind, **entity):
    """Return the code with which an update is refused; OK if it is not."""
    try:
        entities.write([update(kind, **entity)])
    except BatchError as error:
        return error.results[0].code.name
    return "OK"


def packet(command, key=0, flow=0):
    return struct.pack(">BBHIIQ", command, key, flow, 0, 0, 0)


def send(entities, device, *frames, port=1, now=0):
    return device.switch.process(Frames.of([(port, frame) for frame in frames]), now).pairs()


# --- meters ---------------------------------------------------------------------------------------


def test_meters_are_configured_read_and_reset(client, ids, device):
    config = p4r.MeterConfig(cir=10, cburst=2, pir=20, pburst=3)
    entry = p4r.MeterEntry(meter_id=ids["police"], index={"index": 4}, config=config)
    client.update("MODIFY", meter_entry=entry)
    assert client.read(meter_entry=p4r.MeterEntry(meter_id=ids["police"], index={"index": 4})) == [entry]
    assert len(client.read(meter_entry=p4r.MeterEntry())) == 8
    sent = process(device, [packet(METER, 4)] * 4)
    assert [frame[-1] for _, frame in sent] == [0, 0, 1, 2]
    entry.ClearField("config")
    client.update("MODIFY", meter_entry=entry)
    assert client.read(meter_entry=entry) == [entry]
    for wrong, code in (
        ({"index": {"index": 8}}, "OUT_OF_RANGE"),
        ({"config": p4r.MeterConfig(cir=2, pir=1)}, "INVALID_ARGUMENT"),
        ({"config": p4r.MeterConfig(cir=-1)}, "INVALID_ARGUMENT"),
        ({"config": p4r.MeterConfig(cburst=-1)}, "INVALID_ARGUMENT"),
        ({"config": p4r.MeterConfig(eburst=1)}, "INVALID_ARGUMENT"),
        ({"counter_data": p4r.MeterCounterData()}, "UNIMPLEMENTED"),
    ):
        fields = {"meter_id": ids["police"], "index": {"index": 4}, **wrong}
        assert refusal(client, "MODIFY", meter_entry=p4r.MeterEntry(**fields))[0] == code
    assert refusal(client, "INSERT", meter_entry=entry)[0] == "INVALID_ARGUMENT"


def shaped(ids, flow, **fields):
    entry = p4r.TableEntry(table_id=ids["shaped"], **fields)
    entry.match.add(field_id=1).exact.value = bytes([flow])
    entry.action.action.action_id = ids["metered"]
    entry.action.action.params.add(param_id=1, value=b"\3")
    return entry


def test_a_direct_meter_belongs_to_its_entry(client, ids, device):
    rates = p4r.MeterConfig(cir=1, cburst=20, pir=1, pburst=20)
    client.update("INSERT", table_entry=shaped(ids, 7, meter_config=rates))
    client.update("INSERT", table_entry=shaped(ids, 8))
    assert [frame[-1] for _, frame in process(device, [packet(TABLES, 0, 7)] * 2)] == [0, 2]
    all_meters = p4r.DirectMeterEntry()
    entries = [shaped(ids, 7), shaped(ids, 8)]
    meters = [p4r.DirectMeterEntry(table_entry=entry) for entry in entries]
    meters[0].config.CopyFrom(rates)
    assert client.read(direct_meter_entry=all_meters) == meters
    asked = shaped(ids, 7, meter_config={})
    asked.ClearField("action")
    assert client.read(table_entry=asked) == [shaped(ids, 7, meter_config=rates)]
    client.update("MODIFY", direct_meter_entry=p4r.DirectMeterEntry(table_entry=entries[1], config=rates))
    client.update("MODIFY", table_entry=entries[0])
    meters[0].ClearField("config")
    meters[1].config.CopyFrom(rates)
    assert client.read(direct_meter_entry=all_meters) == meters
    wrong = shaped(ids, 10, meter_config=p4r.MeterConfig(cir=2, pir=1))
    assert refusal(client, "INSERT", table_entry=wrong)[0] == "INVALID_ARGUMENT"
    assert client.read(direct_meter_entry=all_meters) == meters, "nothing was inserted"
    absent = p4r.DirectMeterEntry(table_entry=shaped(ids, 9), config=rates)
    assert refusal(client, "MODIFY", direct_meter_entry=absent)[0] == "NOT_FOUND"
    assert refusal(client, "INSERT", direct_meter_entry=absent)[0] == "INVALID_ARGUMENT"
    other = p4r.DirectMeterEntry(table_entry=p4r.TableEntry(table_id=ids["balanced"]))
    assert refusal(client, "MODIFY", direct_meter_entry=other)[0] == "INVALID_ARGUMENT"


# --- action profiles ------------------------------------------------------------------------------


def member(ids, number, port):
    chosen = action(ids, "send", port)
    return p4r.ActionProfileMember(action_profile_id=ids["paths"], member_id=number, action=chosen)


def group(ids, number, *members, **fields):
    entry = p4r.ActionProfileGroup(action_profile_id=ids["paths"], group_id=number, **fields)
    for name, weight, port in members:
        entry.members.add(member_id=name, weight=weight, watch_port=port or None)
    return entry


def balanced(ids, key, **choice):
    entry = p4r.TableEntry(table_id=ids["balanced"], action=p4r.TableAction(**choice))
    entry.match.add(field_id=1).exact.value = bytes([key])
    return entry


def test_members_groups_and_entries_that_use_them(entities, device, ids):
    two, one = (2, 3, b"\2"), (1, 1, b"")
    whole = group(ids, 9, two, one)
    for kind, expected, entity in (
        ("INSERT", "NOT_FOUND", {"action_profile_group": whole}),
        ("INSERT", "OK", {"action_profile_member": member(ids, 1, 10)}),
        ("INSERT", "OK", {"action_profile_member": member(ids, 2, 20)}),
        ("INSERT", "ALREADY_EXISTS", {"action_profile_member": member(ids, 1, 10)}),
        ("MODIFY", "NOT_FOUND", {"action_profile_member": member(ids, 3, 10)}),
        ("INSERT", "OK", {"action_profile_group": whole}),
        ("INSERT", "ALREADY_EXISTS", {"action_profile_group": whole}),
        ("MODIFY", "INVALID_ARGUMENT", {"action_profile_group": group(ids, 9, two, max_size=4)}),
        ("MODIFY", "INVALID_ARGUMENT", {"action_profile_group": group(ids, 9, (1, 0, b""))}),
        ("MODIFY", "INVALID_ARGUMENT", {"action_profile_group": group(ids, 9, (1, 1, b"\7"))}),
        ("MODIFY", "INVALID_ARGUMENT", {"action_profile_group": group(ids, 9, one, one)}),
        ("MODIFY", "NOT_FOUND", {"action_profile_group": group(ids, 8, one)}),
        ("MODIFY", "OK", {"action_profile_group": group(ids, 9, (2, 3, b"\0\2"), one)}),
        ("INSERT", "OK", {"table_entry": balanced(ids, 1, action_profile_group_id=9)}),
        ("INSERT", "OK", {"table_entry": balanced(ids, 2, action_profile_member_id=2)}),
        ("INSERT", "NOT_FOUND", {"table_entry": balanced(ids, 3, action_profile_member_id=9)}),
        ("INSERT", "INVALID_ARGUMENT", {"table_entry": balanced(ids, 3, action=action(ids, "send", 1))}),
        ("DELETE", "FAILED_PRECONDITION", {"action_profile_member": member(ids, 2, 1)}),
        ("DELETE", "FAILED_PRECONDITION", {"action_profile_member": member(ids, 1, 1)}),
        ("DELETE", "FAILED_PRECONDITION", {"action_profile_group": whole}),
        ("INSERT", "INVALID_ARGUMENT", {"action_profile_member": member(ids, 0, 1)}),
    ):
        assert code_of(entities, kind, **entity) == expected, (kind, entity)
    assert read(entities, action_profile_group=p4r.ActionProfileGroup()) == [whole]
    assert read(entities, action_profile_member=p4r.ActionProfileMember(member_id=2)) == [member(ids, 2, 20)]
    entries = [balanced(ids, 1, action_profile_group_id=9), balanced(ids, 2, action_profile_member_id=2)]
    assert read(entities, table_entry={"table_id": ids["balanced"]}) == entries
    ports = ports_of_flows(entities, device)
    assert (set(ports), 0.7 < ports.count(20) / len(ports) < 0.8) == ({10, 20}, True), "a weight of 3 of 4"
    assert code_of(entities, "MODIFY", action_profile_member=member(ids, 2, 30)) == "OK"
    assert {port for port, _ in send(entities, device, packet(TABLES, 2))} == {30}
    assert code_of(entities, "DELETE", table_entry=balanced(ids, 1)) == "OK"
    assert code_of(entities, "DELETE", action_profile_group=whole) == "OK"
    assert code_of(entities, "DELETE", action_profile_member=member(ids, 1, 1)) == "OK"


def ports_of_flows(entities, device):
    """Return the ports by which 403 flows leave."""
    flows = [packet(TABLES, 1, flow) for flow in range(0, 1 << 16, 163)]
    return [port for port, _ in send(entities, device, *flows)]


def action_set(ids, *actions):
    chosen = p4r.ActionProfileActionSet()
    for port, weight in actions:
        chosen.action_profile_actions.add(action=action(ids, "send", port), weight=weight, watch_port=b"\1")
    return {"action_profile_action_set": chosen}


def test_action_sets_are_written_and_read_as_they_are(entities, device, ids):
    entry = balanced(ids, 1, **action_set(ids, (10, 3), (20, 1)))
    assert code_of(entities, "INSERT", table_entry=entry) == "OK"
    assert read(entities, table_entry=p4r.TableEntry(table_id=ids["balanced"])) == [entry]
    assert read(entities, action_profile_member=p4r.ActionProfileMember()) == []
    ports = ports_of_flows(entities, device)
    assert 0.7 < ports.count(10) / len(ports) < 0.8
    smaller = balanced(ids, 1, **action_set(ids, (20, 1)))
    assert code_of(entities, "MODIFY", table_entry=smaller) == "OK"
    assert {port for port, _ in send(entities, device, packet(TABLES, 1, 5))} == {20}
    for actions, code in (
        ([(1, 0)], "INVALID_ARGUMENT"),
        ([(1, (1 << 31) - 1)], "RESOURCE_EXHAUSTED"),
        ([(port, 1) for port in range(17)], "RESOURCE_EXHAUSTED"),
    ):
        refused = balanced(ids, 2, **action_set(ids, *actions))
        assert code_of(entities, "INSERT", table_entry=refused) == code


def test_members_whose_watched_port_is_down_are_not_chosen(schema, ids, device):
    up = {1, 2}
    device.port_is_up = up.__contains__
    pipeline = InstalledPipeline(schema.get_pipeline_config(), device)
    entities, profile = pipeline.entities, pipeline.switch.profiles["ExternsIngress.paths"]
    for number in (1, 2, 3):
        assert code_of(entities, "INSERT", action_profile_member=member(ids, number, 10 * number)) == "OK"
    watching = group(ids, 9, (1, 2, b"\1"), (2, 1, b"\2"), (3, 1, b""))
    assert code_of(entities, "INSERT", action_profile_group=watching) == "OK"
    entries = [
        balanced(ids, 1, action_profile_group_id=9),
        balanced(ids, 2, **action_set(ids, (40, 1), (50, 1))),  # both watch port 1
    ]
    for entry in entries:
        assert code_of(entities, "INSERT", table_entry=entry) == "OK"

    def chosen(key):
        pipeline.check_ports()
        frames = [(0, packet(TABLES, key, flow)) for flow in range(0, 1 << 16, 163)]
        sent = [port for port, _ in pipeline.switch.process(Frames.of(frames), 0).pairs()]
        return {port: round(4 * sent.count(port) / len(sent)) for port in sent}

    assert (chosen(1), chosen(2)) == ({10: 2, 20: 1, 30: 1}, {40: 2, 50: 2})
    untouched = chosen(0)  # what the table does without a choice
    up.discard(1)
    assert (chosen(1), chosen(2)) == ({20: 2, 30: 2}, untouched)
    assert profile.watched_ports == {1, 2}
    # A list keeps the room of members that are down, also while it moves.
    fill = group(ids, 10, (3, 20, b""))
    for kind in ("INSERT", "DELETE") * 20:
        assert code_of(entities, kind, action_profile_group=fill) == "OK"
    assert (chosen(1), chosen(2)) == ({20: 2, 30: 2}, untouched)
    assert read(entities, action_profile_group=p4r.ActionProfileGroup()) == [watching]
    assert read(entities, table_entry=p4r.TableEntry(table_id=ids["balanced"])) == entries
    assert code_of(entities, "DELETE", action_profile_member=member(ids, 1, 10)) == "FAILED_PRECONDITION"
    up.add(1)
    assert (chosen(1), chosen(2)) == ({10: 2, 20: 1, 30: 1}, {40: 2, 50: 2})


# --- value sets -----------------------------------------------------------------------------------


def value_set(ids, *values):
    members = [{"match": exact(value)} for value in values]
    return p4r.ValueSetEntry(value_set_id=ids["tagged_keys"], members=members)


def test_value_sets_are_replaced_as_a_whole(entities, device, ids):
    entry = value_set(ids, 5, 6)
    assert code_of(entities, "MODIFY", value_set_entry=entry) == "OK"
    assert read(entities, value_set_entry=p4r.ValueSetEntry()) == [entry]
    frame = packet(METER, 6) + b"\1\2\3\4"
    assert send(entities, device, frame) == [(1, b"\1\2\3\4" + frame[:-4])]
    for kind, wrong, code in (
        ("INSERT", entry, "INVALID_ARGUMENT"),
        ("MODIFY", value_set(ids, 1, 1), "ALREADY_EXISTS"),
        ("MODIFY", value_set(ids, *range(5)), "RESOURCE_EXHAUSTED"),
    ):
        assert code_of(entities, kind, value_set_entry=wrong) == code
    assert read(entities, value_set_entry={"value_set_id": ids["tagged_keys"]}) == [entry]
    with pytest.raises(RequestError):
        read(entities, value_set_entry=entry)


# --- digests --------------------------------------------------------------------------------------


def config(ids, timeout=SECOND, size=3, ack=4 * SECOND):
    times = {"max_timeout_ns": timeout, "max_list_size": size, "ack_timeout_ns": ack}
    return p4r.DigestEntry(digest_id=ids["sighting_t"], config=times)


def sighting(flow, port=1):
    members = [p4d.P4Data(bitstring=value) for value in (flow.to_bytes(1, "big"), bytes([port]), b"\0")]
    return p4d.P4Data(struct=p4d.P4StructLike(members=members))


def lists(entities):
    return [(item.list_id, list(item.data)) for item in entities.digests.lists()]


def test_digests_are_sent_in_lists_that_are_full_or_old(entities, device, ids, clock):
    assert code_of(entities, "MODIFY", digest_entry=config(ids)) == "NOT_FOUND"
    send(entities, device, packet(DIGEST, 0, 100))
    assert lists(entities) == [], "it is not enabled"
    assert code_of(entities, "INSERT", digest_entry=config(ids)) == "OK"
    assert code_of(entities, "INSERT", digest_entry=config(ids)) == "ALREADY_EXISTS"
    assert read(entities, digest_entry=p4r.DigestEntry()) == [config(ids)]
    send(entities, device, *[packet(DIGEST, 0, flow) for flow in (1, 2, 1, 3, 4)])
    assert lists(entities) == [(1, [sighting(1), sighting(2), sighting(3)])]
    clock.now += SECOND - 1
    assert lists(entities) == []
    clock.now += 1
    assert lists(entities) == [(2, [sighting(4)])]
    send(entities, device, packet(DIGEST, 0, 1), packet(DIGEST, 0, 4))
    clock.now += SECOND
    assert lists(entities) == [], "the same data waits for acknowledgements"
    entities.digests.acknowledge(p4r.DigestListAck(digest_id=ids["sighting_t"], list_id=1))
    entities.digests.acknowledge(p4r.DigestListAck(digest_id=ids["sighting_t"], list_id=77))
    send(entities, device, packet(DIGEST, 0, 1), packet(DIGEST, 0, 4))
    assert lists(entities) == []
    clock.now += 3 * SECOND
    assert lists(entities) == [(3, [sighting(1)])]
    send(entities, device, packet(DIGEST, 0, 4))
    clock.now += SECOND
    lists(entities)
    clock.now += SECOND
    assert lists(entities) == [(4, [sighting(4)])], "the time for the acknowledgement is over"


def test_digests_that_nobody_acknowledges_are_forgotten_after_many(entities, device, ids):
    settings = config(ids, timeout=0, size=1 << 30, ack=1 << 60)
    assert code_of(entities, "INSERT", digest_entry=settings) == "OK"
    waiting, seen = device.switch.messages.digests, []
    for first in range(0, 40_000, 1000):
        waiting.extend(("sighting_t", (flow, 1, 0)) for flow in [0, *range(first, first + 1000)])
        seen += [len(item.data) for item in entities.digests.lists()]
    assert seen == [1] * 40_002, "the first was sent again, twice"


def test_a_list_has_a_limit(entities, device, ids):
    assert code_of(entities, "INSERT", digest_entry=config(ids, size=1 << 30)) == "OK"
    device.switch.messages.digests.extend(("sighting_t", (flow, 1, 0)) for flow in range(3000))
    assert [len(item.data) for item in entities.digests.lists()] == [1024, 1024]


def test_a_list_that_nobody_received_does_not_wait_for_an_acknowledgement(schema, device, ids):
    received = []
    pipeline = InstalledPipeline(schema.get_pipeline_config(), device)
    entry = config(ids, timeout=0, ack=1 << 60)
    pipeline.entities.write([update("INSERT", digest_entry=entry)])
    for _ in range(3):
        pipeline.switch.process(Frames.of([(1, packet(DIGEST, 0, 7))]), 0)
        notify(pipeline, lambda message: received.append(message) or len(received) > 1)
    assert len(received) == 2


@pytest.mark.parametrize("settings", [{"timeout": 0}, {"size": 1}])
def test_a_digest_may_be_sent_at_once(entities, device, ids, settings):
    assert code_of(entities, "INSERT", digest_entry=config(ids, **settings)) == "OK"
    send(entities, device, packet(DIGEST, 0, 1), packet(DIGEST, 0, 2))
    assert [data for _, data in lists(entities)] == [[sighting(1)], [sighting(2)]]
    assert code_of(entities, "DELETE", digest_entry=config(ids)) == "OK"
    send(entities, device, packet(DIGEST, 0, 3))
    assert lists(entities) == []


def test_reconcile_keeps_externs_and_acknowledgements_are_for_its_pipeline(client, schema, device, ids):
    config_ = schema.get_pipeline_config()
    client.update("MODIFY", value_set_entry=value_set(ids, 5, 6))
    client.update("INSERT", digest_entry=config(ids, timeout=0))
    client.update("INSERT", table_entry=balanced(ids, 1, **action_set(ids, (10, 3), (20, 1))))
    rates = p4r.MeterConfig(cir=10, cburst=2, pir=20, pburst=3)
    meter = p4r.MeterEntry(meter_id=ids["police"], index={"index": 4}, config=rates)
    client.update("MODIFY", meter_entry=meter)
    meters = client.read(meter_entry=p4r.MeterEntry())
    client.set_pipeline(config_, "RECONCILE_AND_COMMIT")
    assert client.read(meter_entry=p4r.MeterEntry()) == meters
    assert [meter.index.index for meter in meters if meter.HasField("config")] == [4]
    assert client.read(value_set_entry=p4r.ValueSetEntry()) == [value_set(ids, 5, 6)]
    assert client.read(digest_entry=p4r.DigestEntry()) == [config(ids, timeout=0)]
    process(device, [packet(DIGEST, 0, 7)])
    digest = client.primary.receive().digest
    assert (digest.digest_id, list(digest.data)) == (ids["sighting_t"], [sighting(7, port=255)])
    client.set_pipeline(config_, "VERIFY_AND_SAVE")
    client.primary.send(digest_ack=p4r.DigestListAck(digest_id=ids["sighting_t"], list_id=digest.list_id))
    client.primary.send(digest_ack=p4r.DigestListAck(digest_id=3))
    error = client.primary.receive().error
    assert error.canonical_code == rpc_code.INVALID_ARGUMENT
    assert error.HasField("digest_list_ack")
    process(device, [packet(DIGEST, 0, 7)])
    assert list(client.primary.receive().digest.data) == [sighting(7, port=255)]


# --- idle time-outs -------------------------------------------------------------------------------


def idle(ids, key, timeout_s, **fields):
    entry = balanced(ids, key, action_profile_member_id=1)
    entry.MergeFrom(p4r.TableEntry(**{"idle_timeout_ns": int(timeout_s * SECOND), **fields}))
    return entry


def expired(entities):
    notification = entities.tables.expired()
    return [entry.match[0].exact.value[0] for entry in notification.table_entry] if notification else []


def test_an_entry_that_is_not_hit_expires_again_and_again(entities, device, ids, clock):
    entities.write([update("INSERT", action_profile_member=member(ids, 1, 9))])
    entries = [idle(ids, 1, 2, metadata=b"mine"), idle(ids, 2, 3), idle(ids, 3, 0)]
    entities.write([update("INSERT", table_entry=entry) for entry in entries])
    assert read(entities, table_entry=p4r.TableEntry(table_id=ids["balanced"])) == entries
    clock.now += 2 * SECOND - 1
    assert expired(entities) == []
    send(entities, device, packet(TABLES, 2))
    clock.now += 1
    notification = entities.tables.expired()
    (entry,) = notification.table_entry
    entry.action.CopyFrom(entries[0].action)
    assert entry == entries[0]
    assert notification.timestamp > 0
    clock.now += 2 * SECOND
    assert expired(entities) == [1], "after another time-out"
    selector = p4r.TableEntry(table_id=ids["balanced"], time_since_last_hit={})
    elapsed = [entry.time_since_last_hit.elapsed_ns for entry in read(entities, table_entry=selector)]
    assert elapsed == [4 * SECOND, 2 * SECOND, 4 * SECOND]
    clock.now += SECOND
    assert expired(entities) == [2]
    assert code_of(entities, "MODIFY", table_entry=idle(ids, 2, 0)) == "OK"
    assert code_of(entities, "DELETE", table_entry=entries[0]) == "OK"
    clock.now += 99 * SECOND
    assert expired(entities) == []
    for wrong in ({"idle_timeout_ns": -1}, {"time_since_last_hit": {}}):
        assert code_of(entities, "MODIFY", table_entry=idle(ids, 2, 0, **wrong)) == "INVALID_ARGUMENT"


def test_a_later_entry_may_expire_earlier(entities, ids, clock):
    entities.write([update("INSERT", action_profile_member=member(ids, 1, 9))])
    for key, timeout_s in ((1, 0), (2, 9), (3, 1)):
        entities.write([update("INSERT", table_entry=idle(ids, key, timeout_s))])
        assert expired(entities) == []
    assert code_of(entities, "MODIFY", table_entry=idle(ids, 2, 2)) == "OK"
    for keys in ([3], [2, 3], [3]):
        clock.now += SECOND
        assert expired(entities) == keys


def test_the_primary_is_notified_of_expired_entries(client, ids):
    client.update("INSERT", action_profile_member=member(ids, 1, 9))
    client.update("INSERT", table_entry=idle(ids, 1, 0.02))
    notification = client.primary.receive().idle_timeout_notification
    assert [entry.match[0].exact.value for entry in notification.table_entry] == [b"\1"]


# --- types ----------------------------------------------------------------------------------------


def with_digest(schema, elements, name, type_spec):
    """Return the configuration with a digest of some of its fields, as p4c would write it."""
    config = schema.get_pipeline_config()
    document = json.loads(config.p4_device_config)
    (digest,) = document["learn_lists"]
    digest["name"] = name
    digest["elements"] = [digest["elements"][place] for place in elements]
    config.p4_device_config = json.dumps(document).encode()
    config.p4info.digests[0].type_spec.CopyFrom(type_spec)
    return config


def numbers(*members):
    made = p4t.P4StructTypeSpec()
    for place, member in members:
        made.members.add(name=f"m{place}", type_spec=member)
    return made


BIT16 = p4t.P4DataTypeSpec(bitstring={"bit": {"bitwidth": 16}})


def sent_digest(config, device, ids):
    pipeline = InstalledPipeline(config, device)
    settings = p4r.DigestEntry(digest_id=ids["sighting_t"], config={"max_list_size": 1})
    pipeline.entities.write([update("INSERT", digest_entry=settings)])
    pipeline.switch.process(Frames.of([(1, packet(DIGEST, 0, 7))]), 0)
    pipeline.switch.take_messages()
    (sent,) = pipeline.entities.digests.lists()
    return list(sent.data)


def test_a_digest_of_one_number_has_another_name_in_the_program(schema, device, ids):
    config = with_digest(schema, [0], "digest", BIT16)
    config.p4info.digests[0].preamble.name = "digest_0"
    assert sent_digest(config, device, ids) == [p4d.P4Data(bitstring=b"\7")]


def test_a_digest_may_have_an_enum_and_a_new_type(schema, device, ids):
    config = with_digest(schema, [0, 1], "sighting_t", p4t.P4DataTypeSpec(struct={"name": "s"}))
    kinds = ("new_type", "serializable_enum")
    members = [(place, p4t.P4DataTypeSpec(**{kind: {"name": "t"}})) for place, kind in enumerate(kinds)]
    config.p4info.type_info.structs["s"].CopyFrom(numbers(*members))
    config.p4info.type_info.new_types["t"].original_type.CopyFrom(BIT16)
    expected = p4d.P4Data()
    expected.struct.members.extend([p4d.P4Data(bitstring=b"\7"), p4d.P4Data(enum_value=b"\1")])
    assert sent_digest(config, device, ids) == [expected]
    config.p4info.type_info.structs["s"].CopyFrom(numbers((0, BIT16), (1, p4t.P4DataTypeSpec(error={}))))
    with pytest.raises(RequestError, match="other types than numbers"):
        InstalledPipeline(config, device)


def test_a_value_set_of_an_enum_has_one_field(schema, device, ids):
    config = schema.get_pipeline_config()
    (value_set_info,) = config.p4info.value_sets
    for number in (2, 3):  # p4c writes the enum's members
        value_set_info.match.add(id=number, name=f"member_{number}", bitwidth=8, match_type=2)
    entities = InstalledPipeline(config, device).entities
    entry = value_set(ids, 5, 6)
    assert code_of(entities, "MODIFY", value_set_entry=entry) == "OK"
    assert read(entities, value_set_entry=p4r.ValueSetEntry()) == [entry]


# --- configurations -------------------------------------------------------------------------------


def test_p4info_and_program_must_agree_about_externs(schema, device):
    def without(name):
        config = schema.get_pipeline_config()
        item = getattr(config.p4info, name)[0]
        item.preamble.name += "_else"
        return config

    for name in ("action_profiles", "meters", "direct_meters", "value_sets", "digests"):
        with pytest.raises(RequestError) as error:
            InstalledPipeline(without(name), device)
        assert error.value.code is Code.INVALID_ARGUMENT, name
