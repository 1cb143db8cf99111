"""Externs of v1model, action profiles and value sets, compared with what they should do, in both modes."""

import json
import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from random_programs import crc16

from peelsum.logs import MOST_RECORDS
from peelsum.softswitch import Frames, Switch, load
from peelsum.softswitch.compiler.loading import parse
from peelsum.softswitch.errors import InvalidEntry, NoSuchEntry, TableFull
from peelsum.softswitch.program.model import ActionSet, GroupReference, MemberReference, WeightedAction
from peelsum.softswitch.runtime.meters import Rates

P4 = Path(__file__).parents[1] / "p4runtime" / "p4"
DIGEST, METER, RANDOM, TRUNCATE, LOG, ASSERT, TABLES = 1, 2, 3, 4, 5, 6, 9
SEND, MARK, METERED = "ExternsIngress.send", "ExternsIngress.send_marked", "ExternsIngress.metered"
GREEN, YELLOW, RED = 0, 1, 2


@pytest.fixture(scope="module")
def program():
    return load(P4 / "externs.json")


@pytest.fixture(params=["python", "numba"])
def switch(request, program):
    switch = Switch(program, request.param)
    assert switch.mode == request.param
    return switch


def packet(command, key=0, flow=0, low=0, high=0, result=0, tail=b""):
    return struct.pack(">BBHIIQ", command, key, flow, low, high, result) + tail


def send(switch, *frames, now=0, port=1):
    return switch.process(Frames.of([(port, frame) for frame in frames]), now).pairs()


def result(switch, *fields, now=0, **more):
    ((_, frame),) = send(switch, packet(*fields, **more), now=now)
    return struct.unpack(">BBHIIQ", frame[:20])[5]


# --- meters ---------------------------------------------------------------------------------------


class Bucket:
    """A token bucket in exact numbers."""

    def __init__(self, rate, burst):
        self.rate, self.burst, self.tokens, self.time = rate, burst, burst * 10**6, 0

    def take(self, now, amount):
        self.tokens = min(self.burst * 10**6, self.tokens + self.rate * (now - self.time))
        self.time = now
        if self.tokens < amount * 10**6:
            return False
        self.tokens -= amount * 10**6
        return True


def colours(rates, arrivals):
    """Return the colours of (time, amount) by RFC 2698, colour-blind."""
    committed, peak = Bucket(rates.committed, rates.committed_burst), Bucket(rates.peak, rates.peak_burst)
    for now, amount in arrivals:
        committed.take(now, 0)
        if not peak.take(now, amount):
            yield RED
        else:
            yield GREEN if committed.take(now, amount) else YELLOW


@pytest.mark.parametrize(
    "rates",
    [
        Rates(1000, 4, 3000, 9),
        Rates(0, 5, 0, 7),
        Rates(7, 1, 7, 1),
        Rates(1 << 50, 3, (1 << 62) + 1, 1 << 62),
    ],
)
def test_a_meter_colours_as_two_token_buckets(switch, rates):
    rng, now, arrivals = random.Random(1), 0, []
    for _ in range(200):
        now += rng.choice([0, 1, 100, 333, 1_000, 20_000])
        arrivals.append((now, 1))
    switch.meters["ExternsIngress.police"].write(5, rates)
    got = [result(switch, METER, 5, now=now) for now, _ in arrivals]
    assert got == list(colours(rates, arrivals))
    assert result(switch, METER, 4, now=now) == GREEN, "a cell that is not configured"
    before = switch.state.memory.copy()
    assert result(switch, METER, 8, now=now) == GREEN, "an index past the end"
    assert (switch.state.memory == before).all()
    switch.meters["ExternsIngress.police"].write(5, None)
    assert result(switch, METER, 5, now=now) == GREEN


def test_a_clock_that_goes_back_adds_no_tokens(switch):
    switch.meters["ExternsIngress.police"].write(5, Rates(10, 1, 10, 1))
    times = (10**9, 10**9 - 1, 5, 5 + 99_999, 5 + 100_000)
    assert [result(switch, METER, 5, now=now) for now in times] == [GREEN, RED, RED, RED, GREEN]


def test_a_direct_meter_counts_the_bytes_of_packets_that_hit_its_entry(switch):
    table, rates = switch.tables["ExternsIngress.shaped"], Rates(1_000_000, 60, 1_000_000, 100)
    for flow in (7, 8):
        table.insert((flow,), METERED, (3,))
    table.write_meter((7,), rates)
    times = (0, 0, 0, 10, 10, 10)
    got = [result(switch, TABLES, 0, 7, now=now) for now in times]
    assert got == list(colours(rates, [(now, 20) for now in times]))
    assert [result(switch, TABLES, 0, 8) for _ in range(9)] == [GREEN] * 9
    assert (table.read_meter((7,)), table.read_meter((8,))) == (rates, None)
    table.delete((7,))
    table.insert((9,), METERED, (3,))
    assert table.read_meter((9,)) is None, "a new entry does not have the rates of the old one"


# --- digests, logs and assertions -----------------------------------------------------------------


def test_a_digest_has_the_values_of_its_packet(switch):
    send(switch, packet(DIGEST, flow=500, result=1 << 63), packet(LOG), packet(DIGEST, flow=3), port=511)
    assert list(switch.messages.digests) == [("sighting_t", (500, 511, 1 << 63)), ("sighting_t", (3, 511, 0))]


def test_messages_beyond_what_memory_holds_are_counted(switch):
    send(switch, *[packet(DIGEST, flow=number) for number in range(1030)])
    assert (len(switch.messages.digests), switch.messages.dropped) == (1024, 6)
    send(switch, packet(DIGEST, flow=9))
    assert switch.messages.digests[-1][1][0] == 9


def test_log_messages_are_logged(switch, caplog):
    caplog.set_level("INFO", "peelsum.switch")
    send(switch, packet(LOG, flow=17, result=(1 << 64) - 1))
    assert caplog.messages[-1] == f"program: flow 17 of {{{(1 << 64) - 1}}}"


def test_a_statement_logs_only_so_many_lines_and_hides_no_other(switch, caplog):
    caplog.set_level("INFO", "peelsum.switch")
    send(switch, *[packet(LOG)] * 500, packet(ASSERT))
    assert (caplog.text.count("flow 0"), caplog.text.count("the packet is dropped")) == (MOST_RECORDS, 1)


def test_an_assertion_that_fails_drops_the_packet(switch, caplog):
    assert [port for port, _ in send(switch, packet(ASSERT, low=3), packet(ASSERT, low=4))] == [1]
    assert "assert of action externs" in caplog.text
    assert caplog.text.count("the packet is dropped") == 1


# --- random numbers and truncation ----------------------------------------------------------------


def test_random_numbers_cover_their_range_and_are_the_same_in_both_modes(switch, program):
    drawn = [result(switch, RANDOM, low=10, high=15) for _ in range(200)]
    assert set(drawn) == set(range(10, 16))
    other = Switch(program, "python")
    assert drawn[:50] == [result(other, RANDOM, low=10, high=15) for _ in range(50)]
    assert {result(switch, RANDOM, low=9, high=9) for _ in range(5)} == {9}
    assert max(result(switch, RANDOM, low=0, high=(1 << 32) - 1) for _ in range(50)) > 1 << 30


@pytest.mark.parametrize("length", [0, 1, 19, 20, 25, 26, 1 << 31])
def test_a_packet_is_cut_to_the_length_that_the_program_says(switch, length):
    whole = packet(TRUNCATE, low=length, tail=b"sixsix")
    assert send(switch, whole, packet(LOG)) == [(1, whole[:length]), (1, packet(LOG))]


# --- action profiles ------------------------------------------------------------------------------


def egress(switch, flow, key=1):
    ((port, _),) = send(switch, packet(TABLES, key, flow))
    return port


def test_a_group_chooses_members_by_the_hash_of_the_flow(switch):
    paths, table = switch.profiles["ExternsIngress.paths"], switch.tables["ExternsIngress.balanced"]
    for number in (30, 10, 20):
        paths.insert_member(number, SEND, (number,))
    paths.insert_group(1, {30: 2, 10: 1, 20: 1})
    table.insert((1,), GroupReference(1))
    table.insert((2,), MemberReference(20))
    table.insert((3,), ActionSet((WeightedAction(SEND, (40,), 3), WeightedAction(MARK, (41, 7 << 40 | 5)))))
    flows = random.Random(3).sample(range(1 << 16), 60)
    assert crc16(b"123456789") == 0xBB3D
    for flow in flows:
        chosen = crc16(struct.pack(">H", flow)) % 4
        assert egress(switch, flow) == [10, 20, 30, 30][chosen]
        assert egress(switch, flow, 2) == 20
        assert egress(switch, flow, 3) == [40, 40, 40, 41][chosen]
    marked = next(flow for flow in flows if crc16(struct.pack(">H", flow)) % 4 == 3)
    ((_, frame),) = send(switch, packet(TABLES, 3, marked))
    assert struct.unpack_from(">II", frame, 4) == (5, 7)
    paths.modify_member(20, SEND, (99,))
    paths.modify_group(1, {20: 1})
    assert {egress(switch, flow) for flow in flows} == {egress(switch, 0, 2)} == {99}
    paths.modify_group(1, {})
    assert egress(switch, 5) == 1, "an empty group does nothing"


def test_a_member_without_action_differs_from_a_miss():
    """A miss continues as the table says, and a hit as its action does."""
    document = json.loads((P4 / "externs.json").read_text())
    tables = {table["name"]: table for item in document["pipelines"] for table in item["tables"]}
    indirect = tables["ExternsIngress.indirect"]
    assert indirect["base_default_next"] == "ExternsIngress.shaped"
    indirect["next_tables"]["NoAction"] = None
    switch = Switch(parse(document, "externs"), "python")
    switch.profiles["ExternsIngress.hops"].insert_member(1, "NoAction")
    switch.tables["ExternsIngress.indirect"].insert(((5, 0xFFFF),), MemberReference(1), priority=1)
    for flow in (5, 6):
        switch.tables["ExternsIngress.shaped"].insert((flow,), METERED, (3,))
    assert (egress(switch, 5), egress(switch, 6)) == (1, 3)


def test_tables_may_share_a_profile(switch):
    """p4c gives the same action a number for each table."""
    switch.profiles["ExternsIngress.paths"].insert_member(1, SEND, (8,))
    for name, key in (("balanced", 5), ("also_balanced", 77)):
        switch.tables[f"ExternsIngress.{name}"].insert((key,), MemberReference(1))
    frames = [packet(TABLES, 5), packet(TABLES, 0, low=77), packet(TABLES, 0, low=78)]
    assert [port for port, _ in send(switch, *frames)] == [8, 8, 1]


def test_an_indirect_table_has_members_only(switch):
    hops, table = switch.profiles["ExternsIngress.hops"], switch.tables["ExternsIngress.indirect"]
    hops.insert_member(1, SEND, (8,))
    hops.insert_member(2, SEND, (9,))
    table.insert(((0x100, 0xFF00),), MemberReference(1), priority=1)
    table.insert(((0, 0),), MemberReference(2), priority=2)
    assert (egress(switch, 0x1FF, 0), egress(switch, 0x2FF, 0)) == (9, 9)
    table.modify(((0, 0),), MemberReference(1), priority=2)
    assert egress(switch, 0x2FF, 0) == 8
    for choice in (GroupReference(1), MemberReference(3)):
        with pytest.raises(NoSuchEntry):
            table.insert(((5, 0xFF),), choice, priority=1)
    with pytest.raises(InvalidEntry, match="has no selector"):
        hops.insert_group(1, {})
    with pytest.raises(InvalidEntry, match="has no selector, so an entry has one member"):
        table.insert(((5, 0xFF),), ActionSet(()), priority=1)
    with pytest.raises(InvalidEntry, match=r"members or groups of ExternsIngress\.hops, not actions"):
        table.insert(((5, 0xFF),), SEND, (1,), priority=1)
    with pytest.raises(InvalidEntry, match="no default action"):
        table.set_default(SEND, (1,))
    assert len(table) == 2


def test_an_action_set_of_a_full_profile_can_be_replaced(switch):
    table = switch.tables["ExternsIngress.balanced"]

    def ports(first, count=16):
        return ActionSet(tuple(WeightedAction(SEND, (first + number,)) for number in range(count)))

    table.insert((1,), ports(10))
    for _ in range(3):
        table.modify((1,), ports(40))
        assert egress(switch, 5) in range(40, 56)
        with pytest.raises(TableFull):
            table.modify((1,), ports(70, 17))
        assert egress(switch, 5) in range(40, 56), "a refused change leaves the entry as it was"


def test_a_profile_holds_what_it_declares_and_no_more(switch):
    """Every step is undone in the end, so leaks of memory would show in later rounds."""
    paths, table = switch.profiles["ExternsIngress.paths"], switch.tables["ExternsIngress.balanced"]
    for _ in range(20):
        for number in range(1, 17):
            paths.insert_member(number, SEND, (number,))
        with pytest.raises(TableFull):
            paths.insert_member(17, SEND, (1,))
        with pytest.raises(TableFull):
            table.insert((1,), ActionSet((WeightedAction(SEND, (1,)),)))
        with pytest.raises(TableFull):
            paths.insert_group(99, {1: 65})
        paths.insert_group(99, {1: 64})
        paths.delete_group(99)
        for number in range(1, 9):
            paths.insert_group(number, {number: 2, number + 1: 1})
            table.insert((number,), GroupReference(number))
        with pytest.raises(TableFull):
            paths.insert_group(99, {1: 1000})
        assert {egress(switch, flow, 8) for flow in range(50)} == {8, 9}
        for number in range(1, 9):
            table.delete((number,))
            paths.delete_group(number)
        for number in range(1, 17):
            paths.delete_member(number)
    assert (paths.members, paths.groups, len(table)) == ({}, {}, 0)


def test_an_unused_profile_takes_little_memory_beside_its_rows():
    document = json.loads((P4 / "externs.json").read_text())
    for profile in document["pipelines"][0]["action_profiles"]:
        profile["max_size"] = 1 << 18
    program = parse(document, "externs")
    tracemalloc.start()
    switch = Switch(program, "python")
    own = tracemalloc.Filter(inclusive=True, filename_pattern="*/action_profiles.py")
    traces = tracemalloc.take_snapshot().filter_traces([own]).statistics("filename")
    tracemalloc.stop()
    assert switch.profiles["ExternsIngress.paths"].size == 1 << 18
    assert sum(trace.size for trace in traces) < 1 << 16


# --- value sets -----------------------------------------------------------------------------------


def test_a_state_is_taken_if_the_value_set_has_the_key(switch):
    value_set, tag = switch.value_sets["ExternsParser.tagged_keys"], b"\1\2\3\4"
    plain, tagged = packet(LOG, 0x15, tail=tag), tag + packet(LOG, 0x15)
    assert send(switch, plain) == [(1, plain)]
    value_set.set([(1, 0xFF), (0x10, 0xF0)])
    assert send(switch, plain) == [(1, tagged)]
    other = packet(LOG, 0x25, tail=tag)
    assert send(switch, other) == [(1, other)]
    value_set.set([])
    assert send(switch, plain) == [(1, plain)]
    with pytest.raises(TableFull, match="5 members, more than its size 4"):
        value_set.set([(number, 0xFF) for number in range(5)])
    for value, mask in ((256, 256), (1, 2), (-1, 0xFF)):
        with pytest.raises(InvalidEntry, match="does not fit 8 bits"):
            value_set.set([(value, mask)])
