"""Buckets of few words are summed together, grouped the same way on all ranks; every bucket is summed."""

from functools import partial

import numpy as np
import pytest
import torch_training as training
from torch_ranks import run_several

from peelsum.allreduce import NetworkModel
from peelsum.compress import Threshold, TopK
from peelsum.torch import HookError
from peelsum.torch.buckets import DenseBuckets

A, B, C = ("a",), ("b", "b2"), ("c",)
#: Two exchanges take as long as 1,000 words.
NETWORK = NetworkModel(gbps=32e-6, round_trip_s=0.5)


def summed(waiting, words):
    """Let what waits be summed, with so many words for each parameter; return the names of its buckets."""
    taken, done = waiting.take()
    waiting.note_words(taken, words)
    if taken:
        done.set_result(None)  # as the queue does
    return list(taken)


def add(waiting, names):
    """Let a bucket wait; return the future of its sum."""
    waiting.buckets[names] = None
    return waiting.future


def passed(waiting, words, within):
    """One backward pass over the buckets A, B and C; return which were summed together."""
    together = []
    for names in (A, B, C):
        if waiting.ends_before(names, within):
            together.append(summed(waiting, words))
        add(waiting, names)
        if names == C or not waiting.should_wait():
            together.append(summed(waiting, words))
    return together


def test_buckets_wait_while_their_words_take_less_than_the_exchanges():
    waiting = DenseBuckets(NETWORK)
    few, many = dict.fromkeys(("a", "b", "b2", "c"), 300), {"a": 2500, "b": 300, "b2": 300, "c": 1}
    assert passed(waiting, few, 1) == [[A], [B], [C]]  # nothing is known
    assert passed(waiting, few, 2) == [[A, B, C]]
    assert passed(waiting, few | {"a": 900, "b": 500}, 3) == [[A, B, C]]
    assert passed(waiting, many, 4) == [[A, B, C]]  # 1,700 words: up to twice as many stay together
    assert passed(waiting, many, 5) == [[A], [B, C]]
    assert passed(waiting, few, 6) == [[A], [B, C]]
    assert passed(waiting, few, 7) == [[A, B, C]]


def test_what_waits_is_summed_before_another_pass():
    waiting, words = DenseBuckets(NETWORK), dict.fromkeys(("a", "b", "b2", "c"), 1)
    passed(waiting, words, 1)
    assert not waiting.ends_before(A, 2)
    add(waiting, A)
    assert waiting.should_wait()
    assert waiting.ends_before(B, 3)


def test_a_bucket_of_a_failed_pass_is_dropped_when_it_comes_again():
    waiting, words = DenseBuckets(NETWORK), dict.fromkeys(("a", "b", "b2", "c"), 1)
    passed(waiting, words, 1)
    waiting.ends_before(A, 2)
    dropped = add(waiting, A)
    assert not waiting.ends_before(A, 3)
    assert isinstance(dropped.exception(0), HookError)
    assert passed(waiting, words, 3) == [[A, B, C]]


OPTIONS = {
    "all": {"forms": "dense"},
    "top-k": {"forms": "dense", "compressor": TopK(0.5)},
    "threshold": {"compressor": Threshold(1e-3)},
}


@pytest.fixture(scope="module")
def over_gloo():
    """Return what each of several trainings returned on the two ranks of one group."""
    works = {
        (name, rate): (partial(training.exchanges_of_steps, **options), 6, rate)
        for name, options in OPTIONS.items()
        for rate in (1e-9, 1.0)
    }
    works |= {"without last bucket": (training.without_last_bucket,)}
    works |= {"other groups": (training.ever_other_groups,)}
    return run_several(2, works | {"measured": (training.over_a_measured_network,)})


@pytest.mark.parametrize("name", OPTIONS)
def test_steps_take_fewer_exchanges_with_the_same_averages(name, over_gloo):
    alone, together = (over_gloo[name, rate] for rate in (1e-9, 1.0))
    assert together[0][0] == together[1][0]
    assert together[0][0][-1] < alone[0][0][-1]
    assert together[0][0][-1] <= 2
    np.testing.assert_array_equal(together[0][1], together[1][1])
    np.testing.assert_allclose(together[0][1], alone[0][1], rtol=1e-5, atol=1e-7)


def test_a_pass_ends_although_its_last_bucket_never_comes(over_gloo):
    for before, after in over_gloo["without last bucket"]:
        assert after > before


def test_ever_other_groups_of_parameters_do_not_add_up(over_gloo):
    """All ranks forget the same sums, after the same sum: otherwise they would exchange different words."""
    (ours, kept), other = over_gloo["other groups"]
    assert other == (ours, kept)
    assert len(ours) > 200
    assert kept <= 6


def test_ranks_measure_the_same_network(over_gloo):
    (ours, average), other = over_gloo["measured"]
    assert other == (ours, 1.5)
    assert average == 1.5
    assert ours.startswith("NetworkModel(gbps=")
    assert ours != str(NetworkModel())
