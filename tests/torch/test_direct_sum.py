"""Sums by direct messages: bit for bit those of one array, whatever the lengths and ops of the parts."""

from __future__ import annotations

from threading import Barrier

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from concurrent.futures import ThreadPoolExecutor

import torch_training as training
from torch_ranks import run_ranks

from peelsum.summation import Part
from peelsum.torch.process_group_summation import _together
from peelsum.torch.reductions import DirectSum


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
    check = lambda words: None  # noqa: E731
    parts = [Part(few, "or", check), Part(few, "or"), Part(few, "add"), Part(many, "add"), Part(few, "add")]
    assert [len(some) for some in _together(parts)] == [1, 2, 1, 1]


def test_few_and_many_words_over_gloo():
    for sums in run_ranks(3, training.words_over_gloo, [3, 5000, 2**18, 2**18 + 5]):
        for by_direct, by_ring in sums:
            np.testing.assert_array_equal(by_direct, by_ring, strict=True)
