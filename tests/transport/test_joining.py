"""The first sum waits for workers that still start, longer than a stall, but not for ever."""

import json
import logging
import threading
import time

import numpy as np
import pytest
from patience import PATIENCE_S, with_longer_timeouts
from udp_switch import served

from peelsum.summation import Part
from peelsum.topology.records import MARKER
from peelsum.transport import (
    JobConfig,
    Stalled,
    SwitchSummation,
    TransportConfigError,
    TransportError,
    joining,
    udp,
)
from peelsum.transport.joining import JoiningSum, JoinWait, join_limit_s, warn_of_long_wait
from peelsum.transport.seats import SEAT

WORKERS = 3
CONFIG = JobConfig(job_id=1, generation=4, workers=WORKERS, lanes=8, window=64)


class Told(logging.Handler):
    """Notes what is logged, and when something was."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self.some = threading.Event()

    def emit(self, record):
        self.lines.append(record.getMessage())
        self.some.set()


@pytest.fixture
def told():
    handler, log = Told(), logging.getLogger("peelsum")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def test_a_worker_may_start_later_than_the_others_stall(monkeypatch, told):
    """The last worker starts when another has waited for longer than its timeout."""

    def late(timeout_s):
        monkeypatch.setattr(joining, "WARN_AFTER_S", 1.3 * timeout_s)
        told.some.clear()
        told.lines.clear()

        def work(worker):
            if worker == 2:
                assert told.some.wait(PATIENCE_S)
            address = switch.address(worker)
            with SwitchSummation(CONFIG, worker, address, timeout_s=timeout_s) as summation:
                return summation.sum_words([Part(np.full(5, 1 << worker, np.uint32), "add")])

        with served(CONFIG) as (switch, _service, pool, _serving):
            working = [pool.submit(work, worker) for worker in range(WORKERS)]
            for one in working:  # or else the last would wait for what nobody says any more
                one.add_done_callback(lambda _: told.some.set())
            outcomes = [one.exception() or one.result()[0].tolist() for one in working]
        assert outcomes == [[7] * 5] * WORKERS
        assert set(told.lines) == {
            "job 1: worker 2 has not joined, it may still be starting; waiting up to 600 s"
        }

    with_longer_timeouts(late)


def stall(*missing):
    return Stalled(1, 0, missing, 5.0)


def test_it_waits_for_others_until_its_limit():
    wait = JoinWait(0, 60.0, now=100.0)
    assert wait.outlasts(stall(1), 159.0)
    assert not wait.outlasts(stall(1), 160.0)
    assert wait.whole(stall(1), 160.0) == Stalled(1, 0, (1,), 60.0)


@pytest.mark.parametrize("missing", [(), (0,)])
def test_it_does_not_wait_for_a_server_or_for_itself(missing, told):
    wait = JoinWait(0, 60.0, now=100.0)
    wait.tell(stall(*missing), 110.0)
    assert not wait.outlasts(stall(*missing), 110.0)
    assert told.lines == []


def test_it_says_once_who_is_missing(told):
    wait = JoinWait(0, 60.0, now=100.0)
    for now in (101.9, 102.0, 104.0):
        wait.tell(stall(1, 2), now)
    assert told.lines == [
        "job 1: workers 1, 2 have not joined, they may still be starting; waiting up to 60 s"
    ]


def test_the_limit_is_of_the_environment(monkeypatch):
    assert join_limit_s() == 600.0
    monkeypatch.setenv("PEELSUM_JOIN_S", "90")
    assert join_limit_s() == 90.0
    for given in ("", "soon", "0", "-1", "inf", "nan"):
        monkeypatch.setenv("PEELSUM_JOIN_S", given)
        with pytest.raises(TransportConfigError, match=f"PEELSUM_JOIN_S: '{given}' is not a time to wait"):
            join_limit_s()


@pytest.mark.parametrize(("word", "value"), [(0, 0), (2, 0), (1, 0), (1, 1), (1, 0xFFFFFFFF)])
def test_a_run_that_was_answered_with_other_numbers_is_refused(word, value):
    part = JoiningSum(CONFIG, 1)
    numbers = np.array([5, part.words[1], 7], np.uint32)
    part.check(numbers)
    numbers[word] = value if value != part.words[1] else value ^ 2
    with pytest.raises(TransportError, match="generation 4 has run before; admit the job and start"):
        part.check(numbers)


@pytest.mark.parametrize(
    ("seats", "network", "remedy"),
    [
        (4, "up", "run `peelsum readmit`, then start all workers again"),
        (3, "up", "admit the job and start its server again, then all workers"),
        (4, None, "admit the job and start its server again, then all workers"),
        (None, "up", "admit the job and start its server again, then all workers"),
    ],
)
def test_in_a_network_of_up_readmit_is_the_remedy(monkeypatch, seats, network, remedy):
    """But not for another job than the seat's, or for a seat that no network gave."""
    for name in (SEAT, MARKER):
        monkeypatch.delenv(name, raising=False)
    if seats is not None:
        monkeypatch.setenv(SEAT, json.dumps({"admission": {"job_id": 1, "generation": seats}}))
    if network is not None:
        monkeypatch.setenv(MARKER, network)
    with pytest.raises(TransportError, match=f"^job 1: generation 4 has run before; {remedy}$"):
        JoiningSum(CONFIG, 1).check(np.zeros(WORKERS, np.uint32))
    assert str(Stalled(1, 0, (), 5.0, generation=4)).endswith(f"generation 4 has run before, {remedy}")


@pytest.mark.parametrize(("drawn", "number"), [(0, 1), ((1 << 32) - 2, (1 << 32) - 1)])
def test_the_number_that_a_worker_joins_with_is_not_zero(monkeypatch, drawn, number):
    def randbelow(below):
        assert drawn < below
        return drawn

    monkeypatch.setattr(joining.secrets, "randbelow", randbelow)
    assert JoiningSum(CONFIG, 1).words.tolist() == [0, number, 0]


def test_a_later_sum_says_what_it_waits_for(told):
    assert not warn_of_long_wait(Stalled(1, 6, (2,), 4.9), 30.0)
    assert warn_of_long_wait(Stalled(1, 6, (2,), 5.0), 30.0)
    assert told.lines == [
        "job 1: no progress on chunk 6 for 5.0 s: still waiting for worker 2; see whether it is running, or "
        "give a longer timeout_s if it is slow; waiting up to 30 s"
    ]


def test_a_worker_tells_of_a_late_one_before_the_stall(monkeypatch, told):
    monkeypatch.setattr(joining, "WARN_STALL_AFTER_S", 0.2)

    def late(worker):
        with SwitchSummation(CONFIG, worker, switch.address(worker)) as summation:
            for step in range(2):
                if (worker, step) == (2, 1):
                    assert told.some.wait(PATIENCE_S)
                summation.sum_words([Part(np.ones(5, np.uint32), "add")])

    with served(CONFIG) as (switch, _service, pool, _):
        list(pool.map(late, range(WORKERS)))
    waits = [line for line in told.lines if "no progress" in line]
    assert 1 <= len(waits) < WORKERS, "each that waits warns once"
    assert all("still waiting for worker 2;" in line for line in waits)


def test_a_worker_that_was_stopped_does_not_warn_of_results_that_have_come(monkeypatch):
    """It is stopped after it has looked for packets; then the other worker sums, and the results come."""
    config = JobConfig(job_id=1, generation=4, workers=2, lanes=8, window=64)
    stopped, summed, waits = threading.Event(), threading.Event(), dict[int, list[float]]()

    def recorded(wait, limit_s):
        waits.setdefault(threading.get_ident(), []).append(wait.seconds)
        return False

    def stopping(summation):
        run = summation._exchange.run

        def run_and_stop():
            events = run()
            if not events and not stopped.is_set():
                stopped.set()
                assert summed.wait(PATIENCE_S)
                time.sleep(1.0)
            return events

        summation._exchange.run = run_and_stop

    def work(worker):
        part = Part(np.ones(5, np.uint32), "add")
        with SwitchSummation(config, worker, switch.address(worker)) as summation:
            summation.sum_words([part])
            if worker == 0:
                stopping(summation)
            else:
                assert stopped.wait(PATIENCE_S)
            waits.pop(threading.get_ident(), None)
            summation.sum_words([part])
            summed.set()
        return waits.get(threading.get_ident(), [])

    monkeypatch.setattr(udp, "warn_of_long_wait", recorded)
    with served(config) as (switch, _service, pool, _):
        seconds, _ = pool.map(work, range(2))
    assert seconds
    assert max(seconds) < 1.0
