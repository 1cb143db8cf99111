"""Which chunks a server takes, and what of a row's last chunk is left when the row is reused: nothing.

Packets of chunks outside all windows are dropped: the server asks for nothing and names no worker.
"""

from dataclasses import replace

import numpy as np
import pytest
from job_hosts import CONFIG, LANES, chunks_of, partial, sent, server_at

from peelsum.transport import AggregationServer
from peelsum.wire import EVERYONE, Flag, Kind

WINDOW = CONFIG.window
ROWS = 2 * WINDOW
RUN = 5000
#: Longer than the server waits before it follows what it hears far from where the job was.
PATIENCE = CONFIG.timers.need_most
#: How often a chunk is asked for while nothing of it comes.
ASKS = 8


def settled(newest=RUN, config=CONFIG):
    """Return a server whose newest complete chunk is `newest`, received at time 0."""
    server = AggregationServer(config)
    everybody = config.expected_mask
    flags = Flag.SPINE if config.racks else Flag.NONE
    for chunk in (0, *range(newest - 2 * config.window, newest + 1)):
        server.receive(partial(chunk, everybody, chunk & 0xFFFFFFFF, flags=flags), 0.0)
        assert [int(packet["kind"]) for packet in sent(server)] == [Kind.RESULT]
    return server


def sums_of(server, chunks, now):
    """Return those chunks that complete when each worker's part arrives once."""
    complete = []
    for chunk in chunks:
        for worker in range(3):
            server.receive(partial(chunk, 1 << worker, 1 + worker, sender=worker), now)
        results = [packet for packet in sent(server, now) if packet["kind"] == Kind.RESULT]
        complete += [int(one["chunk_id"]) for one in results if one["lanes"].tolist() == [6] * LANES]
    return complete


@pytest.mark.parametrize("newest", [RUN, 2**31 - 3, 2**32 - 3])
def test_chunks_are_taken_up_to_a_window_from_the_newest_complete_one(newest):
    server = settled(newest)
    for chunk in (newest + WINDOW, newest + 1 - WINDOW):
        server.receive(partial(chunk, 0b001, 1, sender=0), 0.0)
    assert sum(server.stats().dropped.values()) == 0
    sent(server)
    server.receive(partial(newest + WINDOW + 1, 0b001, 1, sender=0), 0.0)
    assert server.stats().dropped["ahead_of_window"] == 1
    server.receive(partial(newest - WINDOW, 0b001, 1, sender=0), 0.0)
    assert server.stats().dropped["out_of_window"] == 1
    assert sent(server) == []


@pytest.mark.parametrize("far", [WINDOW + 1, 2 * WINDOW, 3 * WINDOW, 2**20, 2**30, 2**31 - 1, -(2**31), -100])
@pytest.mark.parametrize("quiet", [0.0, 100.0])
def test_one_stray_packet_neither_stalls_a_job_nor_names_anybody(far, quiet):
    server = settled()
    for _ in range(3):  # the network may repeat it
        server.receive(partial(RUN + far, 0b001, 99, sender=0), quiet)
    assert server.next_timer() is None
    assert server.stalled(quiet) is None
    assert server.expire(quiet + 100) == []
    assert sent(server) == []
    chunks = range(RUN + 1, RUN + 1 + 5 * WINDOW)
    assert sums_of(server, chunks, quiet + 100) == list(chunks)
    assert sum(server.stats().dropped.values()) == 3


def test_random_chunks_make_a_new_server_ask_for_no_more_than_it_heard_of():
    """It does not know yet where the job is, and asks for a chunk near the one it heard of last."""
    numbers, server, now, asked = np.random.default_rng(7), AggregationServer(CONFIG), 0.0, 0
    for _ in range(500):
        server.receive(partial(int(numbers.integers(0, 2**32)), 0b001, 99, sender=0), now)
        while (due := server.next_timer()) is not None and due < now + 0.012:
            server.expire(due)
            asked += len(sent(server, due))
        now += 0.012
    assert asked <= 500
    while (due := server.next_timer()) is not None:
        server.expire(due)
        asked += len(sent(server, due))
    assert asked <= 500 + 2 * ASKS
    chunks = range(RUN, RUN + 100)
    assert sums_of(server, chunks, now + 10) == list(chunks)


@pytest.mark.parametrize("joins_late", [False, True])
def test_a_server_misled_at_its_start_follows_the_job_within_its_patience(joins_late):
    """After a restart, a complete sum that was held up for more than a window is the first that comes.

    A worker that joins late, and is told so, changes nothing of that.
    """
    server = AggregationServer(CONFIG)
    server.receive(partial(0, 0b111, 42), 0.0)
    server.receive(partial(RUN - 2 * WINDOW, 0b111, 99), 0.0)
    sent(server)
    now = 0.0
    answers = []
    while all(packet["chunk_id"] != RUN for packet in answers):
        answers += [packet for packet in sent(server, now) if packet["kind"] == Kind.RESULT]
        assert now < 2.5 * PATIENCE
        now += PATIENCE / 4
        for worker in range(3):
            server.receive(partial(RUN, 1 << worker, 1 + worker, sender=worker), now)
        if joins_late:
            server.receive(partial(0, 0b010, 1, sender=1), now + PATIENCE / 8)
    assert {int(packet["chunk_id"]) for packet in answers} == ({0, RUN} if joins_late else {RUN})
    assert PATIENCE <= now < 1.75 * PATIENCE
    sent(server, now)
    chunks = range(RUN + 1, RUN + 100)
    assert sums_of(server, chunks, now) == list(chunks)


@pytest.mark.parametrize("workers", [3, 3 * LANES])
def test_who_joins_late_is_told_so_for_every_chunk_of_the_first_sum_however_far_the_run_is(workers):
    config, late = replace(CONFIG, workers=workers), workers - 1
    joining = config.joining_chunks
    assert joining == (1 if workers == 3 else 3)
    for newest in (RUN, 2**31 + RUN, 2**32 - 1000):
        server = AggregationServer(config)
        for chunk in (*range(joining), newest - 2**30, newest):
            server.receive(partial(chunk, config.expected_mask, 42), 0.0)
        for chunk in range(newest - 2**30, newest + 1, 2**29):
            server.receive(partial(chunk, config.expected_mask, 42), 0.0)
        sent(server)
        for now in (1.0, 1.1):
            for chunk in range(joining):
                for _ in range(2):
                    server.receive(partial(chunk, 1 << late, 1, sender=late), now)
        answers = sent(server, 1.1)
        assert {int(packet["chunk_id"]) for packet in answers} == set(range(joining))
        assert {packet["sender"] for packet in answers} == {late}
        assert all(packet["lanes"].tolist() == [42] * LANES for packet in answers)


def test_a_chunk_is_asked_for_so_often_and_again_when_a_packet_of_it_comes():
    server, need = AggregationServer(CONFIG), CONFIG.timers.need
    server.receive(partial(0, 0b001, 1, sender=0), 0.0)
    times = []
    while (due := server.next_timer()) is not None:
        server.expire(due)
        if sent(server, due):
            times.append(due)
    pauses = [need, need, 2 * need, 4 * need, 4 * need, 4 * need, 4 * need, 4 * need]
    assert np.diff([0.0, *times]) == pytest.approx(pauses)
    assert len(times) == ASKS
    for now in (10.0, 20.0):
        server.receive(partial(0, 0b001, 1, sender=0), now)
        assert server.next_timer() == pytest.approx(now + 4 * need)
        server.expire(now + 4 * need)
        assert [int(packet["kind"]) for packet in sent(server)] == [Kind.RESEND, Kind.NEED]
        assert server.next_timer() is None


@pytest.mark.parametrize("last", [RUN, RUN + 2 * WINDOW - 1])
def test_after_a_restart_all_chunks_count_that_workers_can_be_at_together(last):
    """The oldest that one worker waits for, and the newest that another has sent, are within 2 W."""
    server = AggregationServer(CONFIG)
    for chunk in (RUN, RUN + 2 * WINDOW - 1, last):
        server.receive(partial(chunk, 0b001, 1, sender=0), 0.0)
    assert server.stalled(0.0).oldest_chunk == RUN
    server.expire(CONFIG.timers.need)
    assert {int(packet["chunk_id"]) for packet in sent(server)} == {RUN, RUN + 2 * WINDOW - 1}


def test_a_first_sum_that_is_incomplete_is_waited_for_until_a_run_is_on():
    server = AggregationServer(CONFIG)
    server.receive(partial(0, 0b001, 1, sender=0), 0.0)
    server.receive(partial(RUN, 0b010, 1, sender=1), 0.0)
    stand = server.stalled(0.0)
    assert (stand.oldest_chunk, stand.missing_workers) == (0, (1, 2))
    server.expire(CONFIG.timers.need)
    assert set(chunks_of(sent(server))) == {0, RUN}
    server.receive(partial(RUN, 0b111, 1), 1.0)
    assert server.stalled(1.0) is None
    server.expire(10.0)
    assert [int(packet["kind"]) for packet in sent(server)] == [Kind.RESULT]


@pytest.mark.parametrize(("bitmap", "to"), [(0b001, 0), (0b110, EVERYONE)])
def test_a_chunk_in_the_row_of_one_that_was_answered_is_answered_at_once(bitmap, to):
    server = server_at(100)
    server.receive(partial(100, bitmap, 1, sender=0), 1.0)
    assert [int(packet["sender"]) for packet in sent(server)] == [to]
    server.receive(partial(100 + WINDOW, 0b111, 1), 1.0)
    server.receive(partial(100 + ROWS, 0b111, 7), 1.0)
    assert len(sent(server)) == 2
    server.receive(partial(100 + ROWS, bitmap, 1, sender=0), 1.0)
    (answer,) = sent(server)
    assert (answer["sender"], answer["chunk_id"], answer["lanes"].tolist()) == (to, 100 + ROWS, [7] * LANES)
    assert server.stats().replies_withheld == 0


def test_a_chunk_in_the_row_of_an_incomplete_one_starts_from_nothing():
    server = server_at(100)
    server.receive(partial(101, 0b011, 50, sender=0, flags=Flag.CE), 0.0)
    for chunk in (100 + WINDOW, 101 + WINDOW):
        server.receive(partial(chunk, 0b111, 1), 0.0)
    assert len(sent(server)) == 2
    for worker in range(3):
        server.receive(partial(101 + ROWS, 1 << worker, 1, sender=worker), 1.0)
    (answer,) = sent(server)
    assert (answer["chunk_id"], answer["flags"], answer["lanes"].tolist()) == (101 + ROWS, 0, [3] * LANES)
