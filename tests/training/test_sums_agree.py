"""Twenty steps of each model, at tiny sizes: through the switch, by gloo, and with the hook over gloo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

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
#: All four models take long on a slow machine.
SLOW_S = 240.0
Trained = Callable[[str], Parameters]
#: Largest difference between a parameter trained with gloo's float sums and with the switch's exact ones, as
#: a share of training's largest change. One missing gradient causes 0.7 to 4 percent.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    training.make_data(folder)
    return folder


@pytest.fixture(scope="module")
def trained(data: Path) -> Trained:
    """Train all four models, one after the other, in one of these ways; all ranks get the same."""

    def by_gloo(*arguments: object) -> list[Parameters]:
        return run_ranks(RANKS, training.by_gloo, data, *arguments, patience_s=SLOW_S)

    def by_switch(first: int, at_server: int, **options: Any) -> list[Parameters]:
        with Star(RANKS, **options) as star:
            seats = [asdict(seat) for seat in star.seats]
            parameters = run_ranks(RANKS, training.by_switch, data, seats, first, patience_s=SLOW_S)
        assert star.report is not None
        assert star.report.server["chunks_at_server"] >= at_server
        return parameters

    ways: dict[str, Callable[[], list[Parameters]]] = {
        "gloo": lambda: by_gloo(False),
        "words by gloo": lambda: by_gloo(True),
        # One gradient of one worker is missing in the last step, where it has the least effect.
        "gloo without one": lambda: by_gloo(False, training.STEPS - 1),
        # Rank 0 arrives first.
        "switch": lambda: by_switch(0, 0),
        # Rank 1 arrives first; other lanes, and losses, so that the server sums some chunks.
        "losing switch": lambda: by_switch(1, 1, lanes=32, loss=0.01, seed=1),
    }

    @cache
    def of(way: str) -> Parameters:
        first, second = ways[way]()
        for model in MODELS:
            assert np.array_equal(first[model].view(np.int32), second[model].view(np.int32)), model
        return first

    return of


def distance(model: ModelName, first: Parameters, second: Parameters, data: Path) -> float:
    """Return the largest difference of a parameter, as a share of training's largest change."""
    changed = float(np.abs(first[model] - training.untrained(model, data)).max())
    assert changed > 0.001
    return float(np.abs(first[model] - second[model]).max()) / changed


@pytest.mark.parametrize("model", MODELS)
def test_a_switch_trains_as_gloo_does(model: ModelName, trained: Trained, data: Path) -> None:
    assert distance(model, trained("gloo"), trained("switch"), data) <= TOLERANCE
    # The tolerance is none for a wrong sum.
    assert distance(model, trained("gloo"), trained("gloo without one"), data) > 100 * TOLERANCE


@pytest.mark.system
@pytest.mark.parametrize("model", MODELS)
def test_every_way_of_the_words_gives_the_same_bits(model: ModelName, trained: Trained) -> None:
    for other in ("losing switch", "words by gloo"):
        assert np.array_equal(trained("switch")[model].view(np.int32), trained(other)[model].view(np.int32))
