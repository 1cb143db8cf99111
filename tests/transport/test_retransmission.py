"""When a worker retransmits, as docs/reference/protocol.md says, and how it measures round trips."""

from dataclasses import replace

import numpy as np
import pytest
from job_hosts import (
    LANES,
    WORKER_CONFIG,
    WRAP,
    WRAPPING,
    chunks_of,
    let_expire,
    lossy_start,
    result,
    sending,
    sent,
)

from peelsum.transport import Timers, WorkerEndpoint
from peelsum.transport.endpoint_state import Clock
from peelsum.wire import Kind


def test_while_all_is_silent_only_the_oldest_chunk_asks():
    endpoint = WorkerEndpoint(replace(WRAPPING, timers=Timers(first_answer=0.5)), 1)
    endpoint.submit(np.zeros(5 * LANES, np.uint32), "add")
    sent(endpoint, 10.0)
    assert endpoint.next_timer() == 10.5
    assert endpoint.expire(10.4) == []
    assert sent(endpoint, 10.4) == []
    endpoint.expire(10.5)
    (packet,) = sent(endpoint, 10.5)
    assert (packet["kind"], packet["chunk_id"], packet["bitmap"]) == (Kind.RETRY, 0xFFFFFFFE, 2)
    again = endpoint.next_timer()
    assert again > 10.5


def test_back_off_ends_at_the_cap():
    endpoint = sending(1, 1, timers=Timers(first_answer=0.5, resend_most=0.8))
    times = [0.0]
    for _ in range(12):
        times.append(let_expire(endpoint))
        sent(endpoint, times[-1])
    pauses = np.diff(times)
    assert pauses[:2] == pytest.approx([0.5, 0.25]), "a RESEND follows the RETRY soon"
    assert np.diff(pauses[1:]).min() > -1e-9
    assert pauses[-1] == pytest.approx(0.8)


def test_a_chunk_overtaken_by_three_is_resent_at_once():
    endpoint = WorkerEndpoint(WRAPPING, 0)
    words = np.arange(8 * LANES, dtype=np.uint32)
    endpoint.submit(words, "add")
    sent(endpoint)
    endpoint.receive(np.concatenate([result(-1), result(0)]), 0.001)
    assert sent(endpoint, 0.001) == []
    endpoint.receive(result(1), 0.001)
    (packet,) = sent(endpoint, 0.001)
    assert (packet["kind"], packet["chunk_id"]) == (Kind.RETRY, 0xFFFFFFFE)
    np.testing.assert_array_equal(packet["lanes"], words[:LANES])
    endpoint.receive(result(2), 0.001)
    assert sent(endpoint, 0.001) == [], "the resend has had no time to be answered"


def test_a_missing_chunk_holds_nothing_up_until_the_window_is_full():
    endpoint = WorkerEndpoint(replace(WORKER_CONFIG, window=256, initial_window=64), 0)
    endpoint.submit(np.zeros(400 * LANES, np.uint32), "add")
    count = len(sent(endpoint))
    for chunk in range(1, 256):
        assert count > chunk
        endpoint.receive(result(chunk), 0.1)
        count += sum(p["kind"] == Kind.CONTRIBUTION for p in sent(endpoint, 0.1))
    assert count == 256
    endpoint.receive(result(0), 0.1)
    assert sent(endpoint, 0.1)[0]["chunk_id"] == 256


def test_a_lost_resend_is_known_by_the_answer_to_what_was_sent_after_it():
    endpoint = lossy_start([5, 9])
    endpoint.receive(np.concatenate([result(c) for c in range(32, 40)]), 0.0015)
    assert sent(endpoint, 0.00151)[0]["kind"] == Kind.CONTRIBUTION, "sent at the same time, not after"
    endpoint.receive(np.concatenate([result(c) for c in range(40, 96)]), 0.0025)
    again = [(p["kind"], p["chunk_id"]) for p in sent(endpoint, 0.0025) if p["kind"] != Kind.CONTRIBUTION]
    assert again == [(Kind.RETRY, 5), (Kind.RESEND, 9)], "chunk 9 is worker 0's to take out of the switch"
    assert endpoint.stats().lost == 2, "each once: only its first try tells of the network's room"


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_the_second_time_one_worker_takes_the_sum_out_of_the_switch_then_all_may(worker):
    endpoint, kinds = sending(5, worker, first_chunk=WRAP), []
    for _ in range(4):
        now = endpoint.next_timer() + 10.0  # all have been silent long enough
        endpoint.expire(now)
        kinds.append({int(p["chunk_id"]): Kind(p["kind"]) for p in sent(endpoint, now)})
    second = Kind.RESEND if worker == WRAP % 3 else Kind.RETRY
    assert [one[WRAP] for one in kinds] == [Kind.RETRY, second, Kind.RESEND, Kind.RESEND]


def test_a_resend_follows_a_retry_soon_even_in_silence():
    endpoint = sending(1, 2, first_chunk=WRAP, timers=Timers(first_answer=0.5, resend_most=10.0))
    waits = []
    for _ in range(4):
        due = let_expire(endpoint)
        waits.append((round(due, 6), Kind(sent(endpoint, due)[0]["kind"])))
    assert waits == [(0.5, Kind.RETRY), (0.75, Kind.RESEND), (1.5, Kind.RESEND), (3.0, Kind.RESEND)]


def test_nothing_is_sent_again_while_a_queue_grows_and_results_flow():
    """A port that sends a chunk every 2 ms: round trips grow to 64 ms, faster than the measured timer."""
    endpoint = sending(200, window=64, initial_window=32)
    now = 0.0
    for chunk in range(200):
        now += 0.002
        endpoint.expire(now)
        endpoint.receive(result(chunk), now)
        assert all(packet["kind"] == Kind.CONTRIBUTION for packet in sent(endpoint, now))
    stats = endpoint.stats()
    assert (stats.results, stats.resends, stats.timeouts) == (200, 0, 0)
    assert stats.rtt_most > 0.06


def test_round_trips_of_resent_chunks_are_not_measured():
    endpoint = sending(2, first_chunk=WRAP)
    endpoint.expire(0.1)
    sent(endpoint, 0.1)
    endpoint.receive(result(-2), 0.101)
    assert endpoint.stats().rtt_mean is None
    endpoint.receive(result(-1), 0.102)
    assert endpoint.stats().rtt_mean == pytest.approx(0.102)


@pytest.mark.parametrize("needed", [False, True])
def test_what_is_answered_before_it_is_resent_is_resent_only_if_it_is_needed(needed):
    worker = sending(2)
    due = let_expire(worker)
    if needed:
        worker.receive(result(0, kind=Kind.NEED, bitmap=1), due)
    worker.receive(result(0), due)
    assert chunks_of(sent(worker, due)) == ([0] if needed else [])
    worker.receive(result(0, kind=Kind.NEED, bitmap=1), due)
    assert chunks_of(sent(worker, due)) == [0]


@pytest.mark.parametrize(
    ("next_sent", "answered", "again"), [(0.00122, 0.0014, []), (0.00121, 0.0017, []), (0.00122, 0.0017, [5])]
)
def test_a_resend_is_lost_when_much_later_packets_are_answered_after_half_a_round_trip(
    next_sent, answered, again
):
    """Much later is a quarter of a usual round trip, which is 0.85 ms after the third answer."""
    worker = lossy_start([5])  # resent at 1 ms
    worker.receive(result(32), 0.0012)
    (latest, *_) = sent(worker, next_sent)
    worker.receive(result(int(latest["chunk_id"])), answered)
    resent = chunks_of(sent(worker, answered), Kind.RETRY, Kind.RESEND)
    assert [chunk for chunk in resent if chunk == 5] == again


def test_neither_silence_nor_a_loss_shrinks_the_window():
    silent, answered = (sending(128, window=128, initial_window=64) for _ in range(2))
    answered.receive(result(1), 0.001)
    for worker in (silent, answered):
        worker.expire(0.2)
        assert sent(worker, 0.2)[0]["kind"] == Kind.RETRY
    assert (silent.stats().window, answered.stats().window) == (64, 65)


def probing():
    """Return a worker that has sent 32 chunks and got the results of the first 8, at 1 ms."""
    worker = sending(32, window=32, initial_window=32)
    worker.receive(np.concatenate([result(chunk) for chunk in range(8)]), 0.001)
    return worker, 8


def asked(worker):
    """Return the chunks that the worker resends when its timer runs out, and that time."""
    due = let_expire(worker)
    return chunks_of(sent(worker, due)), due


def test_twice_as_many_chunks_are_asked_for_each_time_that_asking_helped():
    worker, oldest = probing()
    for count in (1, 2, 4, 8):
        chunks, due = asked(worker)
        assert chunks == list(range(oldest, oldest + count))
        worker.receive(np.concatenate([result(chunk) for chunk in chunks]), due + 0.0005)
        oldest += count
    assert worker.stats().resends == 15


def test_one_chunk_is_asked_for_while_asking_does_not_help():
    worker, oldest = probing()
    for _ in range(6):
        assert asked(worker)[0] == [oldest]


@pytest.mark.parametrize(("came", "again"), [(2, [2, 3]), (3, [3])])
def test_twice_what_was_asked_for_may_come_and_still_count_as_help(came, again):
    """If more comes, the chunks that the timer took for lost were late: the others are on their way."""
    worker, oldest = probing()
    _, due = asked(worker)
    worker.receive(np.concatenate([result(oldest + n) for n in range(came)]), due + 0.0005)
    assert asked(worker)[0] == [oldest + n for n in again]


TIMERS = Timers(first_answer=0.3, resend_least=0.002, resend_most=0.1)


def after(round_trips):
    """Return a worker whose chunks had these round-trip times, one after the other."""
    worker = WorkerEndpoint(replace(WORKER_CONFIG, timers=TIMERS), 0)
    worker.submit(np.zeros(100 * LANES, np.uint32), "add")
    now = 0.0
    worker.limit_window(1)
    for chunk, round_trip in enumerate(round_trips):
        assert len(sent(worker, now)) == 1
        now += round_trip
        worker.receive(result(chunk), now)
    return worker


def average(round_trips):
    """Return the timer by the page's formula."""
    first, *others = round_trips
    usual = first
    for one in others:
        usual += (one - usual) / 8 if one < usual else (min(one, 2 * usual) - usual) / 128
    return usual


@pytest.mark.parametrize(
    "round_trips",
    [
        [0.01],
        [0.01, 0.002],
        [0.01, 0.015],
        [0.01, 0.9],
        [0.01, 0.002, 0.05, 0.004, 0.004, 0.02],
        [0.0001, 0.0001],
        [0.2, 0.1],
    ],
)
def test_the_end_of_a_sum_is_probed_after_one_and_a_half_average_round_trips(round_trips):
    worker = after(round_trips)
    now, clock = sum(round_trips), worker.state.clock
    usual = average(round_trips)
    assert clock[Clock.USUAL] == pytest.approx(usual, rel=1e-9)
    assert clock[Clock.RTT_LEAST] == pytest.approx(min(round_trips))
    assert clock[Clock.RTT_MOST] == pytest.approx(max(round_trips))
    worker.limit_window(2)
    (chunk,) = chunks_of(sent(worker, now))
    later = now + min(round_trips)
    worker.state.clock[Clock.QUIET_SINCE] = later  # as if another chunk had been answered
    assert worker.next_timer() == pytest.approx(later + min(0.1, 1.5 * usual))
    assert let_expire(worker) == pytest.approx(later + min(0.1, 1.5 * usual))
    assert chunks_of(sent(worker, later + 1.5 * usual), Kind.RETRY) == [chunk]


def test_the_first_chunk_of_a_sum_is_probed_after_twice_the_time_of_first_answers():
    """Others may compute until they send theirs, which the time includes. It forgets a long one slowly."""
    worker, now = WorkerEndpoint(replace(WORKER_CONFIG, timers=TIMERS), 0), 0.0
    expected = 0.0
    for chunk, first_answer in enumerate([0.01, 0.04, 0.001, 0.001, 0.5, 0.001]):
        worker.submit(np.zeros(LANES, np.uint32), "add")
        assert chunks_of(sent(worker, now)) == [chunk]
        if chunk:
            assert worker.next_timer() == pytest.approx(now + min(TIMERS.first_answer, 2 * expected))
        worker.receive(result(chunk), now + first_answer)
        expected = max(first_answer, 0.75 * expected)
        now += 1.0


def test_a_first_answer_that_takes_longer_is_expected_the_next_time():
    """The second chunk was not retransmitted and came as late: another worker was late, nothing was lost."""
    worker, resends = WorkerEndpoint(replace(WORKER_CONFIG, timers=TIMERS), 0), []
    for number, late in enumerate([0.001, 0.05, 0.05]):
        worker.submit(np.zeros(2 * LANES, np.uint32), "add")
        sent(worker, number)
        while (due := worker.next_timer()) < number + late:
            worker.expire(due)
            sent(worker, due)
        worker.receive(np.concatenate([result(2 * number), result(2 * number + 1)]), number + late)
        resends.append(worker.stats().resends)
    assert resends[0] == 0
    assert resends[2] == resends[1] > 3


@pytest.mark.parametrize(
    ("tries", "least", "wait"),
    [(2, 0.01, 0.0015), (4, 0.01, 0.0015), (5, 0.01, 0.01), (6, 0.001, 0.006), (99, 0.01, 0.024)],
)
def test_a_chunk_that_stays_lost_while_others_are_answered_backs_off_after_four_tries(tries, least, wait):
    worker = lossy_start([5])
    state = worker.state = worker.state._replace(settings=worker.state.settings._replace(least=least))
    state.tries[5], state.sent_at[5], state.clock[Clock.QUIET_SINCE] = tries, 1.0, 2.0
    assert worker.next_timer() == pytest.approx(1.0 + wait)
