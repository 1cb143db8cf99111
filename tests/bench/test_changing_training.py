"""Training over links that change: counts of the hook, a modelled clock, and the same rows again."""

import numpy as np
import pytest

from benchmarks.accuracy.training import TrainingSetting, train
from benchmarks.experiments.adapting import COMPUTE_S, NETWORKS, SELECT_S, ChangingTraining, train_over
from peelsum.compress import Flexible, LinkModel, Workload, cost

SETTING = TrainingSetting("digits", "top-k", workers=3, seed=2, steps=12)
ELEMENTS = 38_282


def steady(_):
    return LinkModel(1e-3, 0.5)


@pytest.mark.parametrize(
    ("method", "ratio"), [("dense_switch", 1.0), ("ar_top_k_switch", 0.01), ("ar_top_k_ring", 0.1)]
)
def test_a_fixed_method_takes_what_the_cost_model_says(method, ratio):
    with ChangingTraining(SETTING, steady, (method, ratio)) as training:
        for _ in range(2):  # the second makes its sums again
            training.step()
        began = training.seconds
        for _ in range(2):
            training.step()
        exchange_s = (training.seconds - began) / 2 - COMPUTE_S - (SELECT_S if ratio < 1 else 0)
    step = Workload(ELEMENTS, ratio, 3, steady(0), select_s=0.0, headers=1, few_words=2**12)
    expected = cost(method, step)
    # The model has one tensor, and no packet that is not full.
    assert exchange_s == pytest.approx(expected.latency_s + expected.transfer_s, rel=0.15)


def test_learning_is_that_of_the_same_compressor():
    run = train_over(SETTING, "steady_slow", ("top_k_switch", 0.01))
    same = train(SETTING)
    assert [(steps, round(value, 6)) for steps, _, value in run.curve] == same.curve
    assert 0 < run.gain < 1


@pytest.mark.slow
def test_a_strategy_changes_with_the_network_and_decides_the_same_again():
    setting = TrainingSetting("digits", "top-k", workers=2, steps=60)
    run = train_over(setting, "alternating", Flexible(explore_steps=1))
    assert run == train_over(setting, "alternating", Flexible(explore_steps=1))
    assert run.changes > 1
    times = [seconds for _, seconds, _ in run.curve]
    assert times == sorted(times)
    first = run.curve[0][2]
    assert run.reached(first) == (0, 0.0)
    assert run.reached(2.0) is None


def test_the_networks_change_as_they_say():
    rates = [NETWORKS["alternating"](seconds).gbps for seconds in np.arange(0.5, 4)]
    assert rates == [0.005, 0.5, 0.005, 0.5]
    assert NETWORKS["far"](0.4).latency_s < NETWORKS["far"](0.6).latency_s
