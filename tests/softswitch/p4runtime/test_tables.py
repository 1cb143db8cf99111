import grpc
import pytest
from finsy.p4entity import P4TableAction as Action
from finsy.p4entity import P4TableEntry as Entry
from finsy.p4entity import P4TableMatch as Match
from finsy.proto import p4r, rpc_code
from p4runtime_client import outcomes, refusal, update

EXACT = Entry(
    "exact_match",
    match=Match({"hdr.ethernet.dst": 0x020000000001, "standard_metadata.ingress_port": 3}),
    action=Action("forward", port=7),
)
ROUTE = Entry("route", match=Match({"hdr.ipv4.dst": "10.1.0.0/16"}), action=Action("forward", port=300))
FILTER = Entry(
    "filter",
    match=Match({"hdr.ipv4.src": "10.0.0.0/&255.0.255.0", "hdr.ipv4.protocol": 17, "hdr.ipv4.ttl": "2...9"}),
    action=Action("drop"),
    priority=10,
)


def entity(entry, schema):
    return entry.encode_entry(schema)


def code_of_one(client, kind, entry):
    return refusal(client, kind, table_entry=entry)[0]


def ttl(values):
    return Entry("filter", match=Match({"hdr.ipv4.ttl": values}), action=Action("drop"), priority=1)


def prefix(address):
    return Entry("route", match=Match({"hdr.ipv4.dst": address}), action=Action("drop"))


WRITTEN = {
    "exact": EXACT,
    "lpm": ROUTE,
    "ternary optional range": FILTER,
    "omitted fields": Entry("filter", action=Action("drop"), priority=1),
    **{f"ttl {values}": ttl(values) for values in ("0...254", "1...255", "0...0", "255...255", "9...9")},
    **{address: prefix(address) for address in ("128.0.0.0/1", "255.255.255.254/31", "255.255.255.254/32")},
}


@pytest.mark.parametrize("entry", WRITTEN.values(), ids=WRITTEN)
def test_what_was_written_is_read_back(client, schema, entry):
    written = entity(entry, schema)
    written.metadata = b"kept"
    client.update("INSERT", table_entry=written)
    assert client.read(table_entry=written) == [written]
    assert client.read(table_entry=p4r.TableEntry(table_id=written.table_id)) == [written]
    other = p4r.TableEntry()
    other.CopyFrom(written)
    other.metadata = b"not kept"
    assert code_of_one(client, "INSERT", other) == "ALREADY_EXISTS"
    assert client.read(table_entry=written) == [written]
    client.update("DELETE", table_entry=written)
    assert client.read(table_entry=written) == []
    assert code_of_one(client, "DELETE", written) == "NOT_FOUND"
    assert code_of_one(client, "MODIFY", written) == "NOT_FOUND"


def test_the_switch_holds_what_was_written(client, schema, device):
    for entry in (EXACT, ROUTE, FILTER):
        client.update("INSERT", table_entry=entity(entry, schema))
    tables = device.switch.tables
    (row,) = tables["MatchEverything.exact_match"].entries()
    assert (row.keys, row.action, row.params) == ((0x020000000001, 3), "MatchEverything.forward", (7,))
    (row,) = tables["MatchEverything.route"].entries()
    assert row.keys == ((0x0A010000, 16),)
    (row,) = tables["MatchEverything.filter"].entries()
    assert row.keys == ((0x0A000000, 0xFF00FF00), (17, 0xFF), (2, 9))
    assert row.priority == 10


def test_reading_everything_includes_const_entries(client, schema):
    client.update("INSERT", table_entry=entity(ROUTE, schema))
    names = [schema.tables[entry.table_id].alias for entry in client.read(table_entry=p4r.TableEntry())]
    assert sorted(names) == ["fixed", "fixed", "route"]
    fixed = client.read(table_entry=p4r.TableEntry(table_id=schema.tables["fixed"].id))
    assert all(entry.is_const for entry in fixed)
    drop = entity(Entry("fixed", action=Action("drop")), schema)
    assert [entry.match[0].exact.value for entry in client.read(table_entry=drop)] == [b"\x01"]


def test_default_actions(client, schema, device):
    table = device.switch.tables["MatchEverything.exact_match"]
    changed = entity(Entry("exact_match", action=Action("flood", group=3), is_default_action=True), schema)
    client.update("MODIFY", table_entry=changed)
    assert table.default == ("MatchEverything.flood", (3,))
    query = p4r.TableEntry(table_id=changed.table_id, is_default_action=True)
    assert client.read(table_entry=query) == [changed]
    client.update("MODIFY", table_entry=query)
    assert table.default == ("MatchEverything.give_up", ())
    assert len(client.read(table_entry=p4r.TableEntry(is_default_action=True))) == 4


def changed(schema, entry, **fields):
    message = entity(entry, schema)
    message.MergeFrom(p4r.TableEntry(**fields))
    return message


def with_match(schema, entry, place, **fields):
    """Return an entry with other fields in its match number `place`."""
    message = entity(entry, schema)
    match = message.match[place]
    for name, value in fields.items():
        setattr(getattr(match, match.WhichOneof("field_match_type")), name, value)
    return message


def with_param(schema, **param):
    message = entity(EXACT, schema)
    message.action.action.params[0].MergeFrom(p4r.Action.Param(**param))
    return message


BAD = {
    "no such table": lambda s: p4r.TableEntry(table_id=77),
    "value too wide": lambda s: with_match(s, EXACT, 1, value=b"\x02\x00"),
    "empty value": lambda s: with_match(s, EXACT, 1, value=b""),
    "missing exact field": lambda s: entity(
        Entry("exact_match", match=Match({"hdr.ethernet.dst": 1}), action=Action("forward", port=1)), s
    ),
    "field given twice": lambda s: changed(s, EXACT, match=[entity(EXACT, s).match[0]]),
    "no such field": lambda s: changed(s, EXACT, match=[p4r.FieldMatch(field_id=9)]),
    "field of another kind": lambda s: changed(
        s, Entry("route", action=Action("drop")), match=[{"field_id": 1, "exact": {"value": b"\1"}}]
    ),
    "prefix too long": lambda s: with_match(s, ROUTE, 0, value=b"\x0a\0\0\0", prefix_len=33),
    "negative prefix": lambda s: with_match(s, ROUTE, 0, value=b"\x0a\0\0\0", prefix_len=-1),
    "bits beyond the prefix": lambda s: with_match(s, ROUTE, 0, value=b"\x0a\0\0\1", prefix_len=8),
    "prefix of nothing": lambda s: with_match(s, ROUTE, 0, value=b"\0", prefix_len=0),
    "bits beyond the mask": lambda s: with_match(s, FILTER, 0, value=b"\x0a\0\0\1", mask=b"\xff\0\0\0"),
    "mask of nothing": lambda s: with_match(s, FILTER, 0, value=b"\0", mask=b"\0"),
    "empty range": lambda s: with_match(s, FILTER, 2, low=b"\x09", high=b"\x02"),
    "range of everything": lambda s: with_match(s, FILTER, 2, low=b"\0", high=b"\xff"),
    "no priority": lambda s: changed(s, Entry("filter", action=Action("drop"))),
    "negative priority": lambda s: changed(s, Entry("filter", action=Action("drop")), priority=-1),
    "priority without overlaps": lambda s: changed(s, ROUTE, priority=5),
    "no action": lambda s: entity(Entry("route", match=Match({"hdr.ipv4.dst": "10.0.0.0/8"})), s),
    "no such action": lambda s: changed(s, ROUTE, action={"action": {"action_id": s.actions["flood"].id}}),
    "parameter too wide": lambda s: with_param(s, value=b"\xff\xff"),
    "no such parameter": lambda s: with_param(s, param_id=9),
    "one more parameter": lambda s: changed(
        s, EXACT, action={"action": {"params": [{"param_id": 9, "value": b"\1"}]}}
    ),
    "missing parameter": lambda s: entity(
        Entry("route", match=Match({"hdr.ipv4.dst": "10.0.0.0/8"}), action=Action("forward")), s
    ),
    "indirect action": lambda s: changed(s, ROUTE, action=p4r.TableAction(action_profile_member_id=1)),
    "meter config": lambda s: changed(s, ROUTE, meter_config=p4r.MeterConfig(cir=1)),
    "negative counter": lambda s: changed(s, ROUTE, counter_data=p4r.CounterData(byte_count=-1)),
    "counter of a table without": lambda s: changed(s, EXACT, counter_data=p4r.CounterData(packet_count=1)),
    "inserted default": lambda s: changed(s, Entry("route", action=Action("drop"), is_default_action=True)),
}


@pytest.mark.parametrize("build", BAD.values(), ids=BAD.keys())
def test_bad_entries_are_refused_and_change_nothing(client, schema, build):
    before = client.read(table_entry=p4r.TableEntry())
    assert code_of_one(client, "INSERT", build(schema)) == "INVALID_ARGUMENT"
    assert client.read(table_entry=p4r.TableEntry()) == before


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"idle_timeout_ns": 5},
            "idle_timeout_ns must be set to 0 for tables which do not support idle timeout",
        ),
        ({"time_since_last_hit": {}}, "has_time_since_last_hit must not be set in WriteRequest"),
    ],
)
def test_idle_time_outs_are_refused_in_bmv2s_words(client, schema, fields, message):
    assert refusal(client, "INSERT", table_entry=changed(schema, ROUTE, **fields))[1] == message


def test_what_the_program_fixes_is_denied(client, schema):
    fixed = entity(Entry("fixed", match=Match({"hdr.ipv4.tos": 5}), action=Action("drop")), schema)
    assert code_of_one(client, "INSERT", fixed) == "PERMISSION_DENIED"
    default_only = entity(EXACT, schema)
    default_only.action.action.CopyFrom(p4r.Action(action_id=schema.actions["give_up"].id))
    assert code_of_one(client, "INSERT", default_only) == "PERMISSION_DENIED"
    table_only = Entry("exact_match", action=Action("drop"), is_default_action=True)
    assert code_of_one(client, "MODIFY", entity(table_only, schema)) == "PERMISSION_DENIED"


def test_a_full_table_says_so(client, schema):
    for port in range(4):
        client.update("INSERT", table_entry=with_match(schema, EXACT, 1, value=bytes([port])))
    assert code_of_one(client, "INSERT", with_match(schema, EXACT, 1, value=b"\x09")) == "RESOURCE_EXHAUSTED"


def test_a_batch_reports_every_update_and_does_the_good_ones(client, schema):
    good, bad = entity(ROUTE, schema), entity(EXACT, schema)
    bad.match[1].exact.value = b"\xff\xff"
    unset = p4r.Update(entity=p4r.Entity(table_entry=good))
    inserts = [update("INSERT", table_entry=entry) for entry in (bad, good)]
    with pytest.raises(grpc.RpcError) as error:
        client.write(*inserts, unset, p4r.Update(type=1))
    assert error.value.code().name == "UNKNOWN"
    results = outcomes(error.value)
    codes = [rpc_code.Code.Name(code) for code, _ in results]
    assert codes == ["INVALID_ARGUMENT", "OK", "INVALID_ARGUMENT", "INVALID_ARGUMENT"]
    assert "standard_metadata.ingress_port: 0xffff does not fit 9 bits" in results[0][1]
    assert client.read(table_entry=p4r.TableEntry(table_id=good.table_id)) == [good]


def test_direct_counters_come_and_go_with_their_entries(client, schema, device):
    entry = changed(schema, ROUTE, counter_data=p4r.CounterData(packet_count=3, byte_count=300))
    client.update("INSERT", table_entry=entry)
    assert device.switch.tables["MatchEverything.route"].read_counter(((0x0A010000, 16),)) == (3, 300)
    query = p4r.TableEntry(table_id=entry.table_id)
    (without_counter,) = client.read(table_entry=query)
    assert not without_counter.HasField("counter_data")
    query.counter_data.SetInParent()
    assert client.read(table_entry=query) == [entry]

    plain = entity(ROUTE, schema)
    client.update("MODIFY", table_entry=plain)
    assert client.read(table_entry=query) == [entry], "not mentioned, not touched"
    zero = changed(schema, ROUTE, counter_data=p4r.CounterData())
    client.update("MODIFY", table_entry=zero)
    assert client.read(table_entry=query) == [zero], "a counter at zero is there, too"
    data = p4r.CounterData(packet_count=9, byte_count=1)
    counter = p4r.DirectCounterEntry(table_entry=plain, data=data)
    client.update("MODIFY", direct_counter_entry=counter)
    assert client.read(direct_counter_entry=p4r.DirectCounterEntry(table_entry=plain)) == [counter]
    assert client.read(direct_counter_entry=p4r.DirectCounterEntry()) == [counter]
    client.update("DELETE", table_entry=plain)
    assert client.read(direct_counter_entry=p4r.DirectCounterEntry()) == []


def test_what_direct_counters_refuse(client, schema):
    for kind, entry, code in (
        ("INSERT", ROUTE, "INVALID_ARGUMENT"),
        ("MODIFY", EXACT, "INVALID_ARGUMENT"),  # its table has none
        ("MODIFY", ROUTE, "NOT_FOUND"),
    ):
        counter = p4r.DirectCounterEntry(table_entry=entity(entry, schema), data={})
        assert refusal(client, kind, direct_counter_entry=counter)[0] == code
