"""Sums in the order they were asked for; work beside them that overlaps; one failure that ends all."""

from __future__ import annotations

import threading

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from peelsum.allreduce import Part
from peelsum.torch import HookFailedError
from peelsum.torch.pipeline import Pipeline, Seat

PATIENCE_S = 10.0


class Held:
    """A sum of one worker that waits until it is let go, and notes what it summed."""

    lanes, workers, worker_id = 8, 1, 0

    def __init__(self):
        self.summed, self.entered, self.go = [], threading.Event(), threading.Event()
        self.fails, self.closed = None, False

    def sum(self, parts):
        self.entered.set()
        assert self.go.wait(PATIENCE_S)
        if self.fails:
            raise self.fails
        self.summed += [int(part.words[0]) for part in parts]
        return [part.words.copy() for part in parts]

    def close(self):
        self.closed = True


@pytest.fixture
def held():
    return Held()


@pytest.fixture
def pipeline(held):
    made = Pipeline(held)
    yield made
    held.go.set()
    made.close(leave=False)


def sums(seat, number):
    return lambda: seat.sum([Part(np.full(1, number, np.uint32), "add")])


def test_one_encodes_while_another_is_on_the_network(pipeline, held):
    first, second, encoded = Seat(pipeline), Seat(pipeline), threading.Event()

    def encode_and_sum():
        encoded.set()
        sums(second, 2)()

    pipeline.submit(first, sums(first, 1))
    assert held.entered.wait(PATIENCE_S)
    last = pipeline.submit(second, encode_and_sum)
    assert encoded.wait(PATIENCE_S), "nothing was encoded while the first sum was under way"
    assert not last.done()
    held.go.set()
    last.result(PATIENCE_S)
    assert held.summed == [1, 2]


def test_sums_keep_their_order_whoever_is_ready_first(pipeline, held):
    held.go.set()
    first, second, ready = Seat(pipeline), Seat(pipeline), threading.Event()

    def late():
        assert ready.wait(PATIENCE_S)
        sums(first, 1)()
        sums(first, 2)()

    def early():
        ready.set()
        sums(second, 3)()

    pipeline.submit(first, late)
    pipeline.submit(second, early).result(PATIENCE_S)
    assert held.summed == [1, 2, 3]


def test_a_failure_ends_all_that_comes_after(pipeline, held):
    held.go.set()
    held.fails = TimeoutError("worker 1 is missing")
    seats = [Seat(pipeline) for _ in range(3)]
    done = [pipeline.submit(seat, sums(seat, 1)) for seat in seats]
    pipeline.drain()
    assert done[0].exception(PATIENCE_S) is held.fails
    for later in done[1:]:
        error = later.exception(PATIENCE_S)
        assert isinstance(error, HookFailedError)
        assert error.__cause__ is held.fails
        assert "worker 1 is missing" in str(error)
        assert "start training again from a checkpoint" in str(error)


def test_work_that_fails_before_its_sum_leaves_the_turn(pipeline, held):
    held.go.set()
    seat, other = Seat(pipeline), Seat(pipeline)

    def broken():
        raise ValueError("no such thing")

    assert isinstance(pipeline.submit(seat, broken).exception(PATIENCE_S), ValueError)
    assert isinstance(pipeline.submit(other, sums(other, 1)).exception(PATIENCE_S), HookFailedError)
    assert held.summed == []


def test_a_summation_is_left_only_if_it_was_made_here(held):
    held.go.set()
    Pipeline(held).close(leave=False)
    assert not held.closed
    Pipeline(held).close(leave=True)
    assert held.closed
