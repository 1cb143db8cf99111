"""The worker's end of the protocol, row by row of its table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from job_hosts import LANES, WORKER_CONFIG, result, sent

from peelsum.transport import (
    AggregationServer,
    JobConfig,
    JobFinished,
    Stalled,
    TensorCompleted,
    Timers,
    TransportConfigError,
    WorkerEndpoint,
)
from peelsum.wire import Flag, Kind, fields_of


def test_contributions_carry_identity_lanes_and_padding_across_the_chunk_id_wrap() -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 2)
    words = np.arange(10, dtype=np.uint32) + 0x01020304
    endpoint.submit(words, "or")
    packets = sent(endpoint)
    assert [int(p["chunk_id"]) for p in packets] == [0xFFFFFFFE, 0xFFFFFFFF, 0]
    np.testing.assert_array_equal(np.concatenate([p["lanes"] for p in packets]), [*words, 0, 0])
    for packet in packets:
        assert (packet["kind"], packet["flags"], packet["job_id"]) == (Kind.CONTRIBUTION, Flag.OR, 9)
        assert (packet["generation"], packet["sender"], packet["bitmap"]) == (77, 2, 4)
    assert sent(endpoint) == []


def test_tensors_complete_in_any_order_and_only_once() -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 0)
    first = endpoint.submit(np.zeros(5, np.uint32), "add")
    second = endpoint.submit(np.zeros(3, np.uint32), "add")
    assert len(sent(endpoint)) == 3
    assert endpoint.receive(result(-2, 10), 1.0) == []
    (event,) = endpoint.receive(result(0, 30), 1.0)
    assert isinstance(event, TensorCompleted)
    assert (event.ticket, event.words.tolist()) == (second, [30] * 3)
    (event,) = endpoint.receive(np.concatenate([result(-1, 20), result(-1, 99), result(-2, 99)]), 1.0)
    assert isinstance(event, TensorCompleted)
    assert (event.ticket, event.words.tolist()) == (first, [10, 10, 10, 10, 20])
    assert endpoint.outstanding == 0
    assert endpoint.stats().duplicates == 2, "which replace nothing"
    assert endpoint.next_timer() is None


def test_an_empty_tensor_completes_without_a_packet() -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 0)
    ticket = endpoint.submit(np.zeros(0, np.uint32), "add")
    assert sent(endpoint) == []
    assert endpoint.next_timer() == 0.0
    (event,) = endpoint.expire(0.0)
    assert isinstance(event, TensorCompleted)
    assert (event.ticket, len(event.words)) == (ticket, 0)


def test_no_more_than_the_window_is_outstanding() -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 0)
    endpoint.submit(np.zeros(100 * LANES, np.uint32), "add")
    assert len(sent(endpoint)) == WORKER_CONFIG.window
    endpoint.receive(result(-1), 0.1)
    assert sent(endpoint) == []
    endpoint.receive(result(-2), 0.1)
    assert [int(p["chunk_id"]) for p in sent(endpoint)] == [6, 7]


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (result(-2, version=9), "malformed"),
        (result(-2, job_id=8), "foreign_job"),
        (result(-2, generation=76), "wrong_generation"),
        (result(-2, flags=0x80), "malformed"),
        *(
            (result(-2, kind=kind), "unexpected_kind")
            for kind in Kind
            if kind not in (Kind.RESULT, Kind.NEED)
        ),
        (result(1), "out_of_window"),
        (result(-2 - 8 - 1), "out_of_window"),
        (result(1 << 31), "out_of_window"),
        (result(-2 - (1 << 31)), "out_of_window"),
    ],
)
def test_what_is_not_for_this_worker_is_dropped_and_counted(packet: np.ndarray, reason: str) -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 0)
    endpoint.submit(np.zeros(3 * LANES, np.uint32), "add")
    sent(endpoint)
    assert endpoint.receive(packet, 0.1) == []
    dropped = endpoint.stats().dropped
    assert dropped[reason] == 1
    assert sum(dropped.values()) == 1
    assert endpoint.stats().results == 0


def test_random_bytes_change_nothing() -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 0)
    endpoint.submit(np.zeros(3 * LANES, np.uint32), "add")
    sent(endpoint)
    numbers = np.random.default_rng(3)
    noise = numbers.integers(0, 256, (20_000, 16 + 4 * LANES), dtype=np.uint8)
    noise[::2, 0] = 1
    noise[::4, 1:6] = [Kind.RESULT, 0, 9, 0, 77]
    noise[::4, 8:12] = numbers.integers(0, 256, (5000, 4)) & [0x7F, 255, 255, 254]
    noise[::4, 8] |= 1
    assert endpoint.receive(noise, 0.1) == []
    assert sum(endpoint.stats().dropped.values()) == 20_000
    assert sent(endpoint) == []


def test_while_all_is_silent_only_the_oldest_chunk_asks() -> None:
    endpoint = WorkerEndpoint(replace(WORKER_CONFIG, timers=Timers(first_answer=0.5)), 1)
    endpoint.submit(np.zeros(5 * LANES, np.uint32), "add")
    sent(endpoint, 10.0)
    assert endpoint.next_timer() == 10.5
    assert endpoint.expire(10.4) == []
    assert sent(endpoint, 10.4) == []
    endpoint.expire(10.5)
    (packet,) = sent(endpoint, 10.5)
    assert (packet["kind"], packet["chunk_id"], packet["bitmap"]) == (Kind.RETRY, 0xFFFFFFFE, 2)
    again = endpoint.next_timer()
    assert again is not None
    assert again > 10.5


def test_back_off_ends_at_the_cap() -> None:
    timers = Timers(first_answer=0.5, resend_most=0.8)
    endpoint = WorkerEndpoint(replace(WORKER_CONFIG, timers=timers), 1)
    endpoint.submit(np.zeros(1, np.uint32), "add")
    now, pauses = 0.0, []
    for _ in range(12):
        sent(endpoint, now)
        due = endpoint.next_timer()
        assert due is not None
        pauses.append(due - now)
        now = due
        endpoint.expire(now)
    assert pauses[:2] == pytest.approx([0.5, 0.25]), "a RESEND follows the RETRY soon"
    assert np.diff(pauses[1:]).min() > -1e-9
    assert pauses[-1] == pytest.approx(0.8)


def test_a_chunk_overtaken_by_three_is_resent_at_once() -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 0)
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


def test_a_missing_chunk_holds_nothing_up_until_the_window_is_full() -> None:
    endpoint = WorkerEndpoint(replace(WORKER_CONFIG, window=256, initial_window=64, first_chunk=0), 0)
    endpoint.submit(np.zeros(400 * LANES, np.uint32), "add")
    count = len(sent(endpoint))
    for chunk in range(1, 256):
        assert count > chunk
        endpoint.receive(result(chunk), 0.1)
        count += sum(p["kind"] == Kind.CONTRIBUTION for p in sent(endpoint, 0.1))
    assert count == 256
    endpoint.receive(result(0), 0.1)
    assert sent(endpoint, 0.1)[0]["chunk_id"] == 256


def lossy_start(lost: list[int]) -> WorkerEndpoint:
    """Send 32 chunks at 0; at 0.001, answer all but the lost ones, which are resent. The timer is 4 ms."""
    endpoint = WorkerEndpoint(replace(WORKER_CONFIG, window=128, initial_window=32, first_chunk=0), 0)
    endpoint.submit(np.zeros(64 * LANES, np.uint32), "add")
    assert len(sent(endpoint)) == 32
    endpoint.receive(np.concatenate([result(c) for c in range(32) if c not in lost]), 0.001)
    resent = [int(p["chunk_id"]) for p in sent(endpoint, 0.001) if p["kind"] == Kind.RETRY]
    assert resent == lost
    return endpoint


def test_a_lost_resend_is_known_by_the_answer_to_what_was_sent_after_it() -> None:
    endpoint = lossy_start([5, 9])
    endpoint.receive(np.concatenate([result(c) for c in range(32, 40)]), 0.0015)
    assert sent(endpoint, 0.00151)[0]["kind"] == Kind.CONTRIBUTION, "sent at the same time, not after"
    endpoint.receive(np.concatenate([result(c) for c in range(40, 63)]), 0.0025)
    again = [(p["kind"], p["chunk_id"]) for p in sent(endpoint, 0.0025) if p["kind"] != Kind.CONTRIBUTION]
    assert again == [(Kind.RETRY, 5), (Kind.RESEND, 9)], "chunk 9 is worker 0's to take out of the switch"
    assert endpoint.stats().lost == 2, "each once: only its first try tells of the network's room"


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_the_second_time_one_worker_takes_the_sum_out_of_the_switch_then_all_may(worker: int) -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, worker)
    endpoint.submit(np.zeros(5 * LANES, np.uint32), "add")
    sent(endpoint)
    now, kinds = 0.0, []
    for _ in range(4):
        due = endpoint.next_timer()
        assert due is not None
        now = due + 10.0  # all have been silent long enough
        endpoint.expire(now)
        kinds.append({int(p["chunk_id"]): Kind(p["kind"]) for p in sent(endpoint, now)})
    oldest = 0xFFFFFFFE
    own_turn = oldest % 3 == worker
    second = Kind.RESEND if own_turn else Kind.RETRY
    assert [one[oldest] for one in kinds] == [Kind.RETRY, second, Kind.RESEND, Kind.RESEND]


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_every_chunk_is_one_worker_s_turn(worker: int) -> None:
    endpoint = WorkerEndpoint(replace(WORKER_CONFIG, window=128, initial_window=32, first_chunk=0), worker)
    endpoint.submit(np.zeros(40 * LANES, np.uint32), "add")
    sent(endpoint)
    endpoint.receive(result(31), 0.001)
    assert {p["kind"] for p in sent(endpoint, 0.001)[:29]} == {Kind.RETRY}
    endpoint.expire(1.0)
    again = sent(endpoint, 1.0)
    turns = [int(p["chunk_id"]) for p in again if p["kind"] == Kind.RESEND]
    assert turns == list(range(worker, 29, 3))
    assert {int(p["chunk_id"]) for p in again if p["kind"] == Kind.RETRY} >= set(range(29)) - set(turns)


def test_a_need_is_answered_by_a_resend_whatever_was_tried_before() -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 1)
    endpoint.submit(np.zeros(3 * LANES, np.uint32), "add")
    sent(endpoint)
    for tries in range(3):
        endpoint.receive(result(0, kind=Kind.NEED, bitmap=0b010), 0.1 + tries)
        assert [(p["kind"], p["chunk_id"]) for p in sent(endpoint, 0.1 + tries)] == [(Kind.RESEND, 0)]


def test_the_answer_to_a_need_counts_as_a_retransmission() -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 0)  # chunk 2**32 - 2 is worker 2's turn
    endpoint.submit(np.zeros(LANES, np.uint32), "add")
    sent(endpoint)
    endpoint.receive(result(-2, kind=Kind.NEED, bitmap=0b001), 0.1)
    kinds = [sent(endpoint, 0.1)[0]["kind"]]
    for now in (10.0, 20.0):
        endpoint.expire(now)
        kinds.append(sent(endpoint, now)[0]["kind"])
    assert kinds == [Kind.RESEND, Kind.RETRY, Kind.RESEND]


def test_a_resend_follows_a_retry_soon_even_in_silence() -> None:
    endpoint = WorkerEndpoint(replace(WORKER_CONFIG, timers=Timers(first_answer=0.5, resend_most=10.0)), 2)
    endpoint.submit(np.zeros(LANES, np.uint32), "add")
    sent(endpoint)
    waits = []
    for _ in range(4):
        due = endpoint.next_timer()
        assert due is not None
        endpoint.expire(due)
        waits.append((round(due, 6), Kind(sent(endpoint, due)[0]["kind"])))
    assert waits == [(0.5, Kind.RETRY), (0.75, Kind.RESEND), (1.5, Kind.RESEND), (3.0, Kind.RESEND)]


def test_what_is_known_to_be_lost_has_a_timer_each_of_half_the_usual_length() -> None:
    endpoint = lossy_start([5, 9])
    assert endpoint.next_timer() == pytest.approx(0.003)
    endpoint.expire(0.0031)
    assert [(int(p["kind"]), int(p["chunk_id"])) for p in sent(endpoint, 0.0031)] == [
        (Kind.RETRY, 5),
        (Kind.RESEND, 9),
    ]
    assert endpoint.stats().lost == 2


def test_nothing_is_sent_again_while_a_queue_grows_and_results_flow() -> None:
    """A port that sends a chunk every 2 ms: round trips grow to 64 ms, faster than the measured timer."""
    endpoint = WorkerEndpoint(replace(WORKER_CONFIG, window=64, initial_window=32, first_chunk=0), 0)
    endpoint.submit(np.zeros(200 * LANES, np.uint32), "add")
    sent(endpoint)
    now = 0.0
    for chunk in range(200):
        now += 0.002
        endpoint.expire(now)
        endpoint.receive(result(chunk), now)
        assert all(packet["kind"] == Kind.CONTRIBUTION for packet in sent(endpoint, now))
    stats = endpoint.stats()
    assert (stats.results, stats.resends, stats.timeouts) == (200, 0, 0)
    assert stats.rtt_most > 0.06


def test_silence_backs_off_by_its_own_length() -> None:
    endpoint, now, pauses = lossy_start([5]), 0.001, []
    for _ in range(8):
        due = endpoint.next_timer()
        assert due is not None
        pauses.append(due - now)
        now = due
        endpoint.expire(now)
        assert len(sent(endpoint, now)) == 1
    assert pauses == pytest.approx([0.002, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.1])


def test_need_is_heeded_even_for_an_answered_chunk_but_only_if_it_names_me() -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 1)
    words = np.arange(3 * LANES, dtype=np.uint32)
    endpoint.submit(words, "add")
    sent(endpoint)
    endpoint.receive(np.concatenate([result(chunk) for chunk in (-2, -1, 0)]), 0.1)
    endpoint.receive(result(-1, kind=Kind.NEED, bitmap=0b101), 0.2)
    assert sent(endpoint) == []
    endpoint.receive(np.concatenate([result(-1, kind=Kind.NEED, bitmap=0b010)] * 2), 0.2)
    (packet,) = sent(endpoint)
    assert (packet["kind"], packet["chunk_id"], packet["sender"]) == (Kind.RESEND, 0xFFFFFFFF, 1)
    np.testing.assert_array_equal(packet["lanes"], words[LANES : 2 * LANES])
    for chunk in (1, -3, 1 << 31):
        endpoint.receive(result(chunk, kind=Kind.NEED, bitmap=0b010), 0.2)
    assert sent(endpoint) == [], "never sent"


def test_contributions_are_kept_a_window_behind_and_no_further() -> None:
    endpoint = WorkerEndpoint(replace(WORKER_CONFIG, first_chunk=0), 0)
    words = np.arange(20 * LANES, dtype=np.uint32)
    endpoint.submit(words, "add")
    for chunk in range(20):
        sent(endpoint)
        endpoint.receive(result(chunk), 0.1)
    endpoint.receive(np.concatenate([result(chunk, kind=Kind.NEED, bitmap=1) for chunk in range(20)]), 0.2)
    packets = sent(endpoint)
    assert [int(p["chunk_id"]) for p in packets] == list(range(12, 20))
    np.testing.assert_array_equal(np.concatenate([p["lanes"] for p in packets]), words[12 * LANES :])


def test_a_stall_names_job_chunk_and_the_workers_the_server_misses() -> None:
    endpoint = WorkerEndpoint(replace(WORKER_CONFIG, timers=Timers(stall=2.0)), 0)
    endpoint.submit(np.zeros(1, np.uint32), "add")
    sent(endpoint, 5.0)
    assert endpoint.expire(6.9) == []
    endpoint.receive(result(-2, kind=Kind.NEED, bitmap=0b110), 6.9)
    (event,) = endpoint.expire(7.0)
    assert event == Stalled(9, 0xFFFFFFFE, (1, 2), 2.0, generation=77)
    assert "job 9" in str(event)
    assert "4294967294" in str(event)
    assert "worker 1, 2" in str(event)
    assert endpoint.expire(7.1) == []


def test_finish_waits_for_the_results_then_for_the_fin_chunk() -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 0)
    endpoint.submit(np.zeros(LANES, np.uint32), "add")
    sent(endpoint)
    endpoint.finish(0.1)
    assert sent(endpoint) == []
    (event,) = endpoint.receive(result(-2), 0.2)
    assert isinstance(event, TensorCompleted)
    (fin,) = sent(endpoint, 0.2)
    assert (fin["kind"], fin["flags"], fin["chunk_id"]) == (Kind.CONTRIBUTION, Flag.FIN, 0xFFFFFFFF)
    assert endpoint.receive(result(-1, flags=Flag.FIN), 0.3) == [JobFinished(9, confirmed=True)]
    assert endpoint.finished
    assert endpoint.next_timer() is None


def test_finish_gives_up_after_a_bounded_wait() -> None:
    endpoint = WorkerEndpoint(replace(WORKER_CONFIG, timers=Timers(linger=3.0)), 0)
    endpoint.finish(1.0)
    sent(endpoint, 1.0)
    endpoint.expire(3.9)
    assert not endpoint.finished
    assert JobFinished(9, confirmed=False) in endpoint.expire(4.0)
    assert endpoint.finished


def test_congestion_marks_halve_the_window_once_per_window() -> None:
    endpoint = WorkerEndpoint(replace(WORKER_CONFIG, window=64, first_chunk=0), 0)
    endpoint.submit(np.zeros(200 * LANES, np.uint32), "add")
    assert len(sent(endpoint)) == 64
    marked = np.concatenate([result(chunk, flags=Flag.CE) for chunk in range(32)])
    for packet in marked:
        endpoint.receive(packet[None, :], 0.1)
    assert (endpoint.stats().window, endpoint.stats().window_cuts, endpoint.stats().marked) == (32, 1, 32)
    assert sent(endpoint) == []
    endpoint.receive(result(32), 0.1)
    assert len(sent(endpoint)) == 1


def test_round_trips_of_resent_chunks_are_not_measured() -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 0)
    endpoint.submit(np.zeros(2 * LANES, np.uint32), "add")
    sent(endpoint, 0.0)
    endpoint.expire(0.1)
    sent(endpoint, 0.1)
    endpoint.receive(result(-2), 0.101)
    assert endpoint.stats().rtt_mean is None
    endpoint.receive(result(-1), 0.102)
    assert endpoint.stats().rtt_mean == pytest.approx(0.102)


def test_what_the_caller_can_get_wrong() -> None:
    endpoint = WorkerEndpoint(WORKER_CONFIG, 0)
    with pytest.raises(TransportConfigError, match=r"worker_id: 3 .*0 to 2"):
        WorkerEndpoint(WORKER_CONFIG, 3)
    with pytest.raises(TransportConfigError, match="op: 'max'"):
        endpoint.submit(np.zeros(1, np.uint32), "max")
    with pytest.raises(TransportConfigError, match="words: int32"):
        endpoint.submit(np.zeros(1, np.int32), "add")
    endpoint.finish(0.0)
    with pytest.raises(TransportConfigError, match="submit before finish"):
        endpoint.submit(np.zeros(1, np.uint32), "add")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job_id", 0),
        ("generation", 1 << 16),
        ("workers", 33),
        ("lanes", 0),
        ("window", 0),
        ("first_chunk", -1),
    ],
)
def test_a_job_out_of_range_names_field_value_and_remedy(field: str, value: int) -> None:
    with pytest.raises(TransportConfigError, match=rf"{field}: {value} .*give a number from"):
        replace(WORKER_CONFIG, **{field: value})


def test_timers_are_checked() -> None:
    with pytest.raises(TransportConfigError, match=r"timers\.linger: 0"):
        Timers(linger=0)
    with pytest.raises(TransportConfigError, match=r"timers\.need: 2\.0 s is above need_most"):
        Timers(need=2, need_most=1)


def test_window_stays_within_what_the_sockets_hold() -> None:
    """A limit below the job's window caps the outstanding chunks, even without losses."""
    config = JobConfig(job_id=1, generation=1, workers=1, lanes=4, window=64, initial_window=64)
    worker, server = WorkerEndpoint(config, 0), AggregationServer(config)
    worker.limit_window(10)
    worker.submit(np.arange(4 * 200, dtype=np.uint32), "add")
    sent = 0
    while worker.outstanding:
        batch = worker.to_send(0.0).copy()
        assert 0 < len(batch) <= 10
        sent += len(batch)
        fields_of(batch, 4)["kind"] = Kind.BYPASS
        server.receive(batch, 0.0)
        worker.receive(server.to_send(0.0), 0.0)
    assert sent == 200
