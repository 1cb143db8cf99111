"""Twenty steps of each model, at tiny sizes: through the switch, by gloo, and with the hook over gloo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import model_training as training
from model_training import Parameters
from torch_ranks import run_ranks

from peelsum.topology import Star
from peelsum.training import MODELS, ModelName

pytestmark = pytest.mark.usefixtures("forked_children")

RANKS = 2
#: Largest difference between a parameter trained with gloo's float sums and with the switch's exact ones, as
#: a share of training's largest change. One missing gradient causes 0.7 to 4 percent.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    training.make_data(folder)
    return folder


@pytest.fixture(scope="module")
def by_gloo(data: Path) -> Parameters:
    return the_same(trained(training.by_gloo, data, False))


@pytest.fixture(scope="module")
def words_by_gloo(data: Path) -> Parameters:
    return the_same(trained(training.by_gloo, data, True))


@pytest.fixture(scope="module")
def by_gloo_without_one(data: Path) -> Parameters:
    """Train with one gradient of one worker missing in the last step, where it has the least effect."""
    return the_same(trained(training.by_gloo, data, False, training.STEPS - 1))


@pytest.fixture(scope="module")
def by_switch(data: Path) -> Parameters:
    """Train without loss; rank 0 arrives first."""
    with Star(RANKS) as star:
        seats = [asdict(seat) for seat in star.seats]
        return the_same(trained(training.by_switch, data, seats, 0))


@pytest.fixture(scope="module")
def by_losing_switch(data: Path) -> Parameters:
    """Train with other lanes and with loss, so that the server sums some chunks; rank 1 arrives first."""
    with Star(RANKS, lanes=32, loss=0.01, seed=1) as star:
        seats = [asdict(seat) for seat in star.seats]
        parameters = the_same(trained(training.by_switch, data, seats, 1))
    assert star.report is not None
    assert star.report.server["chunks_at_server"] > 0
    return parameters


def trained(work: Callable[..., Parameters], *arguments: object) -> list[Parameters]:
    """Train all four models, one after the other; return the results by rank. Slow on a slow machine."""
    return run_ranks(RANKS, work, *arguments, patience_s=240.0)


def the_same(by_rank: list[Parameters]) -> Parameters:
    first, second = by_rank
    for model in MODELS:
        assert np.array_equal(first[model].view(np.int32), second[model].view(np.int32)), model
    return first


def distance(model: ModelName, one: Parameters, other: Parameters, data: Path) -> float:
    """Return the largest difference of a parameter, as a share of training's largest change."""
    changed = float(np.abs(one[model] - training.untrained(model, data)).max())
    assert changed > 0.001
    return float(np.abs(one[model] - other[model]).max()) / changed


@pytest.mark.parametrize("model", MODELS)
def test_a_switch_trains_as_gloo_does(
    model: ModelName, by_gloo: Parameters, by_switch: Parameters, data: Path
) -> None:
    assert distance(model, by_gloo, by_switch, data) <= TOLERANCE


@pytest.mark.parametrize("model", MODELS)
def test_every_way_of_the_words_gives_the_same_bits(
    model: ModelName, by_switch: Parameters, by_losing_switch: Parameters, words_by_gloo: Parameters
) -> None:
    for other in (by_losing_switch, words_by_gloo):
        assert np.array_equal(by_switch[model].view(np.int32), other[model].view(np.int32))


@pytest.mark.parametrize("model", MODELS)
def test_the_tolerance_is_none_for_a_wrong_sum(
    model: ModelName, by_gloo: Parameters, by_gloo_without_one: Parameters, data: Path
) -> None:
    assert distance(model, by_gloo, by_gloo_without_one, data) > 100 * TOLERANCE
