"""Compressors in the hook: exact averages of what ranks sent, over gloo and over a switch alike."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch_compressed as compressed
from compressors import COMPRESSORS
from torch_ranks import run_at_switch, run_ranks

from peelsum.compress import (
    QSGD,
    NaturalCompression,
    PackedIntegers,
    PowerSGD,
    RandomK,
    StarTopK,
    Threshold,
    TopK,
    VarTopK,
)

pytestmark = pytest.mark.usefixtures("forked_children")

#: One for each kind of sum and way to share an index.
METHODS = {
    "top-k": TopK(0.05),
    "top-k per bucket": TopK(0.05, per="bucket"),
    "momentum": TopK(0.05, momentum=0.5),
    "threshold": Threshold(0.01),
    "random-k": RandomK(0.05),
    "random-k, own seeds": RandomK(0.1, seeds="own"),
    "star": StarTopK(0.05),
    "var per bucket": VarTopK(0.05, per="bucket"),
    "8 bits": PackedIntegers(8, rotate=True),
    "power": PowerSGD(2),
    "qsgd": QSGD(4),
    "top-k, qsgd": TopK(0.1, quantizer=QSGD(4)),
}
#: Those that are not `slow`: each of them keeps something else from step to step.
QUICK = ["momentum", "var per bucket", "power", "top-k, qsgd"]


def kept(compressor):
    """Settings by which what the compressor leaves is kept."""
    return {"compressor": compressor, "error_feedback": True}


@pytest.mark.parametrize(
    "compressor",
    [
        pytest.param(method, id=name, marks=[] if name in QUICK else pytest.mark.slow)
        for name, method in METHODS.items()
    ],
)
def test_training_is_exact_and_goes_on_from_a_checkpoint(compressor):
    """DDP rebuilds buckets after the first step; a restore in the middle changes no bit but of buckets."""
    ranks = run_ranks(2, compressed.audited, "gloo", kept(compressor), 6, 3)
    for one in ranks:
        np.testing.assert_array_equal(one["parameters"], ranks[0]["parameters"])
        assert one["stats"].steps == 3
        assert np.isfinite(one["parameters"]).all()
    if compressor.per == "tensor":
        through = run_ranks(2, compressed.audited, "gloo", kept(compressor), 6, 99)
        np.testing.assert_array_equal(ranks[0]["parameters"], through[0]["parameters"])


@pytest.mark.parametrize("loss", [pytest.param(0.0, marks=pytest.mark.slow), 0.05])
def test_switch_and_gloo_give_the_same_sums(loss):
    """Every compressor, at two ranks, whatever the switch's links lose."""
    every = list(COMPRESSORS.values()) if not loss else [*METHODS.values()]
    over_gloo = run_ranks(2, compressed.sums, every, "gloo")
    over_switch, _ = run_at_switch(2, compressed.sums, every, "switch", star={"loss": loss, "seed": 3})
    for one in (*over_gloo, *over_switch):
        for mine, other in zip(one, over_gloo[0], strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    "compressor",
    [pytest.param(METHODS["star"], marks=pytest.mark.slow), METHODS["qsgd"]],
    ids=["star", "qsgd"],
)
def test_training_over_a_switch(compressor):
    """What the switch cannot add is gathered by the ranks' process group."""
    trained, _ = run_at_switch(2, compressed.audited, "switch", kept(compressor), 5, 99)
    expected = run_ranks(2, compressed.audited, "gloo", kept(compressor), 5, 99)[0]
    for one in trained:
        np.testing.assert_array_equal(one["parameters"], expected["parameters"])


@pytest.mark.parametrize(
    "compressor", [StarTopK(0.1), PowerSGD(1), NaturalCompression(), RandomK(0.1, seeds="own")], ids=str
)
def test_an_infinite_gradient_reaches_every_rank(compressor):
    first, second = run_ranks(2, compressed.not_finite, compressor, "gloo")
    assert first == second
    assert all(first[0])
    assert not any(first[1])
    assert all(first[2])
