"""The strategy on simulated networks: it explores, chooses, notices changes in ten steps, and goes back."""

from __future__ import annotations

import itertools

import pytest
from simulated_network import ELEMENTS, WORKERS, World

from peelsum.flexible import (
    CARRIERS,
    DENSE,
    METHODS,
    Candidate,
    Decider,
    ExplorationEnded,
    ExplorationStarted,
    Flexible,
    FlexibleConfigError,
    GainChanged,
    LinkChanged,
    LinkModel,
    Measurement,
    Method,
    MethodChosen,
    Step,
    Traffic,
    carrier_of,
    chosen,
    cost,
    family_of,
    loss,
    pareto_front,
)

FAST, SLOW = LinkModel(1e-4, 10.0), LinkModel(1e-4, 1.0)
#: Steps after which exploring is over.
EXPLORED = 30
#: Methods that all have the same link.
BY_GROUP = tuple(method for method in METHODS if carrier_of(method) == "group")


def falling(step: int) -> LinkModel:
    """Return a link whose rate falls tenfold from step 100 to step 200."""
    return SLOW if 100 <= step < 200 else FAST


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("prefer", ["knee", 1.0])
def test_a_rate_that_falls_tenfold_switches_within_ten_steps_and_back(prefer: str | float, seed: int) -> None:
    world = World(falling, seed=seed)
    world.run(Flexible(prefer=prefer, methods=BY_GROUP), 300)
    before, slow, after = world.used[99], world.used[199], world.used[299]
    assert before == after
    assert slow != before
    # A candidate that was not worth exploring may be worth it on the other link.
    assert before not in world.used[110:200]
    assert set(world.used[100 + EXPLORED : 200]) == {slow}
    assert set(world.used[210:]) == {before} == set(world.used[EXPLORED:100])
    changes = world.of(LinkChanged)
    assert any(100 <= step < 110 for step in changes)
    assert any(200 <= step < 210 for step in changes)


@pytest.mark.parametrize("seed", range(5))
def test_a_switch_whose_links_slow_down_is_left_within_ten_steps_and_used_again(seed: int) -> None:
    """The process group has links of its own, which stay as they are."""
    slow = LinkModel(1e-3, 0.1)
    world = World(
        lambda _: LinkModel(2e-4, 1.0),
        lambda step: slow if 100 <= step < 200 else LinkModel(1e-5, 10.0),
        seed=seed,
    )
    world.run(Flexible(ratios=(0.01,), prefer=0.0), 300)
    by = [carrier_of(method) for method, _, _ in world.used]
    assert set(by[EXPLORED:100]) == {"switch"} == set(by[210:])
    assert set(by[110:200]) == {"group"}


def test_a_decider_goes_on_from_what_another_saved() -> None:
    """Both decide alike from then on, whether the ratios were being explored or used."""
    settings = Flexible()
    for steps in (7, 40):
        (first, _) = World(falling).run(settings, steps)
        saved = first.saved()
        second = Decider(settings, 1, WORKERS, carriers=CARRIERS)
        second.restore(saved)
        assert saved == first.saved() == second.saved()
        for _ in range(20):
            assert first.next == second.next
            measured = Measurement(4e-3, 5e-3, 2e-3, 0.1, 1e-3, 1e-3, 0.3)
            assert first.observe(measured) == second.observe(measured)


def test_a_gradient_of_another_size_is_decided_for() -> None:
    """Many sums of few elements take as long as their latency: all are sent."""
    decider = Decider(Flexible(explore_steps=1), ELEMENTS, WORKERS)
    for _ in range(40):
        measured = Measurement(7e-3, 0.0, 2e-3, exchange_s=0.2, compress_s=1e-4, gain=0.1)
        decider.observe(measured, Traffic(1000, 30, 180, words=1500, first_messages=2, first_words=20))
    assert decider.next.method in DENSE


@pytest.mark.parametrize("seed", range(5))
def test_a_latency_that_rises_is_noticed_within_ten_steps(seed: int) -> None:
    world = World(lambda step: LinkModel(1e-2 if step >= 50 else 1e-5, 1.0), seed=seed)
    world.run(Flexible(methods=BY_GROUP), 80)
    assert 50 <= world.of(LinkChanged)[0] < 60
    assert world.used[49] != world.used[60]


@pytest.mark.parametrize("prefer", ["knee", 0.5, 2.0])
def test_what_is_in_use_is_the_best_of_all_candidates_by_the_true_times(prefer: str | float) -> None:
    for link in (LinkModel(1e-5, 0.05), LinkModel(1e-3, 1.0), LinkModel(5e-3, 0.1)):
        world = World(lambda _, link=link: link, noise=0.0)
        settings = Flexible(prefer=prefer)
        world.run(settings, EXPLORED + 1)
        true = [
            Candidate(method, ratio, seconds(world, method, ratio, link), gain(method, ratio))
            for ratio in (*settings.ratios, 1.0)
            for method in METHODS
            if (method in DENSE) == (ratio == 1.0)
        ]
        front = pareto_front(true)
        best = min(front, key=lambda one: loss(one, front, prefer))
        method, ratio, exploring = world.used[-1]
        assert not exploring
        assert seconds(world, method, ratio, link) <= 1.05 * best.seconds or ratio != best.ratio
        here = Candidate(method, ratio, seconds(world, method, ratio, link), gain(method, ratio))
        assert loss(here, front, prefer) <= loss(best, front, prefer) + 0.1


def seconds(world: World, method: Method, ratio: float, link: LinkModel) -> float:
    one = cost(method, Step(ELEMENTS, ratio, WORKERS, link, select_s=world.select_s))
    return one.seconds + world.compute_s


def gain(method: Method, ratio: float) -> float:
    return 1.0 if method in DENSE else ratio**0.2


def test_dense_is_used_where_it_is_fastest() -> None:
    world = World(lambda _: LinkModel(1e-5, 100.0), select_s=0.02)
    world.run(Flexible(), 40)
    assert {method for method, _, _ in world.used[EXPLORED:]} <= set(DENSE)
    assert {ratio for _, ratio, _ in world.used[EXPLORED:]} == {1.0}


def test_what_might_be_the_best_is_explored_by_predicted_time() -> None:
    """The fastest comes first; a candidate that no gain could make the best is left out."""
    world = World(lambda _: LinkModel(1e-4, 0.1), gain=lambda step, ratio: ratio**0.2)
    settings = Flexible(explore_steps=2, prefer=1.0, methods=("dense_switch", "top_k_switch"))
    world.run(settings, 20)
    explored = [ratio for _, ratio, exploring in world.used if exploring]
    assert explored[:3] == [0.001, 0.001, 0.003] or explored[:2] == [0.001, 0.003]
    assert explored == [ratio for _, ratio, _ in world.used[: len(explored)]]
    assert max(explored) < 0.1
    ((step, ended),) = ((step, one) for step, one in world.events if isinstance(one, ExplorationEnded))
    assert ended.gains == pytest.approx({key: key[1] ** 0.2 for key in ended.gains}, rel=0.03)
    assert {ratio for _, ratio in ended.gains} == set(explored)
    assert world.used[step + 1][2] is False
    times = [seconds(world, "top_k_switch", ratio, LinkModel(1e-4, 0.1)) for ratio in (0.001, 0.1)]
    assert times[1] > times[0] / 0.001**0.2  # so that no gain would have made it the best


def test_a_gain_belongs_to_what_decides_which_elements_are_kept() -> None:
    """One worker's positions have a fifth of the gain of each worker's own, in hardly less time."""
    link = LinkModel(1e-4, 0.2)
    world = World(lambda _: link, shared=0.2)
    world.run(Flexible(ratios=(0.03, 0.01), prefer=1.0), 40)
    ((_, ended),) = ((step, one) for step, one in world.events if isinstance(one, ExplorationEnded))
    for (family, ratio), found in ended.gains.items():
        assert found == pytest.approx(ratio**0.2 * (0.2 if family == "shared" else 1), rel=0.03)
    assert {family for family, _ in ended.gains} == {"own", "shared"}
    methods = {method for method, _, exploring in world.used[EXPLORED:] if not exploring}
    assert {family_of(method) for method in methods} == {"own"}
    # Both families are candidates: the fastest method has another worker's positions.
    times = {method: seconds(world, method, 0.01, link) for method in METHODS if method not in DENSE}
    assert family_of(min(times, key=times.__getitem__)) == "shared"


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_gain_that_moves_is_explored_again(factor: float) -> None:
    world = World(
        lambda _: SLOW, gain=lambda step, ratio: min(0.4 * ratio**0.2 * (factor if step >= 50 else 1), 1)
    )
    world.run(Flexible(methods=("ar_top_k_ring",), explore_after=30), 90)
    (changed,) = world.of(GainChanged)
    assert 50 <= changed < 60
    assert world.of(ExplorationStarted) == [changed]
    exploring = [exploring for _, _, exploring in world.used[changed + 1 :]]
    assert exploring[0]
    assert exploring == sorted(exploring, reverse=True)
    assert not exploring[15]


def test_old_gains_are_explored_again_when_the_link_moves() -> None:
    world = World(falling)
    world.run(Flexible(explore_after=80, methods=BY_GROUP), 300)
    starts = world.of(ExplorationStarted)
    assert any(100 <= step < 110 for step in starts)
    assert any(200 <= step < 210 for step in starts)


def test_a_steady_network_is_left_alone() -> None:
    for seed in range(5):
        world = World(lambda _: LinkModel(1e-3, 0.5), noise=0.1, seed=seed)
        world.run(Flexible(), 400)
        assert len(world.of(MethodChosen)) == 1
        assert not world.of(ExplorationStarted)


def test_a_slow_step_changes_nothing() -> None:
    world = World(lambda step: LinkModel(1e-3, 0.001 if step in (60, 90) else 1.0))
    world.run(Flexible(), 150)
    assert len(world.of(MethodChosen)) == 1
    assert len(set(world.used[EXPLORED:])) == 1


def test_a_small_step_is_told_the_rate_by_probes() -> None:
    """Its own exchanges tell nothing of the rate, so `probe_share` decides how soon a change is found."""
    world = World(lambda step: LinkModel(5e-3, 1.0 if step < 100 else 0.02))
    settings = Flexible(ratios=(1e-6,), methods=("ar_top_k_tree",), probe_share=1.0)
    deciders = world.run(settings, 130)
    probes = [one["group"] for one in world.probes]
    assert sum(map(bool, probes)) >= 10
    assert all(4 * words <= 4 << 20 for words in probes)
    assert 100 <= min(step for step in world.of(LinkChanged) if step >= 50) < 110
    assert deciders[0].links["group"].gbps == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize("share", [0.005, 0.02, 0.1])
@pytest.mark.parametrize(
    ("latency_s", "gbps"), [(1e-4, 10.0), (1e-4, 0.005), (1e-2, 0.5), (5e-3, 0.02), (1e-5, 1.0)]
)
def test_steps_wait_for_probes_no_longer_than_their_share(
    latency_s: float, gbps: float, share: float
) -> None:
    """This holds at any time, to within one probe, once the first ones have told the links."""
    for ratios in ((0.1, 0.01, 0.001), (1e-6,)):
        world = World(lambda _: LinkModel(latency_s, gbps), noise=0.0)
        world.run(Flexible(ratios=ratios, probe_share=share), 400)
        waited, spent, begun = 0.0, 0.0, 5
        for step in range(begun, 400):
            waited += world.probed[step]
            spent += world.seconds[step] + world.probed[step]
            total = spent + sum(world.seconds[:begun])
            assert waited <= 1.25 * share * total + max(world.probed[begun : step + 1]), step


@pytest.mark.parametrize(
    ("before", "after"),
    [(LinkModel(5e-4, 1e-2), LinkModel(5e-2, 1e-2)), (LinkModel(5e-3, 1e-3), LinkModel(5e-3, 10.0))],
)
def test_probes_of_an_idle_carrier_tell_what_changed_and_end(before: LinkModel, after: LinkModel) -> None:
    """A packet that takes long on a long link is no sign of a low rate."""
    world = World(lambda _: LinkModel(2e-4, 1.0), lambda step: before if step < 100 else after)
    deciders = world.run(Flexible(ratios=(0.01,)), 200)
    assert {carrier_of(method) for method, _, _ in world.used[EXPLORED:]} == {"group"}
    link = deciders[0].links["switch"]
    assert link.latency_s == pytest.approx(after.latency_s, rel=0.2)
    assert link.gbps >= 0.8 * before.gbps
    assert sum(bool(one["switch"]) for one in world.probes[120:]) <= 80 / 3


def test_a_step_that_tells_the_rate_needs_no_probe() -> None:
    world = World(lambda _: LinkModel(1e-5, 0.1))
    deciders = world.run(Flexible(methods=BY_GROUP), 60)
    assert not any(one["group"] > 1 for one in world.probes[EXPLORED:])
    link = deciders[0].links["group"]
    assert link.gbps == pytest.approx(0.1, rel=0.15)
    assert link.latency_s == pytest.approx(1e-5, rel=0.5)


@pytest.mark.parametrize("workers", [2, 3, 16])
def test_any_number_of_workers_agree(workers: int) -> None:
    world = World(falling, noise=0.5)
    world.run(Flexible(), 250, workers)
    assert world.of(LinkChanged)


def points(*times_and_gains: tuple[float, float]) -> list[Candidate]:
    return [Candidate("ar_top_k_ring", gain, time, gain) for time, gain in times_and_gains]


def test_the_front_holds_what_nothing_beats() -> None:
    good = points((10, 1.0), (5, 0.8), (1, 0.3))
    bad = points((11, 0.9), (5, 0.5), (4.9, 0.7), (1.2, 0.2))
    for order in itertools.permutations([*good, *bad[:3]]):
        assert pareto_front(order) == good
    assert pareto_front([*bad, *good]) == good


def test_knee_and_weight_choose_on_the_front() -> None:
    candidates = points((10, 1.0), (5, 0.9), (1, 0.7), (0.9, 0.1))
    assert chosen(candidates, "knee").seconds == 1
    assert chosen(candidates, 0.0).seconds == 0.9
    assert chosen(candidates, 20.0).seconds == 10
    assert chosen(points((10, 1.0), (9.8, 0.5)), "knee").gain == 1.0


def test_the_current_one_is_kept_unless_another_is_better_by_the_margin() -> None:
    candidates = points((10, 1.0), (1, 0.7), (0.9, 0.65))
    current = candidates[2]
    assert chosen(candidates, "knee", current, 0.1) == current
    assert chosen(candidates, "knee", current, 0.0) == candidates[1]
    tree = Candidate("ar_top_k_tree", 0.7, 1.05, 0.7)
    assert chosen(candidates, "knee", tree, 0.1) == tree
    assert chosen(candidates, "knee", Candidate("ar_top_k_tree", 0.7, 1.2, 0.7), 0.1) == candidates[1]


def test_a_method_that_selects_needs_a_carrier() -> None:
    settings = Flexible(methods=("dense_ring", "top_k_switch"))
    with pytest.raises(FlexibleConfigError, match="methods: none that selects goes over group; add one"):
        Decider(settings, 1, 2)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ratios": ()}, "ratios, methods: are empty"),
        ({"ratios": (0.0,)}, "ratios: 0 is out of range"),
        ({"methods": ("magic",)}, "methods: 'magic' is unknown; use dense_ring, "),
        ({"methods": ("dense_ring",)}, "methods: has none that selects"),
        ({"prefer": "speed"}, "prefer: 'speed' is unknown; use 'delay', 'knee' or a number"),
        ({"prefer": -1.0}, "prefer: -1 is out of range"),
        ({"explore_steps": 0}, "explore_steps: 0 is out of range"),
        ({"tolerance": 0.0}, "tolerance: 0 is out of range"),
        ({"margin": 1.0}, "margin: 1 is out of range"),
        ({"probe_share": 0.0}, "probe_share: 0 is out of range"),
    ],
)
def test_mistakes_are_one_line(change: dict[str, object], told: str) -> None:
    with pytest.raises(FlexibleConfigError, match=told) as caught:
        Flexible(**change)  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 1
