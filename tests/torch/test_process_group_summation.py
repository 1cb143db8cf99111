"""Sums over a process group: by direct messages and trees, in groups made again, and whom an error names."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from unittest.mock import Mock

import numpy as np
import pytest
import torch_training as training
from group_ranks import sums_again, sums_by_tree, sums_in_two_worlds
from patience import PATIENCE_S
from torch.distributed import HashStore
from torch_alone import group_of_one, in_time
from torch_ranks import run_ranks, run_several

from peelsum.allreduce import SummationStalledError
from peelsum.summation import Part
from peelsum.torch import process_group_summation as summed
from peelsum.torch.process_group_summation import DirectSum, batches

pytestmark = pytest.mark.usefixtures("forked_children")

#: Ranks that make a group twice, and the one of them that is slow.
AGAIN = [((0, 1), 0), ((0, 2), 2), ((0, 1, 2), 1)]


class Post:
    """all_to_all between threads."""

    def __init__(self, workers):
        self.met, self.sent, self.exchanges = Barrier(workers), [None] * workers, 0

    def of(self, worker):
        def all_to_all(received, sent):
            self.sent[worker] = sent
            self.met.wait(30)
            received[:] = [row[worker] for row in self.sent]
            if self.met.wait(30) == 0:
                self.exchanges += 1

        return all_to_all


def drawn(workers, lengths, seed=0):
    """Words of each worker and part; additions of them wrap around."""
    draw = np.random.default_rng(seed)
    return [[draw.integers(0, 2**32, n, np.uint32) for n in lengths] for _ in range(workers)]


@pytest.mark.parametrize("workers", [2, 3, 4, 7])
@pytest.mark.parametrize(
    ("lengths", "exchanges"),
    [([4], 1), ([0, 1, 0], 1), ([4096], 1), ([4097], 2), ([5, 9000, 1], 2), ([1, 0, 12345, 7], 2)],
    ids=str,
)
def test_sums_are_those_of_one_array(workers, lengths, exchanges):
    post, words = Post(workers), drawn(workers, lengths)
    ops = ["or" if i % 2 else "add" for i in range(len(lengths))]

    def work(worker):
        one, parts = DirectSum(workers, worker, post.of(worker)), list(map(Part, words[worker], ops))
        one.sum_words([Part(np.full(20_000, 7, np.uint32), "add")])  # leaves words in its memory
        return one.sum_words(parts)

    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(work, range(workers)))
    for i, op in enumerate(ops):
        combine = np.bitwise_or if op == "or" else np.add
        expected = combine.reduce([own[i] for own in words], axis=0, dtype=np.uint32)
        for result in results:
            np.testing.assert_array_equal(result[i], expected, strict=True)
    assert post.exchanges == 2 + exchanges
    for before, after in zip(words, drawn(workers, lengths), strict=True):
        for left, right in zip(before, after, strict=True):
            np.testing.assert_array_equal(left, right)


def test_nothing_goes_with_a_part_that_may_end_the_sum():
    few, many = np.zeros(4, np.uint32), np.zeros(2**18, np.uint32)

    def check(words):
        return None

    parts = [Part(few, "or", check), Part(few, "or"), Part(few, "add"), Part(many, "add"), Part(few, "add")]
    assert [len(some) for some in batches(parts)] == [1, 2, 1, 1]


@pytest.fixture(scope="module")
def of_three():
    """Return what each of several works returned on the three ranks of one group."""
    works = {
        "words": (training.words_over_gloo, [3, 5000, 2**18, 2**18 + 5]),
        3: (sums_by_tree, 1001),
        **{one: (sums_again, *one) for one in AGAIN},
    }
    return run_several(3, works)


def test_few_and_many_words_over_gloo(of_three):
    for sums in of_three["words"]:
        for by_direct, by_ring in sums:
            np.testing.assert_array_equal(by_direct, by_ring, strict=True)


@pytest.mark.parametrize("world", [3, *(pytest.param(one, marks=pytest.mark.slow) for one in (2, 5))])
def test_a_tree_gives_the_bits_of_a_ring(world, of_three):
    by_rank = of_three[3] if world == 3 else run_ranks(world, sums_by_tree, 1001)
    exact = np.sum([np.array(own, np.int64) for own, _, _ in by_rank], axis=0).astype(np.int32)
    for _, tree, ring in by_rank:
        assert tree == ring == exact.tolist()


@pytest.mark.parametrize(("members", "slow"), AGAIN)
def test_a_second_group_of_the_same_ranks_does_not_meet_the_first(members, slow, of_three):
    """The store still has the first group's addresses while the slow rank has not made the second."""
    for rank, sums in enumerate(of_three[members, slow]):
        ranks, count = sum(members), len(members)
        expected = [[count * i + 10**number * ranks for i in range(4)] for number in range(2)]
        assert sums == (expected if rank in members else [])


def test_processes_of_earlier_worlds_make_groups_with_new_ones(tmp_path):
    """Rank 1 of the second world has made no group of ranks 0 and 1 before, and rank 0 has."""
    assert run_ranks(3, sums_in_two_worlds, tmp_path) == [[[3, 3]] * worlds for worlds in (2, 1, 1)]


def test_a_frozen_store_is_given_up(monkeypatch):
    """Its process is stopped: writes are buffered, and reads never return."""
    monkeypatch.setattr(summed, "_STORE_S", 0.2)
    end = threading.Event()
    store = Mock(get=lambda key: end.wait())
    try:
        assert not summed._FailureReports(store, 1, 3, 60.0).collect()
    finally:
        end.set()


def test_each_report_restarts_the_timeout():
    """Worker n reports after n times half the timeout."""
    began = time.monotonic()

    def check(keys):
        return time.monotonic() - began >= 0.5 * int(keys[0].rpartition("/")[2])

    roll = summed._FailureReports(Mock(check=check), 0, 5, 1.0)
    assert roll.collect()
    assert (roll.missing, roll.store_lost) == (set(), False)


def test_a_sum_that_still_waits_is_reported_for_its_worker(monkeypatch):
    """A worker that sums nothing, as one that hangs, does not answer."""
    monkeypatch.setattr(summed, "_WATCH_S", 0.01)
    store = HashStore()
    watches = waits, _ = [summed._FailureWatcher(store, worker) for worker in range(2)]
    waits.waiting_sum = 5
    for watch in watches:
        watch.start()
    store.set(summed._FAILED_KEY, "")
    store.wait([summed._reported_key(0)], timedelta(seconds=PATIENCE_S))
    for watch in watches:
        watch.ended.set()
        watch.join()
    assert not store.check([summed._reported_key(1)])


def test_a_closed_group_names_nobody():
    with group_of_one():
        summation = summed.ProcessGroupSummation("gloo")
        summation.close()
    with pytest.raises(SummationStalledError, match="the group was closed") as raised:
        summation.sum_words([Part(np.ones(3, np.uint32), "add")])
    assert "did not answer" not in str(raised.value)


@pytest.mark.parametrize(
    ("workers", "reason", "said"),
    [
        (2, "Connection reset by peer", "worker 1 did not answer; see whether it is running"),
        (3, "Connection reset by peer", "workers 1, 2 did not answer; see whether they are running"),
        (
            2,
            "Timed out waiting 10ms for recv operation to complete",
            "worker 1 did not answer; see whether it is running, or give a longer timeout_s if it is slow",
        ),
    ],
)
def test_one_or_several_missing_workers_are_named(monkeypatch, workers, reason, said):
    monkeypatch.setattr(summed, "_REPORT_S", 0.1)
    with group_of_one():
        summation = summed.ProcessGroupSummation("gloo", timeout_s=10 * PATIENCE_S)
        summation.workers, summation._store = workers, HashStore()
        message = in_time(lambda: summation._describe_failure(RuntimeError(reason)))
    assert message == f"gloo: the sum over {workers} workers failed: {said} ({reason})"
