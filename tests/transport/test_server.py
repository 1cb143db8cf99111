"""The aggregation server's table, row by row, with one level of switches and with two."""

from dataclasses import replace

import numpy as np
import pytest
from job_hosts import CONFIG, LANES, partial, sent, server_at

from peelsum.transport import AggregationServer, JobFinished, Stalled
from peelsum.wire import EVERYONE, Flag, Kind

RACKS = replace(CONFIG, workers=6, racks=(3, 1, 2))
#: What the bits of a packet are: workers of the sender's rack, or racks.
OF_RACK, OF_RACKS = Flag.NONE, Flag.SPINE


@pytest.mark.parametrize(("config", "flags"), [(CONFIG, OF_RACK), (RACKS, OF_RACKS)])
def test_a_complete_sum_becomes_everybody_s_result_untouched(config, flags):
    server = AggregationServer(config)
    server.receive(partial(5, 0b111, 0xDEADBEEF, sender=1, flags=flags), 0.0)
    (packet,) = sent(server)
    assert (packet["kind"], packet["sender"], packet["bitmap"]) == (Kind.RESULT, EVERYONE, 7)
    header = (packet["job_id"], packet["generation"], packet["chunk_id"], packet["flags"])
    assert header == (9, 77, 5, flags)
    assert packet["lanes"].tolist() == [0xDEADBEEF] * LANES
    assert (server.stats().chunks_in_switch, server.stats().chunks_at_server) == (1, 0)
    assert server.next_timer() is None


@pytest.mark.parametrize(
    ("config", "parts", "value", "duplicates"),
    [
        (CONFIG, [(0b001, 0xFFFFFFFF), (0b010, 5), (0b100, 0x80000000)], 0x80000004, 0),
        (CONFIG, [(0b001, 100), (0b011, 11), (0b100, 1)], 12, 0),
        (CONFIG, [(0b011, 11), (0b001, 9), (0b011, 99), (0b100, 1)], 12, 2),
        (RACKS, [(0b101, 1, OF_RACK, 2), (0b110, 10, OF_RACKS), (0b010, 100)], 111, 0),
        # A rack takes the place of its worker 64, and workers 65 and 32 are in it.
        (
            RACKS,
            [
                *((0b01, 5, OF_RACK, 64), (0b110, 30, OF_RACKS), (0b10, 7, OF_RACK, 65)),
                *((0b1, 8, OF_RACK, 32), (0b001, 2, OF_RACKS)),
            ],
            32,
            2,
        ),
    ],
    ids=[
        "modulo 2**32",
        "one that contains the sum replaces it",
        "those in the sum are dropped",
        "",
        "racks",
    ],
)
def test_parts_add_up(config, parts, value, duplicates):
    server = AggregationServer(config)
    for workers, each, flags, sender in ((*part, OF_RACK, 0)[:4] for part in parts):
        server.receive(partial(0, workers, each, flags=flags, sender=sender), 0.0)
    (packet,) = sent(server)
    assert (packet["bitmap"], packet["lanes"].tolist()) == (0b111, [value] * LANES)
    assert packet["flags"] == (OF_RACKS if config.racks else OF_RACK)
    stats = server.stats()
    assert (stats.chunks_in_switch, stats.chunks_at_server, stats.duplicates) == (0, 1, duplicates)


def test_overlapping_sums_are_not_added_but_are_united():
    server = AggregationServer(CONFIG)
    server.receive(partial(0, 0b011, 3), 0.0)
    server.receive(partial(0, 0b110, 6), 0.0)
    assert sent(server) == []
    assert server.stats().overlaps == 1
    server.receive(partial(1, 0b011, 3, flags=Flag.OR), 0.0)
    server.receive(partial(1, 0b110, 6, flags=Flag.OR), 0.0)
    (packet,) = sent(server)
    assert (packet["chunk_id"], packet["flags"], packet["lanes"].tolist()) == (1, Flag.OR, [7] * LANES)


def test_equal_bits_of_different_racks_do_not_overlap_and_those_of_one_are_not_added():
    server = AggregationServer(RACKS)
    server.receive(partial(0, 0b001, 1, sender=0), 0.0)
    server.receive(partial(0, 0b01, 1, sender=64), 0.0)
    assert (server.stats().merged, server.stats().duplicates) == (1, 0)
    assert server.stalled(0.0).missing_workers == (1, 2, 32, 65)
    server.receive(partial(0, 0b101, 1, flags=OF_RACKS), 0.0)  # contains both
    server.receive(partial(0, 0b110, 1, flags=OF_RACKS), 0.0)  # overlaps in rack 2, brings rack 1
    assert server.stats().overlaps == 1
    assert server.stalled(0.0).missing_workers == (32,)


@pytest.mark.parametrize("flag", [Flag.CE, Flag.FIN])
@pytest.mark.parametrize("part", range(3))
def test_congestion_and_the_end_stick_to_the_sum_whichever_part_has_them(flag, part):
    server = AggregationServer(CONFIG)
    for number, workers in enumerate([0b001, 0b011, 0b100]):
        server.receive(partial(0, workers, workers, flags=flag if number == part else 0), 0.0)
    (packet,) = sent(server)
    assert (packet["flags"], packet["lanes"].tolist()) == (flag, [7] * LANES)


def test_a_late_packet_gets_its_sender_the_kept_result():
    server = server_at(0, 42)
    for now in (0.001, 0.0015):
        server.receive(partial(0, 0b010, 1, sender=1), now)
    server.receive(partial(0, 0b100, 1, sender=2), 0.0025)
    for nobody in (EVERYONE, 3, 31, 32, 1000):
        server.receive(partial(0, 0b100, 1, sender=nobody), 0.0025)
    packets = sent(server)
    assert [int(p["sender"]) for p in packets] == [1, EVERYONE], "for all, once a second worker lacks it"
    assert all(p["kind"] == Kind.RESULT and p["lanes"].tolist() == [42] * LANES for p in packets)
    server.receive(partial(0, 0b010, 1, sender=1), 0.0026)
    assert [int(p["sender"]) for p in sent(server)] == [1]
    assert (server.stats().replies, server.stats().results) == (2, 2)


def test_a_request_of_the_worker_in_turn_gets_all_the_result_at_a_limited_rate():
    """If the result was lost before the switch, its slot drops the others' RETRYs: they all lack it."""
    server = server_at(4, 42)
    turn = 4 % 3
    replies = []
    for now in (0.001, 0.0015, 0.002):
        server.receive(partial(4, 1 << turn, 1, sender=turn), now)
        replies += [int(p["sender"]) for p in sent(server)]
    assert replies == [EVERYONE, turn, EVERYONE]


def test_the_part_of_a_chunk_that_others_have_overtaken_makes_the_server_ask_for_the_rest_at_once():
    """Its worker in turn took it out of the slot: the complete sum was lost, or a RETRY was."""
    server = server_at(10)
    server.receive(partial(8, 0b001, 1), 0.001)
    assert sent(server) == [], "two chunks later may be reordered"
    server.receive(partial(7, 0b001, 1), 0.001)
    (need,) = sent(server)
    assert (need["kind"], need["chunk_id"], need["bitmap"]) == (Kind.NEED, 7, 0b110)
    server.receive(partial(7, 0b010, 1), 0.0011)
    assert sent(server) == [], "once; then by the timer"
    server.receive(partial(7, 0b100, 1), 0.0012)
    assert [int(p["kind"]) for p in sent(server)] == [Kind.RESULT]


def test_all_get_the_result_again_if_a_switch_still_held_a_sum_of_several():
    """The first RESULT did not pass that switch: it would have freed the slot."""
    server = AggregationServer(replace(CONFIG, timers=replace(CONFIG.timers, reply_gap=0.001)))
    server.receive(partial(0, 0b111, 42), 0.0)
    assert [int(p["sender"]) for p in sent(server)] == [EVERYONE]
    replies = []
    for bitmap, sender, now in [
        (0b110, 1, 0.0001),
        (0b111, 2, 0.001),  # too soon for all
        (0b010, 1, 0.001),  # not for one
        (0b011, 0, 0.0011),
        (0b011, EVERYONE, 0.01),  # asked for by the server itself
    ]:
        server.receive(partial(0, bitmap, 1, sender=sender), now)
        replies.append([(Kind(p["kind"]), int(p["sender"]), int(p["lanes"][0])) for p in sent(server)])
    to_all = [(Kind.RESULT, EVERYONE, 42)]
    assert replies == [to_all, [], [(Kind.RESULT, 1, 42)], to_all, []]
    stats = server.stats()
    assert (stats.results, stats.replies, stats.replies_withheld) == (3, 1, 1)


@pytest.mark.parametrize(
    ("bitmap", "flags", "sender", "to"),
    [
        (0b11, OF_RACK, 65, EVERYONE),  # both of rack 2
        (0b101, OF_RACK, 2, EVERYONE),  # two of rack 0's three
        (0b001, OF_RACKS, 1, EVERYONE),
        (0b111, OF_RACKS, 1, EVERYONE),
        (0b110, OF_RACKS, 64, EVERYONE),  # a rack of one, and another
        (0b010, OF_RACKS, 32, 32),  # a rack of one
        (0b10, OF_RACK, 65, 65),
    ],
)
def test_all_get_the_result_again_that_did_not_pass_a_switch(bitmap, flags, sender, to):
    server = AggregationServer(RACKS)
    server.receive(partial(0, 0b111, 42, flags=OF_RACKS), 0.0)
    sent(server)
    server.receive(partial(0, bitmap, 1, flags=flags, sender=sender), 0.01)
    (packet,) = sent(server)
    assert (packet["kind"], packet["flags"], packet["sender"]) == (Kind.RESULT, OF_RACKS, to)
    assert packet["lanes"][0] == 42


def test_what_is_missing_is_asked_of_the_switch_and_then_of_everybody():
    server = AggregationServer(CONFIG)
    server.receive(partial(3, 0b010, 1, flags=Flag.CE, sender=1), 1.0)
    assert server.next_timer() == 1.01
    server.expire(1.009)
    assert sent(server) == []
    server.expire(1.01)
    (packet,) = sent(server)
    assert (packet["kind"], packet["bitmap"], packet["sender"]) == (Kind.RESEND, 0, EVERYONE)
    assert packet["flags"] == 0
    server.expire(1.02)
    ask, need = sent(server)
    assert (ask["kind"], need["kind"]) == (Kind.RESEND, Kind.NEED)
    assert (need["bitmap"], need["sender"], need["chunk_id"]) == (0b101, EVERYONE, 3)
    pauses = []
    for _ in range(4):
        due = server.next_timer()
        pauses.append(due - 1.02)
        server.expire(due)
    assert np.diff(pauses).max() == pytest.approx(0.04)
    server.receive(partial(3, 0b101, 1), 2.0)
    assert [int(p["kind"]) for p in sent(server)] == [Kind.RESULT]
    assert server.next_timer() is None


def test_both_levels_are_asked_and_workers_are_named_by_rack():
    server = AggregationServer(RACKS)
    server.receive(partial(3, 0b010, 1, flags=OF_RACKS | Flag.CE), 1.0)
    server.receive(partial(3, 0b100, 1, sender=2), 1.0)
    server.expire(1.01)
    asked = [(p["kind"], p["flags"], p["sender"], p["bitmap"]) for p in sent(server)]
    resend = Kind.RESEND
    assert asked == [(resend, OF_RACK, 0, 0), (resend, Flag.SPINE, EVERYONE, 0), (resend, OF_RACK, 64, 0)]
    server.expire(1.02)
    *again, last = sent(server)
    assert len(again) == 3
    assert (last["kind"], last["flags"], last["sender"]) == (Kind.NEED, Flag.SPINE, EVERYONE)
    assert (last["bitmap"], last["lanes"][:3].tolist()) == (0b101, [0b011, 0, 0b11])


def test_chunk_ids_wrap():
    server = AggregationServer(replace(CONFIG, first_chunk=2**32 - 20))
    for chunk in range(-20, 20):
        server.receive(partial(chunk, 0b111, chunk + 100), 0.0)
    kept = [-20, *range(4, 20)]  # the first, with which workers join, is kept for good
    assert sorted(int(p["lanes"][0]) for p in sent(server)) == [chunk + 100 for chunk in kept]
    server.receive(partial(-1, 0b001, 0), 0.0)
    assert server.stats().dropped["out_of_window"] == 1


def test_a_revived_old_chunk_is_forgotten_not_asked_for():
    server = AggregationServer(CONFIG)
    server.receive(partial(1, 0b001, 1), 0.0)
    server.receive(partial(12, 0b111, 1), 0.001)
    assert len(sent(server)) == 1
    server.expire(0.01)
    assert sent(server) == []
    assert server.next_timer() is None
    assert server.stalled(0.01) is None


def test_a_stall_names_the_oldest_chunk_and_who_is_missing():
    server = AggregationServer(CONFIG)
    server.receive(partial(0, 0b111, 1), 0.0)
    server.receive(partial(2, 0b100, 1), 1.0)
    server.receive(partial(1, 0b010, 1), 2.0)
    assert server.expire(6.9) == []
    (stall,) = server.expire(7.0)
    assert stall == Stalled(9, 1, (0, 2), 5.0, last_seen=(7.0, 6.0))
    assert "still waiting for workers 0 (last seen 7.0 s ago), 2 (last seen 6.0 s ago);" in str(stall)
    assert str(stall).endswith("or give a longer timeout_s if they are slow")
    assert server.expire(7.1) == []


def test_a_stall_names_racks_and_when_their_workers_were_last_seen():
    server = AggregationServer(RACKS)
    server.receive(partial(0, 0b111, 1, flags=OF_RACKS), 0.0)
    server.receive(partial(1, 0b001, 1, flags=OF_RACKS), 1.0)
    server.receive(partial(2, 0b10, 1, sender=65), 2.0)
    server.receive(partial(1, 0b01, 1, sender=64), 2.0)
    (stall,) = server.expire(6.0)
    assert stall == Stalled(9, 1, (32, 65), 5.0, last_seen=(6.0, 4.0), racks=3)
    assert "workers 32 (rack 1, last seen 6.0 s ago), 65 (rack 2, last seen 4.0 s ago)" in str(stall)


def test_who_was_never_heard_of_is_said_to_be_so():
    server = AggregationServer(CONFIG)
    server.receive(partial(0, 0b010, 1), 1.0)
    server.receive(partial(0, 0b001, 1), 2.0)
    assert server.stalled(5.0).last_seen == (None,)
    assert "still waiting for worker 2 (never seen); see" in str(server.stalled(5.0))
    server.receive(partial(1, 0b001, 1), 3.0)
    server.receive(partial(0, 0b100, 1), 4.0)
    assert (server.stalled(5.0).missing_workers, server.stalled(5.0).last_seen) == ((1, 2), (4.0, 1.0))


def test_the_fin_chunk_finishes_the_job_once():
    server = AggregationServer(CONFIG)
    assert server.receive(partial(0, 0b111, 0, flags=Flag.FIN), 0.0) == [JobFinished(9, confirmed=True)]
    assert [int(p["flags"]) for p in sent(server)] == [Flag.FIN]
    assert server.receive(partial(0, 0b010, 0, flags=Flag.FIN, sender=1), 0.1) == []
    assert [int(p["sender"]) for p in sent(server)] == [1]


def test_the_job_ends_without_the_fin_of_a_worker_that_left():
    """It ends `stall` seconds after the last packet with FIN; one that comes later is still answered."""
    server = AggregationServer(CONFIG)
    for now in (1.0, 2.0):
        server.receive(partial(0, 0b011, 0, flags=Flag.FIN, sender=0), now)
    while (due := server.next_timer()) != 7.0:
        assert server.expire(due) == []
        sent(server)
    assert server.expire(7.0) == [JobFinished(9, confirmed=False)]
    assert (server.finished, server.next_timer()) == (True, None)
    assert server.receive(partial(0, 0b100, 0, flags=Flag.FIN, sender=2), 8.0) == []
    assert [(p["kind"], p["flags"]) for p in sent(server)] == [(Kind.RESULT, Flag.FIN)]


@pytest.mark.parametrize(
    ("config", "packet", "reason"),
    [
        (CONFIG, partial(0, 7, 1, version=0), "malformed"),
        (CONFIG, partial(0, 7, 1, job_id=8), "foreign_job"),
        (CONFIG, partial(0, 7, 1, generation=78), "wrong_generation"),
        (CONFIG, partial(0, 7, 1, kind=Kind.CONTRIBUTION), "unexpected_kind"),
        (CONFIG, partial(0, 0b1000, 1), "foreign_worker"),
        (CONFIG, partial(0, 0, 1), "foreign_worker"),
        (CONFIG, partial(0, 0b111, 1, flags=OF_RACKS), "foreign_worker"),  # one level
        (RACKS, partial(0, 0b1000, 1, flags=OF_RACKS), "foreign_worker"),
        (RACKS, partial(0, 0, 1, flags=OF_RACKS), "foreign_worker"),
        (RACKS, partial(0, 0b10, 1, sender=32), "foreign_worker"),
        (RACKS, partial(0, 0b1, 1, sender=96), "foreign_worker"),
        (RACKS, partial(0, 1, 1, sender=EVERYONE), "foreign_worker"),
    ],
)
def test_what_is_not_for_this_job_is_dropped_and_counted(config, packet, reason):
    server = AggregationServer(config)
    assert server.receive(packet, 0.0) == []
    assert sent(server) == []
    dropped = server.stats().dropped
    assert dropped[reason] == 1
    assert sum(dropped.values()) == 1


def test_random_bytes_never_raise_and_memory_stays_bounded():
    server = AggregationServer(replace(CONFIG, workers=32))
    numbers = np.random.default_rng(4)
    for step in range(20):
        noise = numbers.integers(0, 256, (1000, 16 + 4 * LANES), dtype=np.uint8)
        noise[:, 0] = 1
        noise[::2, 1:6] = [Kind.BYPASS, 0, 9, 0, 77]
        server.receive(noise, float(step))
        server.expire(float(step))
        while len(server.to_send(float(step))):
            pass
    stats = server.stats()
    assert stats.packets == 20_000
    assert 0 < sum(stats.dropped.values()) < 20_000
    assert len(sent(server)) == 0


def test_a_stall_counts_from_a_chunk_s_first_part_and_is_reported_again():
    server = AggregationServer(CONFIG)
    server.receive(partial(0, 0b001, 1, sender=0), 1.0)
    server.receive(partial(0, 0b010, 1, sender=1), 4.0)
    (stall,) = server.expire(6.0)
    assert stall.seconds == 5.0
    assert server.expire(10.9) == []
    (stall,) = server.expire(11.0)
    assert (stall.seconds, stall.missing_workers) == (10.0, (2,))


def listed(packet):
    """Return the chunks that a list has as complete."""
    bits = [int(lane) >> bit & 1 for lane in packet["lanes"] for bit in range(32)]
    return [int(packet["chunk_id"]) + number for number, bit in enumerate(bits) if bit]


def owned(chunk):
    """Return the complete sum of a chunk with an owner."""
    return partial(chunk, 0b111, chunk, sender=1, flags=Flag.OWNED)


def test_owners_get_their_results_and_all_a_list_of_sixteen():
    """A list repeats the 48 chunks before those that it is for."""
    server = AggregationServer(replace(CONFIG, window=128))
    for chunk in range(101, 116):
        server.receive(owned(chunk), 0.0)
    answers = [(one["kind"], one["sender"], one["chunk_id"]) for one in sent(server)]
    assert answers == [(Kind.RESULT, chunk % 3, chunk) for chunk in range(101, 116)]
    server.receive(owned(116), 0.0)
    *results, first = sent(server)
    assert [one["chunk_id"] for one in results] == [116]
    header = tuple(int(first[name]) for name in ("kind", "sender", "flags", "bitmap"))
    assert header == (Kind.NEED, EVERYONE, Flag.OWNED, 0)
    assert listed(first) == list(range(101, 117))
    for chunk in range(117, 165):
        server.receive(owned(chunk), 0.0)
    assert listed(sent(server)[-1]) == list(range(101, 165))
    for chunk in range(165, 181):
        server.receive(owned(chunk), 0.0)
    assert listed(sent(server)[-1]) == list(range(117, 181))


def test_a_list_of_few_chunks_waits_half_a_millisecond():
    server = AggregationServer(replace(CONFIG, window=128))
    server.receive(owned(101), 1.0)
    assert len(sent(server)) == 1
    assert server.next_timer() == 1.0005
    server.expire(1.0004)
    assert sent(server) == []
    server.expire(1.0005)
    assert [listed(one) for one in sent(server)] == [[101]]
    assert server.next_timer() is None


def test_a_list_leaves_before_a_later_result_for_all():
    """It has the chunks before that result only."""
    server = AggregationServer(replace(CONFIG, window=128))
    for chunk in (101, 103):
        server.receive(owned(chunk), 2.0)
    server.receive(partial(102, 0b111, 1), 2.0)
    first, second, listing, result = sent(server)
    assert [one["chunk_id"] for one in (first, second, result)] == [101, 103, 102]
    assert listed(listing) == [101]
    assert server.next_timer() == 2.0005


def test_a_chunk_s_owner_alone_completes_it_with_or():
    """What others sent of it before, zeros in a retransmission, changes nothing."""
    server = AggregationServer(CONFIG)
    server.receive(partial(5, 0b100, 0, sender=2, flags=Flag.OR), 0.0)
    assert sent(server) == []
    server.receive(partial(5, 0b010, 9, sender=1, flags=Flag.OR | Flag.OWNED), 0.0)
    (result,) = sent(server)
    assert (result["kind"], result["sender"]) == (Kind.RESULT, EVERYONE)
    assert result["lanes"].tolist() == [9] * LANES
    assert (server.stats().chunks_in_switch, server.stats().chunks_at_server) == (0, 1)
