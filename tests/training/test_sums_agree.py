"""Fifty steps of each small model: through the switch, by gloo, and by the switch's words over gloo."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

pytest.importorskip("torch")

from model_training import train
from torch_ranks import run_ranks

from peelsum.topology import Star
from peelsum.training import ModelName

RANKS, STEPS = 2, 50
#: Largest difference of a parameter trained by gloo's float sums and by the switch's exact ones, as a share
#: of what training changed most. VGG19 has it by itself: its pools choose between the digits' equal pixels by
#: rounding errors, so that parameters 1e-7 away end a tenth apart after ten steps.
TOLERANCE = {"ncf": 1e-4, "bert": 1e-4, "lstm": 1e-4, "vgg19": 0.5}
slow = pytest.mark.slow


def _by_switch(model: ModelName, loss_seed: int) -> np.ndarray:
    with Star(RANKS, loss=0.001, seed=loss_seed) as star:
        environments = [{"PEELSUM_SEAT": json.dumps(asdict(seat))} for seat in star.seats]
        (_, first), (_, second) = run_ranks(RANKS, train, STEPS, model, "switch", environments=environments)
    assert np.array_equal(first.view(np.int32), second.view(np.int32))
    return first


@pytest.mark.parametrize(
    "model", ["ncf", "bert", pytest.param("lstm", marks=slow), pytest.param("vgg19", marks=slow)]
)
def test_ways_to_sum_agree(model: ModelName) -> None:
    (before, by_gloo), _ = run_ranks(RANKS, train, STEPS, model, None)
    (_, by_words), _ = run_ranks(RANKS, train, STEPS, model, "gloo")
    by_switch = _by_switch(model, loss_seed=1)
    assert np.array_equal(by_switch.view(np.int32), by_words.view(np.int32))
    assert np.array_equal(by_switch.view(np.int32), _by_switch(model, loss_seed=2).view(np.int32))
    difference = float(np.abs(by_switch - by_gloo).max())
    trained = float(np.abs(by_gloo - before).max())
    assert trained > 0.001
    assert difference <= TOLERANCE[model] * trained
