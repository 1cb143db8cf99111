"""A row of a worker's or a server's state keeps nothing of its last chunk when it is reused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from job_hosts import CONFIG, LANES, WORKER_CONFIG, partial, result, sent

from peelsum.transport import (
    AggregationServer,
    Timers,
    WorkerEndpoint,
)
from peelsum.transport.endpoint_state import Cursor
from peelsum.transport.layout import run_start
from peelsum.wire import EVERYONE, Flag, Kind

WINDOW = CONFIG.window
ROWS = 2 * WINDOW


def server_at(newest: int) -> AggregationServer:
    """Return a server with this newest complete chunk."""
    server = AggregationServer(CONFIG)
    server.receive(partial(newest, 0b111, 1), 0.0)
    assert len(sent(server)) == 1
    return server


def test_a_chunk_in_the_row_of_one_that_was_asked_for_is_asked_of_the_switch_first() -> None:
    server = server_at(100)
    server.receive(partial(101, 0b001, 1, sender=0), 0.0)
    for _ in range(3):
        due = server.next_timer()
        assert due is not None
        server.expire(due)
    assert {int(packet["kind"]) for packet in sent(server)} == {Kind.RESEND, Kind.NEED}
    server.receive(partial(101, 0b111, 1), 1.0)
    server.receive(partial(101 + WINDOW, 0b111, 1), 1.0)
    sent(server)
    server.receive(partial(101 + ROWS, 0b001, 1, sender=0), 2.0)
    assert server.next_timer() == 2.0 + CONFIG.timers.need
    server.expire(2.0 + CONFIG.timers.need)
    assert [(int(p["kind"]), int(p["chunk_id"])) for p in sent(server)] == [(Kind.RESEND, 101 + ROWS)]
    assert server.next_timer() == pytest.approx(2.0 + 2 * CONFIG.timers.need)


@pytest.mark.parametrize(("bitmap", "to"), [(0b010, 1), (0b110, EVERYONE)])
def test_a_chunk_in_the_row_of_one_that_was_answered_is_answered_at_once(bitmap: int, to: int) -> None:
    server = server_at(100)
    server.receive(partial(100, bitmap, 1, sender=1), 1.0)
    assert [int(packet["sender"]) for packet in sent(server)] == [to]
    server.receive(partial(100 + WINDOW, 0b111, 1), 1.0)
    server.receive(partial(100 + ROWS, 0b111, 7), 1.0)
    assert len(sent(server)) == 2
    server.receive(partial(100 + ROWS, bitmap, 1, sender=1), 1.0)
    (answer,) = sent(server)
    assert (answer["sender"], answer["chunk_id"], answer["lanes"].tolist()) == (to, 100 + ROWS, [7] * LANES)
    assert server.stats().replies_withheld == 0


def test_a_chunk_in_the_row_of_an_incomplete_one_starts_from_nothing() -> None:
    server = server_at(100)
    server.receive(partial(101, 0b011, 50, sender=0, flags=Flag.CE), 0.0)
    for chunk in (100 + WINDOW, 101 + WINDOW):
        server.receive(partial(chunk, 0b111, 1), 0.0)
    assert len(sent(server)) == 2
    for worker in range(3):
        server.receive(partial(101 + ROWS, 1 << worker, 1, sender=worker), 1.0)
    (answer,) = sent(server)
    assert (answer["chunk_id"], answer["flags"], answer["lanes"].tolist()) == (101 + ROWS, 0, [3] * LANES)


def test_what_a_row_owed_is_not_sent_for_the_chunk_that_has_it_next() -> None:
    server = server_at(100)
    server.receive(partial(101, 0b111, 1), 0.0)
    server.receive(partial(101 + WINDOW, 0b111, 1), 0.0)
    server.receive(partial(101 + ROWS, 0b001, 1, sender=0), 0.0)
    assert [int(packet["chunk_id"]) for packet in sent(server)] == [101 + WINDOW]


def test_a_stall_counts_from_when_the_chunk_came_not_the_one_before_it() -> None:
    server = server_at(100)
    server.receive(partial(101, 0b001, 1, sender=0), 0.0)
    server.receive(partial(101, 0b110, 1), 1.0)
    server.receive(partial(101 + WINDOW, 0b111, 1), 1.0)
    server.receive(partial(101 + ROWS, 0b001, 1, sender=0), 100.0)
    assert server.expire(100.0 + CONFIG.timers.stall - 0.1) == []
    assert len(server.expire(100.0 + CONFIG.timers.stall)) == 1


def test_an_older_chunk_that_completes_after_a_newer_one_moves_nothing_back() -> None:
    server = server_at(100)
    server.receive(partial(104, 0b111, 4), 0.0)
    server.receive(partial(101, 0b111, 1), 0.0)
    assert [int(packet["chunk_id"]) for packet in sent(server)] == [104, 101]
    server.receive(partial(104 + WINDOW, 0b111, 5), 0.0)
    assert [int(packet["chunk_id"]) for packet in sent(server)] == [104 + WINDOW]
    server.receive(partial(104, 0b001, 1), 0.0)
    assert server.stats().dropped["out_of_window"] == 1


def test_a_newer_chunk_in_the_same_row_after_an_older_one_completes_late() -> None:
    """Chunk 101 completes when 101 + WINDOW has; its row is free for 101 + ROWS all the same."""
    server = server_at(100)
    server.receive(partial(101, 0b001, 1, sender=0), 0.0)
    server.receive(partial(100 + WINDOW, 0b111, 9), 0.0)
    server.receive(partial(101, 0b110, 1), 0.0)
    assert sorted(int(packet["chunk_id"]) for packet in sent(server)) == [101, 100 + WINDOW]
    server.receive(partial(101 + WINDOW, 0b111, 9), 0.0)
    server.receive(partial(101 + ROWS, 0b111, 3), 0.0)
    assert [int(packet["chunk_id"]) for packet in sent(server)] == [101 + WINDOW, 101 + ROWS]


def test_a_short_chunk_is_padded_with_zeros_though_its_row_held_a_full_one() -> None:
    worker = WorkerEndpoint(replace(WORKER_CONFIG, first_chunk=0), 0)
    full = np.full(2 * WORKER_CONFIG.window * LANES, 0xFFFFFFFF, np.uint32)
    worker.submit(full, "add")
    for chunk in range(2 * WORKER_CONFIG.window):
        assert all((packet["lanes"] == 0xFFFFFFFF).all() for packet in sent(worker))
        worker.receive(result(chunk), 0.0)
    worker.submit(np.array([7], np.uint32), "or")
    (packet,) = sent(worker)
    assert packet["lanes"].tolist() == [7] + [0] * (LANES - 1)
    assert (packet["flags"], packet["chunk_id"]) == (Flag.OR, 2 * WORKER_CONFIG.window)


def test_a_chunk_in_a_reused_row_has_neither_tries_nor_an_answer() -> None:
    worker = WorkerEndpoint(replace(WORKER_CONFIG, first_chunk=0, timers=Timers(first_answer=0.5)), 0)
    rows = 2 * WORKER_CONFIG.window
    worker.submit(np.zeros((rows + 1) * LANES, np.uint32), "add")
    sent(worker, 0.0)
    worker.expire(0.5)
    assert [int(packet["chunk_id"]) for packet in sent(worker, 0.5)] == [0]
    for chunk in range(rows):
        worker.receive(result(chunk), 1.0)
        sent(worker, 1.0)
    before = worker.stats()
    assert worker.outstanding == 1
    worker.receive(result(rows), 1.25)
    assert worker.outstanding == 0
    after = worker.stats()
    assert (after.results, after.duplicates) == (before.results + 1, before.duplicates)
    assert after.rtt_most == pytest.approx(1.0), "measured, as it was sent once"
    assert worker.state.clock[6] == before.results, "all but the one that was resent, and this one"


@pytest.mark.parametrize(("further", "counted"), [(0, (1, 0)), (1, (0, 1))])
def test_a_result_just_a_window_behind_is_a_duplicate_and_one_before_it_out_of_the_window(
    further: int, counted: tuple[int, int]
) -> None:
    worker = WorkerEndpoint(replace(WORKER_CONFIG, first_chunk=0), 0)
    worker.submit(np.zeros(20 * LANES, np.uint32), "add")
    for chunk in range(20):
        sent(worker)
        worker.receive(result(chunk), 0.0)
    worker.receive(result(20 - WORKER_CONFIG.window - further), 0.0)
    stats = worker.stats()
    assert (stats.duplicates, stats.dropped["out_of_window"]) == counted


def test_a_result_of_the_next_chunk_to_send_is_out_of_the_window() -> None:
    worker = WorkerEndpoint(replace(WORKER_CONFIG, first_chunk=0), 0)
    worker.submit(np.zeros(20 * LANES, np.uint32), "add")
    sent_chunks = len(sent(worker))
    worker.receive(result(sent_chunks), 0.0)
    assert worker.stats().dropped["out_of_window"] == 1
    worker.receive(result(sent_chunks - 1), 0.0)
    assert worker.stats().results == 1


def probing() -> tuple[WorkerEndpoint, int]:
    """Return a worker that has sent 24 chunks and got the results of the first 8, at 1 ms."""
    config = replace(WORKER_CONFIG, window=32, initial_window=32, first_chunk=0)
    worker = WorkerEndpoint(config, 0)
    worker.submit(np.zeros(32 * LANES, np.uint32), "add")
    assert len(sent(worker)) == 32
    worker.receive(np.concatenate([result(chunk) for chunk in range(8)]), 0.001)
    return worker, 8


def asked(worker: WorkerEndpoint) -> tuple[list[int], float]:
    """Return the chunks that the worker resends when its timer runs out, and that time."""
    due = worker.next_timer()
    assert due is not None
    worker.expire(due)
    return [int(packet["chunk_id"]) for packet in sent(worker, due)], due


def test_twice_as_many_chunks_are_asked_for_each_time_that_asking_helped() -> None:
    worker, oldest = probing()
    for count in (1, 2, 4, 8):
        chunks, due = asked(worker)
        assert chunks == list(range(oldest, oldest + count))
        worker.receive(np.concatenate([result(chunk) for chunk in chunks]), due + 0.0005)
        oldest += count
    assert worker.stats().resends == 15


def test_one_chunk_is_asked_for_while_asking_does_not_help() -> None:
    worker, oldest = probing()
    for _ in range(6):
        assert asked(worker)[0] == [oldest]


def test_one_chunk_is_asked_for_again_when_more_came_than_had_been_asked_for() -> None:
    """The other results are on their way: the chunks that the timer took for lost were late."""
    worker, oldest = probing()
    chunks, due = asked(worker)
    worker.receive(np.concatenate([result(oldest + n) for n in range(3)]), due + 0.0005)
    chunks, _ = asked(worker)
    assert chunks == [oldest + 3]


def test_twice_what_was_asked_for_may_come_and_still_count_as_help() -> None:
    worker, oldest = probing()
    _, due = asked(worker)
    worker.receive(np.concatenate([result(oldest + n) for n in range(2)]), due + 0.0005)
    chunks, _ = asked(worker)
    assert chunks == [oldest + 2, oldest + 3]


def test_no_more_chunks_are_asked_for_than_rows_remember() -> None:
    worker, _ = probing()
    cursors = worker.state.cursors
    cursors[Cursor.PROBES] = len(worker.state.answered)
    cursors[Cursor.RESULTS_BEFORE] = worker.state.counts[2] - 1
    chunks, _ = asked(worker)
    assert len(chunks) == 24
    assert cursors[Cursor.PROBES] == len(worker.state.answered)


@pytest.mark.parametrize("window", [1, 8, 512, 1 << 16])
def test_where_runs_start(window: int) -> None:
    ring, joined = 2 * window, (1 << 32) + 100
    ways = (1 << 31) // ring - 2
    for number, rings in (
        (0, 1),
        (1, 2),
        (ways - 1, ways),
        (ways, 1),
        (ways + 1, 2),
        ((1 << 32) - 1, 1 + ((1 << 32) - 1) % ways),
    ):
        assert run_start(joined, number, window) == joined + ring * rings
    assert run_start(joined, ways - 1, window) - joined <= (1 << 31) - 2 * ring
