"""Sketches laid out by their union are peeled to the end, whatever the union's structure."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from peelsum.allreduce import Choice, Settings
from peelsum.allreduce.costs import Seen, block_width
from peelsum.allreduce.exchange import Setting, TensorExchange
from peelsum.allreduce.indexes import BitmapIndex
from peelsum.allreduce.staging import Sums
from peelsum.codec import SketchLayout, kernels

N, SEEDS = 1 << 20, 100
Positions = NDArray[np.int64]


def support(kind: str, count: int, rng: np.random.Generator) -> Positions:
    if kind.startswith("rows"):
        length = int(kind.split()[-1])
        rows = np.unique(rng.integers(0, N // length, -(-count // length)))
        return np.asarray((rows[:, np.newaxis] * length + np.arange(length)).reshape(-1))
    if kind == "stride":
        return np.arange(int(rng.integers(N // count)), N, N // count)
    if kind == "columns":
        return np.unique(
            256 * rng.integers(0, N // 256, count) + rng.integers(0, 256, 32)[rng.integers(0, 32, count)]
        )
    if kind == "skewed columns":
        return np.unique(1024 * rng.integers(0, N // 1024, 2 * count) + rng.zipf(1.3, 2 * count) % 1024)
    return np.unique(rng.integers(0, N, count))


KINDS = ["uniform", "rows of 8", "rows of 64", "rows of 768", "rows of 1024", "stride", "columns"]
KINDS += ["skewed columns"]


@pytest.mark.parametrize("count", [1500, 4000, 20_000])
def test_one_in_a_hundred_sketches_may_have_left_over(count: int) -> None:
    """With 1.30 cells per candidate; below 1,000 candidates, more do."""
    ops, failed = kernels(), dict.fromkeys(KINDS, 0)
    for kind in KINDS:
        for seed in range(SEEDS):
            rng = np.random.default_rng([seed, count])
            where = support(kind, count, rng).astype(np.int64)
            assert where.size >= 0.5 * count
            width = block_width(Seen(0, tuple(ops.occupied(where).tolist())))
            layout = SketchLayout.sized(where.size, width, int(rng.integers(2**62)), 1.3)
            sketch, out = np.zeros((1, layout.cells), np.uint32), np.empty((1, where.size), np.int32)
            failed[kind] += len(ops.sketch_decode(layout, sketch, where, out)) > 0
    assert sum(failed.values()) <= 0.01 * SEEDS * len(KINDS), failed


@pytest.mark.parametrize("kind", ["uniform", "rows of 1024", "one segment of full rows"])
@pytest.mark.parametrize("seed", range(3))
def test_segments_of_default_size_peel_to_the_end(kind: str, seed: int) -> None:
    rng, n = np.random.default_rng(seed), 2**22
    chosen = rng.random(n) < 0.05
    if kind == "rows of 1024":
        chosen = np.repeat(rng.random(n // 1024) < 0.05, 1024)
    elif kind == "one segment of full rows":
        chosen[: 2**17] = np.repeat(rng.random(2**7) < 0.6, 1024)
    values = np.where(chosen, rng.standard_normal(n), 0).astype(np.float32)
    setting = Setting(kernels(), 1, 256, Settings(), seed)
    exchange = TensorExchange(Choice("sketch", BitmapIndex()), values, setting)
    rounds = exchange.rounds()
    asked, sent = next(rounds), []
    while True:
        ored, added = np.zeros(asked.or_words, np.uint32), np.zeros(asked.add_words, np.uint32)
        asked.write(ored, added)
        sent.append(added.size)
        try:
            asked = rounds.send(Sums(ored, added))
        except StopIteration:
            break
    assert len(sent) == 2  # index and sketch, without a round for left-over
    np.testing.assert_array_equal(exchange.total, exchange.quantized)
    assert sent[1] < 1.42 * exchange.positions.size
