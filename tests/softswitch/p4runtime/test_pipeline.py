import json

import pytest
from finsy.p4entity import P4TableAction as Action
from finsy.p4entity import P4TableEntry as Entry
from finsy.p4entity import P4TableMatch as Match
from finsy.p4schema import P4Schema
from finsy.proto import p4r
from p4runtime_client import status_of

from peelsum.pipelines import pipeline


@pytest.fixture
def primary(connect):
    client = connect()
    client.become_primary()
    return client


@pytest.fixture
def config(schema):
    return schema.get_pipeline_config()


def route(schema):
    entry = Entry("route", match=Match({"hdr.ipv4.dst": "10.0.0.0/8"}), action=Action("forward", port=4))
    return entry.encode_entry(schema)


def test_the_version_is_that_of_the_specification(connect):
    answer = connect().stub.Capabilities(p4r.CapabilitiesRequest())
    assert answer.p4runtime_api_version == "1.4.0"


def test_before_a_pipeline_there_is_nothing_to_work_on(primary):
    for call in (primary.get_pipeline, primary.write, lambda: primary.read(table_entry=p4r.TableEntry())):
        code, details = status_of(call)
        assert code == "FAILED_PRECONDITION"
        assert "No forwarding pipeline config" in details


def test_commit_runs_a_pipeline_and_all_of_it_is_read_back(primary, config, device):
    assert device.switch is None
    primary.set_pipeline(config)
    assert "MatchEverything.route" in device.switch.tables
    assert primary.get_pipeline() == config
    cookie_only = primary.get_pipeline("COOKIE_ONLY")
    assert cookie_only == p4r.ForwardingPipelineConfig(cookie=config.cookie)
    p4info = primary.get_pipeline("P4INFO_AND_COOKIE")
    assert (p4info.p4info, p4info.p4_device_config, p4info.cookie) == (config.p4info, b"", config.cookie)
    blob = primary.get_pipeline("DEVICE_CONFIG_AND_COOKIE")
    assert (blob.HasField("p4info"), blob.p4_device_config) == (False, config.p4_device_config)


def test_a_program_in_p4langs_own_message_is_taken(primary, config, device):
    """`p4.tmp.P4DeviceConfig`, as the tutorials' clients send it: reassign = 1, device_data = 3."""
    size, length = len(config.p4_device_config), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    config.p4_device_config = b"\x08\x01\x1a" + length + bytes([size]) + config.p4_device_config
    primary.set_pipeline(config)
    assert "MatchEverything.route" in device.switch.tables
    assert primary.get_pipeline() == config


def test_committing_again_starts_afresh(client, schema, config):
    client.update("INSERT", table_entry=route(schema))
    client.set_pipeline(config)
    assert client.read(table_entry=p4r.TableEntry(table_id=schema.tables["route"].id)) == []


def test_verify_changes_nothing(primary, config, device):
    primary.set_pipeline(config, "VERIFY")
    assert device.switch is None
    assert status_of(primary.get_pipeline)[0] == "FAILED_PRECONDITION"


def blob(change):
    """Return what replaces a configuration's JSON."""
    return lambda config: setattr(config, "p4_device_config", change(config.p4_device_config))


def program(change):
    """Return what changes a configuration's JSON as a document."""

    def spoil(config):
        document = json.loads(config.p4_device_config)
        change(document)
        config.p4_device_config = json.dumps(document).encode()

    return spoil


def named(parts, end):
    return next(part for part in parts if part["name"].endswith(end))


def elsewhere(kind):
    return lambda config: setattr(getattr(config.p4info, kind)[0].preamble, "name", "elsewhere")


#: By what p4info and program then differ in.
DIFFERENT = {
    "table MatchEverything": program(
        lambda d: d["pipelines"][0]["tables"][3]["key"][0].update(match_type="exact")
    ),
    "counter MatchEverything.seen": program(lambda d: named(d["counter_arrays"], "seen").update(size=15)),
    "register MatchEverything.notes": program(lambda d: d["register_arrays"][0].update(size=9)),
    "action MatchEverything.to_cpu": program(
        lambda d: named(d["actions"], "to_cpu")["runtime_data"].append({"name": "more", "bitwidth": 8})
    ),
    "counter elsewhere": elsewhere("counters"),
    "register elsewhere": elsewhere("registers"),
}


@pytest.mark.parametrize(
    ("spoil", "what"), [(spoil, what) for what, spoil in DIFFERENT.items()], ids=DIFFERENT
)
def test_a_program_that_is_not_its_p4infos_is_refused(primary, config, spoil, what):
    spoil(config)
    code, details = status_of(lambda: primary.set_pipeline(config, "VERIFY"))
    assert code == "INVALID_ARGUMENT"
    assert f"p4info and p4_device_config differ in {what}" in details


SPOILED = {
    "without json": blob(lambda text: b""),
    "broken json": blob(lambda text: text[:-10]),
    "other json": blob(lambda text: b"[]"),
    "foreign json": blob(lambda text: pipeline(32).json_path.read_bytes()),
    "deep json": blob(lambda text: b"[" * 100_000),
    "undeclared action": lambda config: setattr(config.p4info.tables[0].action_refs[0], "id", 1),
    "id twice": lambda config: config.p4info.actions.add().CopyFrom(config.p4info.actions[0]),
    "no id": lambda config: setattr(config.p4info.tables[0].preamble, "id", 0),
    "other width": lambda config: setattr(config.p4info.tables[0].match_fields[0], "bitwidth", 47),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_bad_configurations_are_refused_and_change_nothing(client, config, device, spoil):
    running = device.switch
    spoil(config)
    code, details = status_of(lambda: client.set_pipeline(config))
    assert code == "INVALID_ARGUMENT"
    assert "\n" not in details
    assert details.count("p4_device_config: ") <= 1
    assert device.switch is running


def test_unsupported_p4info_is_refused_by_name(primary, config):
    meter = config.p4info.meters.add()
    meter.preamble.name, meter.spec.type = "Ingress.police", 1  # SINGLE_RATE_THREE_COLOR
    code, details = status_of(lambda: primary.set_pipeline(config))
    assert (code, details.split(":")[0]) == ("UNIMPLEMENTED", "single-rate meter Ingress.police")


@pytest.mark.parametrize(
    ("action", "has_config"),
    [("UNSPECIFIED", True), ("VERIFY", False), ("VERIFY_AND_COMMIT", False), ("COMMIT", True)],
)
def test_actions_that_are_unknown_or_whose_config_is_missing_or_superfluous(
    primary, config, device, action, has_config
):
    code, details = status_of(lambda: primary.set_pipeline(config if has_config else None, action))
    assert (code, device.switch) == ("INVALID_ARGUMENT", None)
    assert details.startswith("config: " if action != "UNSPECIFIED" else "action: 0 ")


def test_a_saved_pipeline_is_filled_before_it_is_committed(primary, schema, config, device):
    assert status_of(lambda: primary.set_pipeline(None, "COMMIT"))[0] == "FAILED_PRECONDITION"
    primary.set_pipeline(config, "VERIFY_AND_SAVE")
    assert device.switch is None
    primary.update("INSERT", table_entry=route(schema))
    primary.set_pipeline(None, "COMMIT")
    assert device.switch.tables["MatchEverything.route"].entries()
    running = device.switch
    primary.set_pipeline(config, "VERIFY_AND_SAVE")
    assert device.switch is running
    assert primary.read(table_entry=p4r.TableEntry(table_id=schema.tables["route"].id)) == []
    primary.set_pipeline(None, "COMMIT")
    assert device.switch is not running


def test_reconcile_keeps_what_controllers_wrote(client, schema, config, device):
    action = Action("forward", port=7)
    group = {"multicast_group_id": 3, "replicas": [{"egress_port": 2, "instance": 1}]}
    session = {"session_id": 5, "replicas": [{"egress_port": 4, "instance": 1}]}
    entities = [
        {"table_entry": Entry("route", action=action, is_default_action=True).encode_entry(schema)},
        {"table_entry": route(schema)},
        {"packet_replication_engine_entry": {"multicast_group_entry": group}},
        {"packet_replication_engine_entry": {"clone_session_entry": session}},
    ]
    for position, entity in enumerate(entities):
        client.update("INSERT" if position else "MODIFY", **entity)
    before = device.switch
    client.set_pipeline(config, "RECONCILE_AND_COMMIT")
    assert device.switch is not before
    assert device.switch.groups.get(3) == ((2, 1),)
    assert device.switch.sessions.get(5) == ((4, 1),)
    route_id = schema.tables["route"].id
    assert client.read(table_entry=p4r.TableEntry(table_id=route_id)) == [entities[1]["table_entry"]]
    default = p4r.TableEntry(table_id=route_id, is_default_action=True)
    assert client.read(table_entry=default) == [entities[0]["table_entry"]]


def test_reconcile_fails_whole_if_the_new_program_lacks_a_table(client, schema, config, device):
    client.update("INSERT", table_entry=route(schema))
    running, smaller = device.switch, pipeline(32)
    other = P4Schema(smaller.p4info_path, smaller.json_path.read_bytes()).get_pipeline_config()
    code, details = status_of(lambda: client.set_pipeline(other, "RECONCILE_AND_COMMIT"))
    assert code == "UNKNOWN"
    assert "no table" in details
    assert device.switch is running
    assert client.get_pipeline() == config
