"""Training with the hook, as processes over gloo: against DDP's and FSDP2's own sums, and bit for bit."""

import numpy as np
import pytest
import sums_of_floats
import torch
import torch_training as training
from torch_ranks import alike, run_ranks, run_several

from peelsum.torch import HookConfigError, SwitchAllreduceState, TopK, fsdp_hook

GLOO = {"over": "gloo"}
OPTIONS = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
}
SETTINGS = {
    "dense": {"forms": "dense"},
    "sketch": {"forms": "sparse", "values": "sketch"},
    "sparse": {"forms": "sparse"},
}
PARTLY = [training.accumulated, training.branches]


def close(left, right, tolerance=1e-6):
    np.testing.assert_allclose(left, right, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def trained():
    """Return what each of several trainings returned on the two ranks of one group."""
    return run_several(
        2,
        {
            "by DDP": (training.train, 6, None),
            "four steps by DDP": (training.train, 4, None),
            "three steps": (training.by_hook, 3, GLOO, {}),
            **{name: (training.by_hook, 6, GLOO, options) for name, options in OPTIONS.items()},
            **{name: (training.by_hook, 6, GLOO | one, {}) for name, one in SETTINGS.items()},
            "averages": (training.averages, GLOO | {"values": "compact"}, "cpu"),
            **{(work, bool(over)): (work, over) for work in PARTLY for over in (GLOO, None)},
            "halved": (training.halved, GLOO),
            "two modules": (training.two_modules, GLOO),
            "scaled": (training.scaled, GLOO),
            "counted": (training.counted, GLOO),
            "refused": (training.refused, GLOO, {}),
        },
    )


@pytest.mark.parametrize("name", [*OPTIONS, *SETTINGS])
def test_trains_as_ddp_does(name, trained):
    close(alike(trained[name]), trained["by DDP"][0])


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")


@pytest.mark.parametrize(("ranks", "device"), [(2, "cpu"), (3, "cpu"), pytest.param(2, "cuda", marks=gpu)])
def test_averages_are_those_of_fixed_point_bit_for_bit(ranks, device, trained):
    by_rank = trained["averages"]
    if (ranks, device) != (2, "cpu"):
        by_rank = run_ranks(ranks, training.averages, GLOO | {"values": "compact"}, device)
    assert len({len(pairs) for pairs in by_rank}) == 1
    for pairs in zip(*by_rank, strict=True):
        before = [one for one, _ in pairs]
        expected = before[0]
        if any(one.any() for one in before):
            expected = sums_of_floats.expected(before, 32, ranks).values.reshape(expected.shape)
        for _, after in pairs:
            np.testing.assert_array_equal(after, expected)


@pytest.mark.parametrize("work", PARTLY, ids=["no_sync", "another part on each rank"])
def test_passes_without_all_gradients(work, trained):
    ours, theirs = (alike(trained[work, by_hook]) for by_hook in (True, False))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_float16_by_torchs_wrapper(trained):
    close(alike(trained["halved"]), trained["four steps by DDP"][0], 2e-3)


def test_two_modules_with_one_state(trained):
    for rank in trained["two modules"]:
        for parameters in rank:
            np.testing.assert_array_equal(parameters, trained["three steps"][0])


def test_a_gradient_that_overflows_on_one_rank_skips_the_step_on_all(trained):
    first, second = trained["scaled"]
    assert first == second
    assert [moved for moved, _ in first] == [True, False, True]
    assert [scale for _, scale in first] == [65536.0, 32768.0, 32768.0]


def test_statistics_say_whether_it_helps(trained):
    for stats, parameters in trained["counted"]:
        assert (stats.steps, stats.non_finite) == (4, 0)
        assert set(stats.tensors) == {name for name, _ in training.Text().named_parameters()}
        assert len(stats.tensors) == parameters
        embedding = stats.tensors["embedding.weight"]
        assert 0 < embedding.density_worker < embedding.density < 0.7
        assert stats.tensors["softmax.weight"].density > 0.9
        assert stats.saving == stats.dense_bytes / stats.wire_bytes
        assert stats.network_s > 0


def test_settings_that_differ_are_told_to_all(trained):
    for error, message, _ in trained["refused"]:
        assert error == "PlanMismatchError"
        assert "not the same on every worker" in message


# FSDP2


def test_replicas_train_as_by_torch():
    ours, theirs = (run_ranks(4, training.sharded, hooked) for hooked in (True, False))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(ours[:2], ours[2:])


@pytest.mark.parametrize("factor", [None, 2.0])
def test_what_is_no_average_over_the_state_s_ranks_is_refused(factor):
    """Either FSDP divides by another factor, or it shards over two ranks that are not the state's two."""
    for said in run_ranks(2 if factor else 4, training.sharded_otherwise, factor):
        assert "give the state the mesh's group" in said


def test_fsdp_takes_no_sparsifiers():
    with pytest.raises(HookConfigError, match="compressor: is for DDP"):
        fsdp_hook(SwitchAllreduceState(compressor=TopK(0.1)))(torch.zeros(3))
