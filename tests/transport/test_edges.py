"""Limits of what endpoint, server and connection count, wait for and accept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from job_hosts import CONFIG, LANES, WORKER_CONFIG, partial, result, sent
from test_endpoint import lossy_start
from udp_switch import CONFIG as UDP_CONFIG
from udp_switch import UdpSwitch

from peelsum.transport import (
    AggregationServer,
    SwitchSummation,
    TensorCompleted,
    Timers,
    TransportConfigError,
    TransportError,
    WorkerEndpoint,
    job_config,
    joining,
)
from peelsum.transport.congestion import CongestionWindow
from peelsum.transport.joining import JoiningSum
from peelsum.transport.layout import unwrap
from peelsum.wire import Flag, Kind, unpack

RUN = 5000


def new_worker(worker_id: int = 0, **changed: Any) -> WorkerEndpoint:
    """Return a worker whose first chunk is 0, with further fields of its configuration changed."""
    return WorkerEndpoint(replace(WORKER_CONFIG, first_chunk=0, **changed), worker_id)


def sending(chunks: int, **changed: Any) -> WorkerEndpoint:
    """Return a new worker that has sent its first window of a sum of `chunks` chunks of zeros."""
    worker = new_worker(**changed)
    worker.submit(np.zeros(chunks * LANES, np.uint32), "add")
    assert len(sent(worker)) == min(chunks, worker.stats().window)
    return worker


def let_expire(worker: WorkerEndpoint) -> float:
    """Let a worker's next timer expire; return when it did."""
    due = worker.next_timer()
    assert due is not None
    worker.expire(due)
    return due


def chunks_of(packets: Iterable[Any], *kinds: Kind) -> list[int]:
    """Return the packets' chunk ids; with `kinds`, only those of packets of these kinds."""
    return [int(packet["chunk_id"]) for packet in packets if not kinds or packet["kind"] in kinds]


def test_a_first_sum_that_is_incomplete_is_waited_for_until_a_run_is_on() -> None:
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


def test_a_worker_is_answered_again_when_just_reply_gap_has_passed() -> None:
    server = AggregationServer(replace(CONFIG, timers=Timers(reply_gap=0.25)))
    server.receive(partial(0, 0b111, 1), 0.0)
    sent(server)
    for now, answers in ((1.0, 1), (1.125, 0), (1.25, 1), (1.375, 0), (1.5, 1)):
        server.receive(partial(0, 0b001, 1, sender=0), now)
        assert len(sent(server)) == answers


def test_a_stall_counts_from_a_chunk_s_first_part_and_is_reported_again() -> None:
    server = AggregationServer(CONFIG)
    server.receive(partial(0, 0b001, 1, sender=0), 1.0)
    server.receive(partial(0, 0b010, 1, sender=1), 4.0)
    (stall,) = server.expire(6.0)
    assert stall.seconds == 5.0
    assert server.expire(10.9) == []
    (stall,) = server.expire(11.0)
    assert (stall.seconds, stall.missing_workers) == (10.0, (2,))


def test_what_was_just_sent_is_not_asked_for_with_the_oldest() -> None:
    worker = sending(32, window=32, initial_window=8)
    worker.receive(np.concatenate([result(chunk) for chunk in range(6)]), 0.001)  # T is 4 ms
    worker.expire(0.0051)
    assert chunks_of(unpack(worker.to_send(0.0051).copy(), LANES)) == [6]
    worker.receive(result(6), 0.0055)
    assert {int(packet["kind"]) for packet in sent(worker, 0.006)} == {Kind.CONTRIBUTION}
    worker.expire(0.0096)
    assert chunks_of(unpack(worker.to_send(0.0096).copy(), LANES)) == [7]


def test_what_is_answered_before_it_is_resent_is_not_resent() -> None:
    worker = sending(2)
    due = let_expire(worker)
    worker.receive(result(0), due)
    assert sent(worker, due) == []
    worker.receive(result(0, kind=Kind.NEED, bitmap=1), due)
    assert chunks_of(sent(worker, due)) == [0]


@pytest.mark.parametrize(("after", "again"), [(0.0004, []), (0.0007, [5])])
def test_a_resend_is_lost_when_later_packets_are_answered_after_half_a_round_trip(
    after: float, again: list[int]
) -> None:
    worker = lossy_start([5])  # resent at 1 ms; a round trip is 1 ms
    worker.receive(result(32), 0.0012)
    (latest, *_) = sent(worker, 0.00121)
    worker.receive(result(int(latest["chunk_id"])), 0.001 + after)
    resent = chunks_of(sent(worker, 0.001 + after), Kind.RETRY, Kind.RESEND)
    assert [chunk for chunk in resent if chunk == 5] == again


def test_backing_off_starts_small_after_an_idle_hour() -> None:
    timers = Timers(first_answer=0.125, resend_most=1000.0)
    worker = sending(1, timers=timers)
    worker.receive(result(0), 0.001)
    worker.submit(np.zeros(1, np.uint32), "add")
    sent(worker, 3600.0)
    pauses, now = [], 3600.0
    for _ in range(4):
        due = let_expire(worker)
        pauses.append(due - now)
        now = due
        assert len(sent(worker, now)) == 1
    # The second is half of T: four round trips of 1 ms. Then each is as long as the silence before it.
    assert pauses == pytest.approx([0.125, 0.002, 0.127, 0.254])


def test_who_was_missing_from_a_chunk_that_is_there_is_not_named_for_the_next() -> None:
    worker = sending(2)
    worker.receive(result(0, kind=Kind.NEED, bitmap=0b110), 0.1)
    assert worker.stalled(0.2).missing_workers == (1, 2)
    worker.receive(result(0), 0.2)
    assert worker.stalled(0.3).missing_workers == ()
    assert "server has not answered" in str(worker.stalled(0.3))


def test_a_worker_that_has_left_sends_no_second_last_chunk() -> None:
    worker = new_worker()
    worker.finish(0.0)
    (fin,) = sent(worker)
    assert (fin["kind"], fin["flags"], fin["lanes"].any()) == (Kind.CONTRIBUTION, Flag.FIN, False)
    assert len(worker.receive(result(0, flags=Flag.FIN), 0.1)) == 1
    assert (worker.outstanding, sent(worker, 0.1), worker.next_timer()) == (0, [], None)


@pytest.mark.parametrize(("lost", "cuts"), [(64, 0), (65, 1)])
def test_losses_of_a_small_window_are_judged_over_128_chunks(lost: int, cuts: int) -> None:
    window = CongestionWindow(1024, 16)
    for _ in range(lost):
        window.on_losses(1, 0, 16)
    assert window.cuts == cuts


@pytest.mark.parametrize("near", [1 << 32, (1 << 32) + 7, (5 << 32) - 1])
def test_positions_reach_half_of_all_chunk_ids_back_and_one_less_ahead(near: int) -> None:
    for away in (-(1 << 31), 1 - (1 << 31), -1, 0, 1, (1 << 31) - 1):
        assert unwrap(near + away & 0xFFFFFFFF, near) == near + away


@pytest.mark.parametrize(("word", "value"), [(0, 0), (2, 0), (1, 0), (1, 1), (1, 0xFFFFFFFF)])
def test_a_run_that_was_answered_with_other_numbers_is_refused(word: int, value: int) -> None:
    part = JoiningSum(UDP_CONFIG, 1)
    numbers = np.array([5, part.words[1], 7], np.uint32)
    part.check(numbers)
    numbers[word] = value if value != part.words[1] else value ^ 2
    with pytest.raises(TransportError, match="generation 4 has run before; admit the job and start"):
        part.check(numbers)


@pytest.mark.parametrize(("drawn", "number"), [(0, 1), ((1 << 32) - 2, (1 << 32) - 1)])
def test_the_number_that_a_worker_joins_with_is_not_zero(
    monkeypatch: pytest.MonkeyPatch, drawn: int, number: int
) -> None:
    def randbelow(below: int) -> int:
        assert drawn < below
        return drawn

    monkeypatch.setattr(joining.secrets, "randbelow", randbelow)
    assert JoiningSum(UDP_CONFIG, 1).words.tolist() == [0, number, 0]


def test_a_worker_whose_own_code_fails_leaves_without_a_last_chunk() -> None:
    with UdpSwitch(8) as switch:
        switch.admit(UDP_CONFIG)
        with pytest.raises(ZeroDivisionError), SwitchSummation(UDP_CONFIG, 0, switch.address(0)) as summation:
            raise ZeroDivisionError
        assert summation.stats().contributions == 0
        with pytest.raises(TransportError, match="this connection is closed"):
            summation.sum_words([])


ADMISSION = {
    "job_id": 1,
    "generation": 2,
    "workers": 2,
    "lanes": 32,
    "window": 64,
    "timeout_s": 30,
    "slots": 128,
    "worker_ports": [0, 510],
    "server_port": 510,
}


def test_an_admission_may_use_half_of_the_slots_and_every_port_of_a_switch() -> None:
    job = job_config(ADMISSION)
    assert (job.window, job.timers.stall, job.first_chunk) == (64, 30.0, 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slots": 127}, "window: 64 is more than half of the switch's 127 slots"),
        ({"worker_ports": [0, 511]}, "port 511 is not a switch port"),
        ({"worker_ports": [-1, 5]}, "port -1 is not a switch port"),
        ({"server_port": 511}, "port 511 is not a switch port"),
        ({"worker_ports": [1]}, "worker_ports: 1 ports for 2 workers"),
        ({"racks": 5}, "racks: 5 is not a list of integers"),
        ({"racks": [1, "x"]}, r"racks\[1\]: 'x' is not an integer"),
        ({"window": [64]}, r"window: \[64\] is not an integer"),
        ({"timers": {}}, "timers: belong to each host"),
        ({"timeout_s": 0}, "timeout_s: 0 is not a number of seconds"),
        ({"timeout_s": float("inf")}, "timeout_s: inf is not a number of seconds"),
        ({"lanes": True}, "lanes: True is not an integer"),
    ],
)
def test_an_admission_that_no_switch_can_have_is_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(TransportConfigError, match=message):
        job_config({**ADMISSION, **changed})


def test_a_worker_that_waits_for_nothing_never_stalls() -> None:
    worker = new_worker(timers=Timers(stall=2.0))
    assert (sent(worker, 5.0), worker.next_timer(), worker.expire(100.0)) == ([], None, [])
    worker.submit(np.zeros(1, np.uint32), "add")
    assert len(sent(worker, 200.0)) == 1
    worker.receive(result(0), 200.1)
    assert (sent(worker, 201.0), worker.next_timer(), worker.expire(300.0)) == ([], None, [])


def in_a_run() -> tuple[WorkerEndpoint, int]:
    """Return a worker that has joined by chunk 0 and sent two chunks of its run, and the first one's id."""
    worker = new_worker(1)
    worker.submit(np.full(1, 77, np.uint32), "add")
    assert len(sent(worker)) == 1
    worker.receive(result(0, kind=Kind.NEED, bitmap=0b100), 0.0)
    worker.receive(result(0), 0.0)
    worker.start_run(5)
    worker.submit(np.full(2 * LANES, 88, np.uint32), "add")
    first, second = chunks_of(sent(worker))
    assert second == first + 1
    return worker, first


@pytest.mark.parametrize("before", [1, 2, WORKER_CONFIG.window])
def test_a_result_of_a_chunk_between_the_first_sum_and_the_run_is_not_taken(before: int) -> None:
    worker, first = in_a_run()
    assert worker.receive(result(first - before, 5), 0.1) == []
    (event,) = worker.receive(np.concatenate([result(first, 7), result(first + 1, 9)]), 0.1)
    assert isinstance(event, TensorCompleted)
    assert event.words.tolist() == [7] * LANES + [9] * LANES
    assert (worker.stats().results, worker.stats().duplicates) == (3, 1)


def test_a_need_for_the_first_sum_or_for_the_first_chunk_of_the_run_is_heeded() -> None:
    worker, first = in_a_run()
    for chunk, word in ((0, 77), (first, 88), (first + 1, 88)):
        worker.receive(result(chunk, kind=Kind.NEED, bitmap=0b010), 0.1)
        (packet,) = sent(worker, 0.1)
        assert (packet["kind"], packet["chunk_id"], packet["lanes"][0]) == (Kind.RESEND, chunk, word)
    for chunk in (1, first - 1, first + 2):
        worker.receive(result(chunk, kind=Kind.NEED, bitmap=0b010), 0.1)
    assert sent(worker, 0.1) == []


def test_a_need_for_the_first_sum_is_heeded_until_the_run_is_a_window_on() -> None:
    """The first sum's only chunk counts as the one just before the run's first."""
    worker, first = in_a_run()
    window = WORKER_CONFIG.window
    worker.submit(np.zeros(window * LANES, np.uint32), "add")
    for done in range(window + 1):
        sent(worker, 0.1)
        worker.receive(result(0, kind=Kind.NEED, bitmap=0b010), 0.1)
        resent = chunks_of(sent(worker, 0.1))
        assert resent == ([0] if done <= window - 1 else [])
        worker.receive(result(first + done), 0.1)


def test_who_was_missing_when_the_workers_joined_is_not_named_for_the_run() -> None:
    worker, _ = in_a_run()
    assert worker.stalled(0.2).missing_workers == ()


def test_a_need_is_heeded_though_the_chunk_was_to_be_resent_and_is_answered_before_that() -> None:
    worker = sending(2)
    due = let_expire(worker)
    worker.receive(result(0, kind=Kind.NEED, bitmap=1), due)
    worker.receive(result(0), due)
    assert chunks_of(sent(worker, due)) == [0]


def test_packets_of_a_chunk_do_not_put_its_first_request_off() -> None:
    server = AggregationServer(CONFIG)
    server.receive(partial(0, 0b001, 1, sender=0), 1.0)
    server.receive(partial(0, 0b010, 1, sender=1), 1.008)
    server.receive(partial(0, 0b010, 1, sender=1), 1.009)
    assert server.next_timer() == 1.0 + CONFIG.timers.need


@pytest.mark.parametrize("sender", [3, 31, 32, 1000])
def test_a_sender_that_the_job_does_not_have_is_not_answered(sender: int) -> None:
    server = AggregationServer(CONFIG)
    server.receive(partial(0, 0b111, 1), 0.0)
    sent(server)
    server.receive(partial(0, 0b001, 1, sender=sender), 1.0)
    assert sent(server) == []
    server.receive(partial(0, 0b001, 1, sender=2), 1.0)
    assert [int(packet["sender"]) for packet in sent(server)] == [2]


@pytest.mark.parametrize(("behind", "kept"), [(2 * CONFIG.window - 1, True), (2 * CONFIG.window, False)])
def test_a_new_server_keeps_what_is_less_than_two_windows_behind_the_latest(behind: int, kept: bool) -> None:
    server = AggregationServer(CONFIG)
    for chunk in (RUN - behind, RUN):
        server.receive(partial(chunk, 0b001, 1, sender=0), 0.0)
    assert server.stalled(0.0).oldest_chunk == (RUN - behind if kept else RUN)


@pytest.mark.parametrize(("after", "again"), [(0.0002, []), (0.0008, [5])])
def test_the_answer_to_a_resend_shows_what_was_lost_before_it_if_it_can_be_the_answer(
    after: float, again: list[int]
) -> None:
    """An answer within half a round trip is to the packet that was sent first."""
    worker = lossy_start([5])  # resent at 1 ms; a round trip is 1 ms
    worker.receive(np.concatenate([result(chunk) for chunk in (33, 34, 35)]), 0.002)
    resent = chunks_of(sent(worker, 0.002), Kind.RETRY, Kind.RESEND)
    assert resent == [32]
    worker.receive(result(32), 0.002 + after)
    assert chunks_of(sent(worker, 0.002 + after), Kind.RETRY, Kind.RESEND) == again


def test_an_older_answer_in_the_same_batch_hides_no_loss() -> None:
    worker = lossy_start([5])
    worker.receive(result(32), 0.0012)
    (latest, *_) = sent(worker, 0.00121)
    worker.receive(np.concatenate([result(int(latest["chunk_id"])), result(33)]), 0.0018)
    assert (Kind.RETRY, 5) in [(packet["kind"], packet["chunk_id"]) for packet in sent(worker, 0.0018)]


def test_an_older_result_in_the_same_batch_hides_no_loss() -> None:
    worker = sending(5)
    worker.receive(np.concatenate([result(3), result(1)]), 0.001)
    packets = sent(worker, 0.001)
    assert [(int(packet["kind"]), int(packet["chunk_id"])) for packet in packets] == [(Kind.RETRY, 0)]


def test_only_the_oldest_chunk_and_what_was_resent_have_a_timer() -> None:
    worker = sending(8)
    worker.receive(np.concatenate([result(chunk) for chunk in (0, 1, 2, 3, 4, 7)]), 0.001)  # T is 4 ms
    assert worker.next_timer() == pytest.approx(0.005)
    worker.expire(0.00501)
    assert chunks_of(sent(worker, 0.00501)) == [5]
    due = worker.next_timer()
    assert due is not None
    assert due > 0.00501


def test_silence_does_not_count_as_loss_so_the_window_stays() -> None:
    """Others may still be computing. A result that came meanwhile shows that the chunk was lost."""
    silent, answered = (sending(128, window=128, initial_window=64) for _ in range(2))
    answered.receive(result(1), 0.001)
    for worker in (silent, answered):
        worker.expire(0.2)
        assert sent(worker, 0.2)[0]["kind"] == Kind.RETRY
    assert (silent.stats().window, answered.stats().window) == (64, 32)


def test_a_chunk_in_the_row_of_one_that_was_waited_for_is_waited_for_again() -> None:
    server = AggregationServer(CONFIG)
    server.receive(partial(100, 0b111, 1), 0.0)
    server.receive(partial(101, 0b001, 1, sender=0), 0.0)
    server.receive(partial(100 + CONFIG.window, 0b111, 1), 0.001)
    server.receive(partial(101 + CONFIG.window, 0b111, 1), 0.001)
    server.receive(partial(101 + 2 * CONFIG.window, 0b001, 1, sender=0), 0.005)
    assert server.next_timer() == pytest.approx(0.005 + CONFIG.timers.need)
