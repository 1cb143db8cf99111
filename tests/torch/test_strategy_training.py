"""A strategy in the hook: exact sums by every method in turn, shared decisions, links that change."""

import numpy as np
import pytest
import torch
import torch_flexible as flexible
from patience import tried_again
from torch_alone import Sums, group_of_one, hooked, in_time, layers
from torch_ranks import run_at_switch, run_several

from peelsum.compress import METHODS, ExplorationEnded, Flexible, LinkChanged, MethodChosen, carrier_of
from peelsum.torch import HookConfigError, SwitchAllreduceState

pytestmark = pytest.mark.usefixtures("forked_children")

#: Every method; the carriers alternate.
BY_SWITCH = [(method, 0.1) for method in METHODS]
#: What holds over a switch whose links lose packets is hardly wrong over one that loses none.
LOSSES = [pytest.param(0.0, marks=pytest.mark.slow), 0.05]
BY_GROUP = [one for one in BY_SWITCH if carrier_of(one[0]) == "group"]
#: Settings of the two ranks.
MISMATCHES = {
    "other ratios": [{}, {"strategy": Flexible(ratios=(0.5,))}],
    "without": [{}, {"strategy": None}],
    "with": [{"strategy": None}, {}],
}


def all_equal(ranks):
    for one in ranks:
        np.testing.assert_array_equal(one["parameters"], ranks[0]["parameters"])
        assert np.isfinite(one["parameters"]).all()


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_books_close_over_every_method_and_a_checkpoint(world):
    """Residuals go from method to method, rebuilt buckets and a restored state; nothing is lost."""
    works = {at: (flexible.audited, "gloo", BY_GROUP, 8, at) for at in (5, 99)}
    restored, through = run_several(world, works).values()
    all_equal(restored)
    assert {method for method, _ in restored[0]["used"]} == {method for method, _ in BY_GROUP}
    expected = [(method, 1.0 if method.startswith("dense") else ratio) for method, ratio in BY_GROUP]
    assert through[0]["used"] == (expected * 2)[:8]
    all_equal(through)


@pytest.mark.parametrize("loss", LOSSES)
def test_books_close_from_switch_to_group_and_back(loss):
    arguments = ("switch", BY_SWITCH, len(BY_SWITCH), 99)
    ranks, star = run_at_switch(2, flexible.audited, *arguments, star={"loss": loss, "seed": 5})
    all_equal(ranks)
    assert len({method for method, _ in ranks[0]["used"]}) == len(METHODS)
    assert star.report.server["chunks_in_switch"] > 0


def test_a_method_gives_the_same_bits_by_ring_tree_and_switch():
    methods = [f"{kind}_{by}" for kind in ("dense", "ar_top_k") for by in ("ring", "tree", "switch")]
    ranks, _ = run_at_switch(2, flexible.same_methods, "switch", methods, 4)
    for by_method in ranks:
        for number, parameters in enumerate(by_method):
            np.testing.assert_array_equal(parameters, ranks[0][number // 3 * 3])


@pytest.mark.parametrize("loss", LOSSES)
def test_ranks_decide_alike_over_links_that_lose_packets(loss):
    settings = {"strategy": Flexible(ratios=(0.1, 0.01), explore_steps=2, explore_after=10)}
    ranks, _ = run_at_switch(2, flexible.deciding, "switch", settings, star={"loss": loss, "seed": 6})
    all_equal(ranks)
    first, second = (one["stats"].strategy for one in ranks)
    assert first == second
    assert len(first.history) == 28
    assert first.links.keys() == {"group", "switch"}
    assert any(isinstance(one, ExplorationEnded) for one in first.events)


@pytest.fixture(scope="module")
def over_gloo():
    """Return what each of several trainings returned on the two ranks of one group."""
    script = [("ar_top_k_ring", 0.1), ("dense_tree", 1.0), ("top_k_all_gather", 0.1)]
    return run_several(
        2,
        {
            "deciding": (flexible.deciding, "gloo", {"strategy": Flexible((0.1, 0.01), explore_steps=2)}),
            "continued": (flexible.continued,),
            "to and from a compressor": (flexible.to_and_from_a_compressor,),
            "not finite": (flexible.not_finite, [one for method in BY_GROUP for one in (method, method)]),
            "two modules": (flexible.two_modules, script),
            **{f"mismatched, {name}": (flexible.mismatched, one) for name, one in MISMATCHES.items()},
        },
    )


def test_decisions_are_logged_in_one_line_each_and_in_the_statistics(over_gloo):
    one, _ = over_gloo["deciding"]
    stats = one["stats"].strategy
    assert [step.step for step in stats.history] == list(range(1, 29))
    assert [step.ratio for step in stats.history[:4]] == [0.1, 0.1, 0.01, 0.01]
    assert [step.exploring for step in stats.history] == [True] * 5 + [False] * 23
    assert all(step.exchange_s > 0 for step in stats.history)
    assert stats.plan.probe_words.keys() == stats.links.keys() == {"group"}
    assert one["log"][0].startswith("step 4: every ratio has been explored; gains: ")
    chosen = [event for event in stats.events if isinstance(event, MethodChosen)]
    told = [line for line in one["log"] if ": use " in line]
    assert len(told) == len(chosen)
    assert told[0].startswith(f"step 4: use {chosen[0].chosen.method} at ")
    assert not any("\n" in line for line in one["log"])


def switched_within(stats, begin, carrier):
    """The step, counted from `begin`, from which on sums go by `carrier`; at most 10."""
    by = [carrier_of(one.method) for one in stats.history[begin:]]
    assert carrier in by[:11], by
    return begin + by.index(carrier)


@pytest.mark.system
@tried_again
def test_a_switch_with_a_schedule_of_links_is_left_within_ten_steps_and_used_again(tmp_path):
    schedule = tmp_path / "links.csv"
    fall_s, rise_s, end_s = 6.0, 12.0, 18.0
    schedule.write_text(f"at_s,mbit,delay_ms\n0,400,0\n{fall_s},40,20\n{rise_s},400,0\n")
    methods = ("dense_ring", "ar_top_k_ring", "dense_switch", "ar_top_k_switch")
    strategy = Flexible(ratios=(0.05,), methods=methods, prefer=0.0, explore_steps=2)
    star = {"schedule": schedule}
    ranks, _ = run_at_switch(2, flexible.timed_over_switch, end_s, strategy, star=star)
    all_equal(ranks)
    stats, began = ranks[0]["strategy"], ranks[0]["began"]
    assert stats == ranks[1]["strategy"]
    # The schedule begins with the first packet, which is one of the first step.
    fall = next(n for n, at in enumerate(began) if at > began[1] + fall_s)
    rise = next(n for n, at in enumerate(began) if at > began[1] + rise_s)
    before = [carrier_of(one.method) for one in stats.history[6:fall]]
    assert before.count("switch") > len(before) / 2
    left = switched_within(stats, fall, "group")
    assert {carrier_of(one.method) for one in stats.history[left : rise - 1]} == {"group"}
    assert stats.history[left + 10].links["switch"].latency_s > 0.015
    switched_within(stats, rise, "switch")
    assert any(isinstance(one, LinkChanged) and one.carrier == "switch" for one in stats.events)


def test_a_restored_state_goes_on_deciding(over_gloo):
    """With other settings, it explores again."""
    for one in over_gloo["continued"]:
        plan, links = one["same"]
        assert not plan.exploring
        assert (plan.method, plan.ratio) == (one["before"].plan.method, one["before"].plan.ratio)
        assert links == one["before"].links
        assert one["other"][0].exploring
        assert one["other"][0].ratio == 0.2
        assert one["saved"]["known"]["observed"] == 3


def test_residuals_go_from_a_strategy_to_a_compressor_and_back(over_gloo):
    for first, by_compressor, again in over_gloo["to and from a compressor"]:
        assert any(one.any() for one in first.values())
        for name, one in first.items():
            np.testing.assert_array_equal(by_compressor[name], one)
            assert again[name].shape == one.shape


@pytest.mark.parametrize("name", MISMATCHES)
def test_ranks_with_other_settings_learn_of_it_at_once(name, over_gloo):
    """Before their sums time out, as `over_gloo` then would."""
    for message in over_gloo[f"mismatched, {name}"]:
        assert message.startswith("PlanMismatchError: ")
        assert len(message.splitlines()) == 1


def test_an_infinite_gradient_is_skipped_by_every_method(over_gloo):
    for outcome in over_gloo["not finite"]:
        for number, (finite, kept) in enumerate(outcome):
            assert all(finite) if number % 2 == 0 else not any(finite)
            assert kept


def test_two_modules_in_one_pass_are_one_step(over_gloo):
    first, second = over_gloo["two modules"]
    np.testing.assert_array_equal(first, second)


def test_one_rank_has_nothing_to_send():
    with group_of_one():
        ddp = hooked(SwitchAllreduceState(over=Sums(), strategy=Flexible()), layers())
        with pytest.raises(HookConfigError, match="strategy: one rank has nothing to send; use None"):
            in_time(lambda: ddp(torch.ones(2, 6)).sum().backward())
