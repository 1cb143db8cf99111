"""The strategy on simulated networks: it explores, chooses, notices changes in ten steps, and goes back."""

import itertools

import numpy as np
import pytest
from network_model import ELEMENTS, WORKERS, World

from peelsum import compress
from peelsum.compress.costs import CompressConfigError
from peelsum.compress.events import GainChanged
from peelsum.compress.strategy import pareto_front

FAST, SLOW = compress.LinkModel(1e-4, 10.0), compress.LinkModel(1e-4, 1.0)
#: Five ratios for three steps each, and the step in which the last of these is agreed on.
EXPLORING = 16
#: Methods that all have the same link.
BY_GROUP = tuple(method for method in compress.METHODS if compress.carrier_of(method) == "group")


def falling(step):
    """Return a link whose rate falls tenfold from step 100 to step 200."""
    return SLOW if 100 <= step < 200 else FAST


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("prefer", ["knee", 1.0])
def test_a_rate_that_falls_tenfold_switches_within_ten_steps_and_back(prefer, seed):
    world = World(falling, seed=seed)
    world.run(compress.Flexible(prefer=prefer, methods=BY_GROUP), 300)
    before, slow, after = world.used[99], world.used[110], world.used[210]
    assert before == after
    assert slow != before
    assert set(world.used[110:200]) == {slow}
    assert set(world.used[210:]) == {before} == set(world.used[EXPLORING:100])
    first, *others = world.of(compress.LinkChanged)
    assert 100 <= first < 110
    assert any(200 <= step < 210 for step in others)


@pytest.mark.parametrize("seed", range(3))
def test_a_switch_whose_links_slow_down_is_left_within_ten_steps_and_used_again(seed):
    """The process group has links of its own, which stay as they are."""
    slow = compress.LinkModel(1e-3, 0.1)

    def through(step):
        return slow if 100 <= step < 200 else compress.LinkModel(1e-5, 10.0)

    world = World(lambda _: compress.LinkModel(2e-4, 1.0), through, seed=seed)
    world.run(compress.Flexible(ratios=(0.01,), prefer=0.0), 300)
    by = [compress.carrier_of(method) for method, _, _ in world.used]
    assert set(by[EXPLORING:100]) == {"switch"} == set(by[210:])
    assert set(by[110:200]) == {"group"}
    assert {event.carrier for _, event in world.events if isinstance(event, compress.LinkChanged)} == {
        "switch"
    }


def test_a_decider_goes_on_from_what_another_saved():
    """Both decide alike, whether the ratios were being explored or used, if what was on its way is lost."""
    settings = compress.Flexible()
    for steps in (7, 40):
        (first, _) = World(falling).run(settings, steps)
        saved = first.state_dict()
        second = compress.Decider(settings, 1, WORKERS, carriers=compress.CARRIERS, headers=1)
        first.load_state_dict(saved)
        second.load_state_dict(saved)
        assert saved == first.state_dict() == second.state_dict()
        for _ in range(20):
            assert first.next == second.next
            measured = compress.Measurement(2e-3, 3e-3, 4e-3, 5e-3, 0.1, 1e-3, 1e-3, 0.3)
            traffic = compress.StepTraffic(ELEMENTS, 1, 12.0, 1e5, 2.0, 100.0)
            assert first.observe(measured, traffic) == second.observe(measured, traffic)


def test_a_gradient_of_another_size_is_decided_for():
    """Many sums of few elements take as long as their latency: all are sent."""
    decider = compress.Decider(compress.Flexible(explore_steps=1), ELEMENTS, WORKERS)
    for _ in range(40):
        measured = compress.Measurement(6e-3, 0.0, 7e-3, 0.0, exchange_s=0.2, compress_s=1e-4, gain=0.5)
        decider.observe(measured, compress.StepTraffic(elements=1000, sums=30, messages=180, words=1500))
    assert decider.next.method in compress.DENSE


@pytest.mark.parametrize("seed", range(5))
def test_a_latency_that_rises_is_noticed_within_ten_steps(seed):
    world = World(lambda step: compress.LinkModel(1e-2 if step >= 50 else 1e-5, 1.0), seed=seed)
    world.run(compress.Flexible(methods=BY_GROUP), 80)
    assert 50 <= world.of(compress.LinkChanged)[0] < 60
    assert world.used[49] != world.used[60]


@pytest.mark.parametrize("prefer", ["knee", 0.5, 2.0])
def test_what_is_in_use_is_the_best_of_all_candidates_by_the_true_times(prefer):
    for link in (
        compress.LinkModel(1e-5, 0.05),
        compress.LinkModel(1e-3, 1.0),
        compress.LinkModel(5e-3, 0.1),
    ):
        world = World(lambda _, link=link: link, noise=0.0)
        settings = compress.Flexible(prefer=prefer)
        world.run(settings, EXPLORING + 1)
        true = [
            compress.MethodCandidate(method, ratio, seconds(world, method, ratio, link), gain(method, ratio))
            for ratio in (*settings.ratios, 1.0)
            for method in compress.METHODS
            if (method in compress.DENSE) == (ratio == 1.0)
        ]
        front = pareto_front(true)
        best = min(front, key=lambda one: compress.candidate_loss(one, front, prefer))
        method, ratio, exploring = world.used[-1]
        assert not exploring
        assert seconds(world, method, ratio, link) <= 1.05 * best.seconds or ratio != best.ratio
        here = compress.MethodCandidate(
            method, ratio, seconds(world, method, ratio, link), gain(method, ratio)
        )
        assert (
            compress.candidate_loss(here, front, prefer) <= compress.candidate_loss(best, front, prefer) + 0.1
        )


def seconds(world, method, ratio, link):
    one = compress.cost(method, compress.Workload(ELEMENTS, ratio, WORKERS, link, select_s=world.select_s))
    return one.seconds + world.compute_s


def gain(method, ratio):
    return 1.0 if method in compress.DENSE else ratio**0.2


def test_every_ratio_is_explored_first_and_its_gain_learned():
    world = World(lambda _: SLOW)
    world.run(compress.Flexible(explore_steps=2), 12)
    assert [ratio for _, ratio, _ in world.used[:10]] == np.repeat([0.1, 0.03, 0.01, 3e-3, 1e-3], 2).tolist()
    assert [exploring for _, _, exploring in world.used] == [True] * 11 + [False]
    ((step, ended),) = (
        (step, one) for step, one in world.events if isinstance(one, compress.ExplorationEnded)
    )
    assert (step, ended.step) == (10, 10)
    assert ended.gains == pytest.approx({ratio: ratio**0.2 for ratio in ended.gains}, rel=0.03)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_gain_that_moves_is_explored_again(factor):
    def gain(step, ratio):
        return min(0.4 * ratio**0.2 * (factor if step >= 50 else 1), 1)

    world = World(lambda _: SLOW, gain=gain)
    world.run(compress.Flexible(methods=("ar_top_k_ring",), explore_after=30), 90)
    (changed,) = world.of(GainChanged)
    assert 50 <= changed < 60
    assert world.of(compress.ExplorationStarted) == [changed]
    assert [exploring for _, _, exploring in world.used[changed + 1 :]][:17] == [True] * 16 + [False]


def test_old_gains_are_explored_again_when_the_link_moves():
    world = World(falling)
    world.run(compress.Flexible(explore_after=150), 300)
    (started,) = world.of(compress.ExplorationStarted)
    assert 200 <= started < 210


def test_a_steady_network_is_left_alone():
    for seed in range(3):
        world = World(lambda _: compress.LinkModel(1e-3, 0.5), noise=0.1, seed=seed)
        world.run(compress.Flexible(), 400)
        assert len(world.of(compress.MethodChosen)) == 1
        assert not world.of(compress.ExplorationStarted)


def test_a_slow_step_changes_nothing():
    world = World(lambda step: compress.LinkModel(1e-3, 0.001 if step in (60, 90) else 1.0))
    world.run(compress.Flexible(), 150)
    assert world.of(compress.LinkChanged) == []


def test_a_small_step_is_told_the_rate_by_probes():
    world = World(lambda step: compress.LinkModel(5e-3, 1.0 if step < 100 else 0.02))
    settings = compress.Flexible(ratios=(1e-6,), methods=("ar_top_k_tree",))
    deciders = world.run(settings, 130)
    probes = [one["group"] for one in world.probes]
    assert sum(map(bool, probes)) >= 10
    assert all(4 * words <= 4 << 20 for words in probes)
    assert 100 <= min(step for step in world.of(compress.LinkChanged) if step >= 50) < 110
    assert deciders[0].links["group"].gbps == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize("workers", [2, 3, 16])
def test_any_number_of_workers_agree(workers):
    world = World(falling, noise=0.5)
    world.run(compress.Flexible(), 250, workers)
    assert world.of(compress.LinkChanged)


def points(*times_and_gains):
    return [compress.MethodCandidate("ar_top_k_ring", gain, time, gain) for time, gain in times_and_gains]


def test_the_front_holds_what_nothing_beats():
    good = points((10, 1.0), (5, 0.8), (1, 0.3))
    bad = points((11, 0.9), (5, 0.5), (4.9, 0.7), (1.2, 0.2))
    for order in itertools.permutations([*good, *bad[:3]]):
        assert pareto_front(order) == good
    assert pareto_front([*bad, *good]) == good


def test_knee_and_weight_choose_on_the_front():
    candidates = points((10, 1.0), (5, 0.9), (1, 0.7), (0.9, 0.1))
    assert compress.choose_candidate(candidates, "knee").seconds == 1
    assert compress.choose_candidate(candidates, 0.0).seconds == 0.9
    assert compress.choose_candidate(candidates, 20.0).seconds == 10
    assert compress.choose_candidate(points((10, 1.0), (9.8, 0.5)), "knee").gain == 1.0


def test_the_current_one_is_kept_unless_another_is_better_by_the_margin():
    candidates = points((10, 1.0), (1, 0.7), (0.9, 0.65))
    current = candidates[2]
    assert compress.choose_candidate(candidates, "knee", current, 0.1) == current
    assert compress.choose_candidate(candidates, "knee", current, 0.0) == candidates[1]
    tree = compress.MethodCandidate("ar_top_k_tree", 0.7, 1.05, 0.7)
    assert compress.choose_candidate(candidates, "knee", tree, 0.1) == tree
    current = compress.MethodCandidate("ar_top_k_tree", 0.7, 1.2, 0.7)
    assert compress.choose_candidate(candidates, "knee", current, 0.1) == candidates[1]
    twice = compress.MethodCandidate("ar_top_k_tree", 0.7, 2.0, 0.7)
    assert compress.choose_candidate(candidates, "knee", twice, 0.5) == twice


def test_a_method_that_selects_needs_a_carrier():
    settings = compress.Flexible(methods=("dense_ring", "top_k_switch"))
    with pytest.raises(CompressConfigError, match="methods: none that selects goes over group; add one"):
        compress.Decider(settings, 1, 2)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ratios": ()}, "ratios, methods: are empty"),
        ({"ratios": (0.0,)}, "ratios: 0 is out of range"),
        ({"methods": ("magic",)}, "methods: 'magic' is unknown; use dense_ring, "),
        ({"methods": ("dense_ring",)}, "methods: has none that selects"),
        ({"prefer": "speed"}, "prefer: 'speed' is unknown; use 'knee' or a number"),
        ({"prefer": -1.0}, "prefer: -1 is out of range"),
        ({"explore_steps": 0}, "explore_steps: 0 is out of range"),
        ({"tolerance": 0.0}, "tolerance: 0 is out of range"),
        ({"margin": 1.0}, "margin: 1 is out of range"),
    ],
)
def test_mistakes_are_one_line(change, told):
    with pytest.raises(CompressConfigError, match=told) as caught:
        compress.Flexible(**change)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(("field", "value"), [("ratios", 0.1), ("methods", "dense_ring")])
def test_a_single_value_is_told_to_be_a_tuple(field, value):
    with pytest.raises(
        CompressConfigError, match=rf"^{field}: {value!r} is not a tuple; write \({value!r},\)"
    ):
        compress.Flexible(**{field: value})
