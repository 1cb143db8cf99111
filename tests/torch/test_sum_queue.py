"""Sums run in the order of submission, other work overlaps with them, and one failure ends all."""

import random
import threading
import time
from concurrent.futures import Future
from datetime import timedelta
from functools import partial

import numpy as np
import pytest
import torch
from patience import PATIENCE_S
from torch_alone import Sums

from peelsum.allreduce import Part
from peelsum.torch import HookError, HookFailedError
from peelsum.torch.calls import SwitchWork
from peelsum.torch.sum_queue import SumQueue, chain_future


class Held(Sums):
    """A sum of one worker that waits until `go`, and records what it summed."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.summed, self.entered, self.go = [], threading.Event(), threading.Event()

    def sum_words(self, parts):
        self.entered.set()
        assert self.go.wait(PATIENCE_S)
        results = super().sum_words(parts)
        self.summed += [int(part.words[0]) for part in parts]
        return results


@pytest.fixture
def held():
    return Held()


@pytest.fixture
def queue(held):
    made = SumQueue(held, owns_backend=False)
    yield made
    held.go.set()
    made.close()


def sums(summation, number):
    return lambda: summation.sum_words([Part(np.full(1, number, np.uint32), "add")])


def test_one_encodes_while_another_is_on_the_network(queue, held):
    encoded = threading.Event()

    def encode_and_sum():
        encoded.set()
        sums(queue, 2)()

    queue.submit(sums(queue, 1), key=1)
    assert held.entered.wait(PATIENCE_S)
    last = queue.submit(encode_and_sum, key=2)
    assert encoded.wait(PATIENCE_S), "nothing was encoded while the first sum was under way"
    assert not last.done()
    held.go.set()
    last.result(PATIENCE_S)
    assert held.summed == [1, 2]


def test_work_that_fails_before_its_sum_leaves_the_turn(queue, held):
    held.go.set()

    def broken():
        raise ValueError("no such thing")

    assert isinstance(queue.submit(broken).exception(PATIENCE_S), ValueError)
    assert isinstance(queue.submit(sums(queue, 1)).exception(PATIENCE_S), HookFailedError)
    assert held.summed == []


def test_work_of_one_key_begins_when_the_last_of_it_is_done(queue, held):
    running = []

    def alone(number):
        running.append(number)
        sums(queue, number)()
        running.append(-number)

    done = [queue.submit(partial(alone, number)) for number in (1, 2, 3)]
    assert held.entered.wait(PATIENCE_S)
    held.go.set()
    for one in done:
        one.result(PATIENCE_S)
    assert running == [1, -1, 2, -2, 3, -3]
    assert held.summed == [1, 2, 3]


def test_a_thread_that_drains_may_wake_up_late(queue, held, monkeypatch):
    """`drain` also returns if work submitted meanwhile by another thread is done."""
    turned, later = queue._pool._turn_changed, threading.Event()
    wait, waiting = turned.wait, threading.Event()

    def sleepy(timeout=None):
        if threading.current_thread() is not drainer:
            return wait(timeout)
        waiting.set()
        woken = wait(timeout)
        turned.release()
        assert later.wait(PATIENCE_S)
        turned.acquire()
        return woken

    monkeypatch.setattr(turned, "wait", sleepy)
    drainer = threading.Thread(target=queue.drain, daemon=True)
    queue.submit(sums(queue, 1))
    drainer.start()
    assert waiting.wait(PATIENCE_S)
    last = queue.submit(sums(queue, 2))
    held.go.set()
    last.result(PATIENCE_S)
    later.set()
    drainer.join(PATIENCE_S)
    assert not drainer.is_alive()


class Jittery(Held):
    """Lets every sum through, some after other threads had a go, until one fails."""

    def __init__(self, rng, fails_at):
        super().__init__(fails_at, TimeoutError("worker 1 is missing"))
        self._rng = rng
        self.go.set()

    def sum_words(self, parts):
        jitter(self._rng)
        return super().sum_words(parts)


def jitter(rng):
    for _ in range(rng.randrange(3)):
        time.sleep(0)


def test_all_ends_in_order_with_failures_and_concurrent_drains():
    for seed in range(40):
        run_with_failures(random.Random(seed))


def run_with_failures(rng):
    works, fails_at = rng.randrange(1, 12), rng.randrange(14)
    held = Jittery(rng, fails_at)
    queue = SumQueue(held, threads=rng.randrange(1, 4), owns_backend=True)

    def work(number):
        jitter(rng)
        return sums(queue, number)()

    drainers, done = [], []
    for number in range(works):
        done.append(queue.submit(partial(work, number), key=rng.randrange(3)))
        drainers.append(threading.Thread(target=queue.drain, daemon=True))
        drainers[-1].start()
    errors = [one.exception(PATIENCE_S) for one in done]
    for drainer in drainers:
        drainer.join(PATIENCE_S)
        assert not drainer.is_alive()
    assert held.summed == list(range(min(works, fails_at)))
    expected = [type(None)] * len(held.summed) + [TimeoutError] + [HookFailedError] * works
    assert [type(error) for error in errors] == expected[:works]
    queue.close()
    assert held.closed.is_set()


def test_nothing_is_summed_after_the_end(held):
    held.go.set()
    queue = SumQueue(held, owns_backend=True)
    queue.close()
    with pytest.raises(HookError, match="this worker has left the job; make a new state"):
        queue.submit(sums(queue, 1)).result(PATIENCE_S)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt("no"), SystemExit(3)], ids=repr)
def test_no_error_passes_for_a_result(error):
    """The waiter for the future of a process group's call gets the error, not a result."""
    done = Future()
    future = SwitchWork(done, [torch.ones(1)], "allreduce", timedelta(seconds=PATIENCE_S)).get_future()
    done.set_exception(error)
    with pytest.raises((ValueError, HookFailedError)) as raised:
        future.wait()
    assert error in (raised.value, raised.value.__cause__)


def test_a_failure_in_passing_a_result_on_is_told():
    """And does not take the place of the error there was."""
    done, told = [Future(), Future()], []
    for one in done:
        told.append(chain_future(one, torch.futures.Future(), lambda: 1 / 0, value_after_error=lambda: 1 / 0))
    done[0].set_result(None)
    done[1].set_exception(ValueError("no"))
    assert isinstance(told[0].exception(PATIENCE_S), ZeroDivisionError)
    assert isinstance(told[1].exception(PATIENCE_S), ValueError)
