"""A worker's resend timer, compared with docs/reference/protocol.md's formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from job_hosts import LANES, WORKER_CONFIG, result, sent

from peelsum.transport import Timers, WorkerEndpoint
from peelsum.transport.endpoint_state import Clock

TIMERS = Timers(first_answer=0.3, resend_least=0.002, resend_most=0.1)


def after(round_trips: list[float]) -> WorkerEndpoint:
    """Return a worker whose chunks had these round-trip times, one after the other."""
    worker = WorkerEndpoint(replace(WORKER_CONFIG, first_chunk=0, timers=TIMERS), 0)
    worker.submit(np.zeros(100 * LANES, np.uint32), "add")
    now = 0.0
    worker.limit_window(1)
    for chunk, round_trip in enumerate(round_trips):
        assert len(sent(worker, now)) == 1
        now += round_trip
        worker.receive(result(chunk), now)
    return worker


def average(round_trips: list[float]) -> float:
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
def test_the_timer_is_four_times_the_average_within_its_bounds(round_trips: list[float]) -> None:
    clock = after(round_trips).state.clock
    usual = average(round_trips)
    assert clock[Clock.USUAL] == pytest.approx(usual, rel=1e-9)
    assert clock[Clock.TIMEOUT] == pytest.approx(min(0.1, max(0.002, 4 * usual)), rel=1e-9)
    assert clock[Clock.RTT_LEAST] == pytest.approx(min(round_trips))
    assert clock[Clock.RTT_MOST] == pytest.approx(max(round_trips))


def test_before_the_first_sample_the_timer_is_the_patience_for_the_first_answer() -> None:
    assert after([]).state.clock[Clock.TIMEOUT] == TIMERS.first_answer


def test_statistics_have_the_mean_of_all_round_trips() -> None:
    stats = after([0.01, 0.002, 0.05]).stats()
    assert (stats.rtt_mean, stats.rtt_least, stats.rtt_most) == pytest.approx((0.062 / 3, 0.002, 0.05))
