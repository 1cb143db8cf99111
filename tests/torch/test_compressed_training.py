"""Compressors in the hook: exact averages of what ranks sent, over gloo and over a switch alike."""

import numpy as np
import pytest
import torch_compressed as compressed
from compressors import COMPRESSORS
from torch_ranks import run_at_switch, run_ranks, run_several

from peelsum.compress import QSGD, PowerSGD, RandomK, TopK, VarTopK

pytestmark = pytest.mark.usefixtures("forked_children")

#: One for each kind of sum and way to share an index.
METHODS = {
    "top-k": TopK(0.05),
    "top-k per bucket": TopK(0.05, per="bucket"),
    "momentum": TopK(0.05, momentum=0.5),
    "random-k": RandomK(0.05),
    "var per bucket": VarTopK(0.05, per="bucket"),
    "power": PowerSGD(2),
    "qsgd": QSGD(4),
    "top-k, qsgd": TopK(0.1, quantizer=QSGD(4)),
}
#: Each of them keeps something else from step to step, for tensors.
KEEPING = ["momentum", "random-k", "power", "top-k, qsgd"]


def kept(compressor):
    """Settings by which what the compressor leaves is kept."""
    return {"compressor": compressor, "error_feedback": True}


def test_training_is_exact_and_goes_on_from_a_checkpoint():
    """DDP rebuilds buckets after the first step; a restore in the middle changes no bit but of buckets."""
    restarts = {name: [2, 99] if name in KEEPING else [2] for name in METHODS}
    runs = [(name, restart_at) for name, several in restarts.items() for restart_at in several]
    works = {run: (compressed.audited, "gloo", kept(METHODS[run[0]]), 4, run[1]) for run in runs}
    for (name, restart_at), ranks in run_several(2, works).items():
        for one in ranks:
            np.testing.assert_array_equal(one["parameters"], ranks[0]["parameters"], name)
            assert one["stats"].steps == (2 if restart_at == 2 else 4), name
            assert np.isfinite(one["parameters"]).all(), name
        if restart_at == 2:
            restored = ranks[0]["parameters"]
        else:
            np.testing.assert_array_equal(ranks[0]["parameters"], restored, name)


@pytest.mark.parametrize("loss", [pytest.param(0.0, marks=pytest.mark.slow), 0.05])
def test_switch_and_gloo_give_the_same_sums(loss):
    """Every compressor, at two ranks, whatever the switch's links lose."""
    every = list(COMPRESSORS.values())
    over_gloo = run_ranks(2, compressed.sums, every, "gloo")
    over_switch, _ = run_at_switch(2, compressed.sums, every, "switch", star={"loss": loss, "seed": 3})
    for one in (*over_gloo, *over_switch):
        for mine, other in zip(one, over_gloo[0], strict=True):
            np.testing.assert_array_equal(mine, other)


def test_training_over_a_switch():
    """What the switch cannot add is gathered by the ranks' process group."""
    settings = kept(METHODS["qsgd"])
    trained, _ = run_at_switch(2, compressed.audited, "switch", settings, 5, 99)
    expected = run_ranks(2, compressed.audited, "gloo", settings, 5, 99)[0]
    for one in trained:
        np.testing.assert_array_equal(one["parameters"], expected["parameters"])
