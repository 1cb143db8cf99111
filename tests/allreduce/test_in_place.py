"""Results written over the tensors are those of new arrays, bit for bit, signs of zeros included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Floats = NDArray[np.float32]
WORKERS = 3


def drawn(worker: int, density: float, shape: tuple[int, ...] = (9000,)) -> Floats:
    """Return normal values at random places, and zeros of either sign elsewhere."""
    rng = np.random.default_rng((worker, int(100 * density)))
    zeros = np.where(rng.random(shape) < 0.5, np.float32(-0.0), np.float32(0.0))
    return np.where(rng.random(shape) < density, rng.normal(size=shape), zeros).astype(np.float32)


def bits(values: Any) -> Any:
    return np.asarray(values, np.float32).view(np.uint32)


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("form", "shape"), [("dense", (9000,)), ("compact", (9000,)), ("sketch", (9000,)), ("auto", (40_000,))]
)
@pytest.mark.parametrize("predict", [False, True])
@pytest.mark.parametrize("density", [0.0, 0.03, 1.0])
def test_results_in_place_have_the_same_bits(
    make_workers: Any, implementation: str, form: str, shape: tuple[int, ...], predict: bool, density: float
) -> None:
    settings = {"forms": form, "implementation": implementation, "predict": predict, "average": True}
    apart, over = make_workers(WORKERS, **settings), make_workers(WORKERS, **settings)
    for step in range(3):
        inputs = [{"g": drawn(10 * step + w, density, shape)} for w in range(WORKERS)]
        if step == 2:
            inputs[1]["g"][77] = np.nan
        expected = apart.sum(inputs)
        kept = [{"g": tensors["g"].copy()} for tensors in inputs]
        results = over.each(lambda w, reduce, kept=kept: reduce.sum(kept[w], in_place=True))
        for one, result, want in zip(kept, results, expected, strict=True):
            assert np.shares_memory(result["g"].values, one["g"])
            assert bits(one["g"]).tolist() == bits(want["g"].values).tolist()
            assert bits(one["g"]).tolist() == bits(kept[0]["g"]).tolist()


def test_what_cannot_be_written_over_is_left_alone(make_workers: Any) -> None:
    whole = drawn(0, 0.1)
    frozen = whole.copy()
    frozen.flags.writeable = False
    tensors = {"strided": whole[::2], "frozen": frozen, "half": whole.astype(np.float16)}
    before = {name: tensor.copy() for name, tensor in tensors.items()}
    (result,) = make_workers(1).each(lambda w, reduce: reduce.sum(tensors, in_place=True))
    for name, tensor in tensors.items():
        assert not np.shares_memory(result[name].values, tensor)
        assert tensor.tobytes() == before[name].tobytes()
        assert np.abs(result[name].values - tensor).max() <= result[name].error_bound
