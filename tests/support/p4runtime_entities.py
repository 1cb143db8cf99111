"""The two programs of the tests of P4Runtime, and entities of each kind that they have."""

from itertools import product
from pathlib import Path

from finsy.p4schema import P4Schema
from finsy.proto import p4r

P4 = Path(__file__).parents[1] / "softswitch" / "p4runtime" / "p4"


def schema_of(program):
    """Return the P4Info and JSON of a program."""
    return P4Schema(P4 / f"{program}.p4info.txtpb", (P4 / f"{program}.json").read_bytes())


def exact(number):
    return [{"field_id": 1, "exact": {"value": bytes([number])}}]


def action(ids, name, port=None):
    params = [] if port is None else [{"param_id": 1, "value": bytes([port])}]
    return p4r.Action(action_id=ids[name], params=params)


def entities_of_externs(ids, number, value):
    """Yield an entity of each kind that this program has."""
    rates, send = p4r.MeterConfig(cir=1, cburst=value, pir=2, pburst=9), action(ids, "send", value)
    shaped, paths = {"table_id": ids["shaped"], "match": exact(number)}, {"action_profile_id": ids["paths"]}
    metered = {"action": {"action": action(ids, "metered", value)}, "meter_config": rates}
    yield {"table_entry": {**shaped, **metered}}
    balanced = {"table_id": ids["balanced"], "match": exact(number), "idle_timeout_ns": value}
    for choice in ("action_profile_member_id", "action_profile_group_id"):
        yield {"table_entry": {**balanced, "action": {choice: value}}}
    actions = {"action_profile_actions": [{"action": send, "weight": 1}]}
    yield {"table_entry": {**balanced, "action": {"action_profile_action_set": actions}}}
    yield {"direct_meter_entry": {"table_entry": shaped, "config": rates}}
    yield {"meter_entry": {"meter_id": ids["police"], "index": {"index": number}, "config": rates}}
    yield {"action_profile_member": {**paths, "member_id": number, "action": send}}
    members = [{"member_id": value, "weight": 3}]
    yield {"action_profile_group": {**paths, "group_id": number, "members": members}}
    yield {"value_set_entry": {"value_set_id": ids["tagged_keys"], "members": [{"match": exact(value)}]}}
    yield {"digest_entry": {"digest_id": ids["sighting_t"], "config": {"max_list_size": value}}}


def entities_of_every_match_kind(ids, number, value):
    """Yield an entity of each kind that this program has."""
    filtered = {"table_id": ids["filter"], "priority": number, "metadata": bytes([value])}
    filtered["action"] = {"action": action(ids, "drop")}
    yield {"table_entry": filtered}
    ternary = {"field_id": 1, "ternary": {"value": b"\1\0\0\0", "mask": b"\1\0\0\0"}}
    optional = {"field_id": 2, "optional": {"value": b"\x11"}}
    ttl = {"field_id": 3, "range": {"low": b"\2", "high": b"\x09"}}
    yield {"table_entry": {**filtered, "match": [ternary]}}
    yield {"table_entry": {**filtered, "match": [ternary, optional, ttl]}}
    lpm = {"field_id": 1, "lpm": {"value": b"\1", "prefix_len": 32}}
    routed, counts = {"table_id": ids["route"], "match": [lpm]}, {"packet_count": value}
    forward, default = {"action": action(ids, "forward", value)}, {"is_default_action": True}
    yield {"table_entry": {**routed, "action": forward, "counter_data": counts}}
    yield {"table_entry": {"table_id": ids["route"], **default, "action": forward}}
    yield {"table_entry": {"table_id": ids["route"], **default}}
    yield {"direct_counter_entry": {"table_entry": routed, "data": counts}}
    yield {"counter_entry": {"counter_id": ids["seen"], "index": {"index": number}, "data": counts}}
    note = {"index": {"index": number}, "data": {"bitstring": bytes([value])}}
    yield {"register_entry": {"register_id": ids["notes"], **note}}
    replicas = [{"port": bytes([value]), "instance": 1}]
    for kind, name in (("multicast_group", "multicast_group_id"), ("clone_session", "session_id")):
        group = {f"{kind}_entry": {name: number, "replicas": replicas}}
        yield {"packet_replication_engine_entry": group}


#: By program.
ENTITIES_OF = {"externs": entities_of_externs, "every_match_kind": entities_of_every_match_kind}


def entities_of(program, ids):
    """Return entities of each kind that a program has, of two numbers and with two values."""
    pairs = product((1, 2), repeat=2)
    return [p4r.Entity(**entity) for pair in pairs for entity in ENTITIES_OF[program](ids, *pair)]
