"""The same training over a switch, over gloo and with every way to compute OR has identical bits."""

import numpy as np
import pytest
import torch_training as training
from torch_ranks import run_at_switch, run_ranks, run_several

pytestmark = pytest.mark.usefixtures("forked_children")

STEPS = 10


@pytest.fixture(scope="module")
def over_gloo():
    """Return the parameters after `STEPS` steps over gloo."""
    return run_ranks(2, training.by_hook, STEPS, {"over": "gloo"}, {})[0]


@pytest.mark.parametrize(
    ("loss", "seed", "order", "by_server", "planes"), [(0.15, 2, (1, 0), 1, 1), (0.02, 3, (0, 1), 0, 2)]
)
def test_switch_and_gloo_give_the_same_bits(loss, seed, order, by_server, planes, over_gloo):
    """The bits do not depend on losses, on which rank starts first, on who adds, or on planes."""
    options = {"planes": planes, "loss": loss, "seed": seed}
    trained, star = run_at_switch(2, training.in_order, STEPS, {"over": "switch"}, order, star=options)
    for parameters in trained:
        np.testing.assert_array_equal(parameters, over_gloo)
    for report in star.reports:
        assert report.server["chunks_in_switch"] > 0
        assert report.server["chunks_at_server"] >= by_server


def test_every_way_to_or_gives_the_same_bits():
    works = {or_by: (training.by_or, 6, or_by) for or_by in ("bor", "gather", "max")}
    trained = run_several(3, {"hook": (training.by_hook, 6, {"over": "gloo"}, {}), **works})
    for or_by, ranks in trained.items():
        for parameters in ranks:
            np.testing.assert_array_equal(parameters, trained["hook"][0], or_by)
