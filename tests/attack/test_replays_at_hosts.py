"""Replayed and forged packets reach a server or a worker: no sum changes, and each packet is counted."""

from __future__ import annotations

import numpy as np
import pytest

from peelsum.transport import AggregationServer, JobConfig, TensorCompleted, Timers, WorkerEndpoint
from peelsum.wire import EVERYONE, Flag, Kind, pack, unpack

LANES, WINDOW, FIRST = 4, 8, 0xFFFFFFF0
CONFIG = JobConfig(
    job_id=9,
    generation=77,
    workers=3,
    lanes=LANES,
    window=WINDOW,
    first_chunk=FIRST,
    timers=Timers(reply_gap=0.001),
)


def packet(kind: Kind, chunk: int, value: int, **fields: int) -> np.ndarray:
    header = {"job_id": 9, "generation": 77, "sender": EVERYONE, "chunk_id": chunk & 0xFFFFFFFF, **fields}
    return pack(np.full((1, LANES), value, np.uint32), kind=kind, **header)


def sent(machine: AggregationServer | WorkerEndpoint, now: float) -> list[np.void]:
    packets: list[np.void] = []
    while len(batch := machine.to_send(now)):
        packets.extend(unpack(batch.copy(), LANES))
    return packets


def server_after(chunks: int) -> AggregationServer:
    """Return a server that has summed chunks FIRST to FIRST + chunks - 1, each from three parts."""
    server = AggregationServer(CONFIG)
    for chunk in range(FIRST, FIRST + chunks):
        for worker in range(3):
            server.receive(packet(Kind.BYPASS, chunk, 1, bitmap=1 << worker, sender=worker), 0.0)
        (result,) = sent(server, 0.0)
        assert result["lanes"].tolist() == [3] * LANES
    return server


@pytest.mark.parametrize("back", range(WINDOW))
def test_a_replay_of_a_kept_chunk_is_answered_with_the_sum_as_it_was(back: int) -> None:
    """Copies are not added, and get at most one answer per `reply_gap`."""
    server = server_after(40)
    chunk = FIRST + 39 - back
    for _ in range(5):
        server.receive(packet(Kind.BYPASS, chunk, 0xDEADBEEF, bitmap=0b010, sender=1), 1.0)
    (answer,) = sent(server, 1.0)
    assert (answer["kind"], answer["sender"], answer["chunk_id"]) == (Kind.RESULT, 1, chunk & 0xFFFFFFFF)
    assert answer["lanes"].tolist() == [3] * LANES
    stats = server.stats()
    assert (stats.duplicates, stats.replies, stats.replies_withheld) == (5, 1, 4)


@pytest.mark.parametrize("back", [WINDOW, WINDOW + 1, 3 * WINDOW, 38, 40, 1000, 2**30, 2**31 - 100])
def test_a_replay_from_before_the_window_is_dropped_up_to_the_horizon(back: int) -> None:
    """A packet older than half of all chunk ids reads as the future, and is dropped as such."""
    server = server_after(40)
    for worker in range(3):
        old = packet(Kind.BYPASS, FIRST + 39 - back, 0xDEADBEEF, bitmap=1 << worker, sender=worker)
        server.receive(old, 1.0)
    assert sent(server, 1.0) == []
    assert server.stats().dropped["out_of_window"] == 3
    server.receive(packet(Kind.BYPASS, FIRST + 40, 7, bitmap=0b111, sender=0), 1.0)
    (result,) = sent(server, 1.0)
    assert result["lanes"].tolist() == [7] * LANES


def test_a_replay_of_the_first_chunk_is_answered_with_the_sum_as_it_was() -> None:
    """The server keeps the first chunk's result permanently, for workers that join late."""
    server = server_after(40)
    server.receive(packet(Kind.BYPASS, FIRST, 0xDEADBEEF, bitmap=0b010, sender=1), 1.0)
    (answer,) = sent(server, 1.0)
    assert (answer["kind"], answer["sender"], answer["chunk_id"]) == (Kind.RESULT, 1, FIRST)
    assert answer["lanes"].tolist() == [3] * LANES


def test_a_worker_s_part_is_taken_once_however_often_and_with_whatever_lanes_it_comes() -> None:
    server = AggregationServer(CONFIG)
    for value in (5, 0xDEADBEEF, 0):
        server.receive(packet(Kind.BYPASS, FIRST, value, bitmap=0b001, sender=0), 0.0)
    server.receive(packet(Kind.BYPASS, FIRST, 6, bitmap=0b110, sender=1), 0.0)
    (result,) = sent(server, 0.0)
    assert result["lanes"].tolist() == [11] * LANES
    assert server.stats().duplicates == 2


def worker_with_sums() -> tuple[WorkerEndpoint, np.ndarray]:
    """Return a worker that has results for chunks FIRST to FIRST + 29, and waits for two more."""
    worker = WorkerEndpoint(CONFIG, 1)
    worker.submit(np.zeros(30 * LANES, np.uint32), "add")
    events: list[object] = []
    while not events:
        for one in sent(worker, 0.0):
            events += worker.receive(packet(Kind.RESULT, int(one["chunk_id"]), 3, bitmap=0b111), 0.0)
    ((done,),) = [events]
    assert isinstance(done, TensorCompleted)
    worker.submit(np.zeros(2 * LANES, np.uint32), "add")
    assert len(sent(worker, 0.0)) == 2
    return worker, done.words


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (packet(Kind.RESULT, FIRST + 30, 99, job_id=8), "foreign_job"),
        (packet(Kind.RESULT, FIRST + 30, 99, generation=76), "wrong_generation"),
        (packet(Kind.BYPASS, FIRST + 30, 99), "unexpected_kind"),
        (packet(Kind.CONTRIBUTION, FIRST + 30, 99), "unexpected_kind"),
        (packet(Kind.RESEND, FIRST + 30, 99), "unexpected_kind"),
        (packet(Kind.RESET, FIRST + 30, 99), "unexpected_kind"),
        (packet(Kind.RESULT, FIRST + 30, 99, version=2), "malformed"),
        (packet(Kind.RESULT, FIRST + 30, 99, flags=0x80), "malformed"),
        (packet(Kind.RESULT, FIRST + 32, 99), "out_of_window"),
        (packet(Kind.RESULT, FIRST + 29 - WINDOW, 99), "out_of_window"),
        (packet(Kind.RESULT, FIRST + 29 - 2**31, 99), "out_of_window"),
    ],
)
def test_a_packet_that_is_not_a_result_of_a_chunk_in_flight_changes_nothing(
    forged: np.ndarray, reason: str
) -> None:
    worker, words = worker_with_sums()
    assert worker.receive(forged, 0.0) == []
    assert worker.stats().dropped[reason] == 1
    assert (words == 3).all()
    (done,) = worker.receive(
        np.concatenate([packet(Kind.RESULT, FIRST + 30, 4), packet(Kind.RESULT, FIRST + 31, 4)]), 0.0
    )
    assert (done.words == 4).all()


def test_a_result_replayed_with_other_lanes_does_not_replace_the_first() -> None:
    worker, words = worker_with_sums()
    for chunk in range(FIRST + 30 - WINDOW, FIRST + 30):
        assert worker.receive(packet(Kind.RESULT, chunk, 0xDEADBEEF), 0.0) == []
    worker.receive(packet(Kind.RESULT, FIRST + 31, 4), 0.0)
    assert worker.receive(packet(Kind.RESULT, FIRST + 31, 99), 0.0) == []
    (done,) = worker.receive(packet(Kind.RESULT, FIRST + 30, 4), 0.0)
    assert (words == 3).all()
    assert (done.words == 4).all()
    assert worker.stats().duplicates == WINDOW + 1


def test_needs_for_what_a_worker_never_sent_or_no_longer_keeps_are_ignored() -> None:
    worker, _ = worker_with_sums()
    for chunk in (FIRST + 32, FIRST + 29 - WINDOW, FIRST - 1, FIRST + 2**31):
        worker.receive(packet(Kind.NEED, chunk, 0, bitmap=0b111), 0.0)
    worker.receive(packet(Kind.NEED, FIRST + 30, 0, bitmap=0b101), 0.0)
    assert sent(worker, 0.0) == []
    worker.receive(packet(Kind.NEED, FIRST + 30, 0, bitmap=0b010), 0.0)
    (resend,) = sent(worker, 0.0)
    assert (resend["kind"], resend["flags"], resend["sender"]) == (Kind.RESEND, Flag.NONE, 1)
