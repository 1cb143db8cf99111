"""Small runs of the benches that take minutes: a soak, the recovery by peeling."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from command_line import peelsum

from peelsum.bench.codec import SUPPORTS
from peelsum.experiments.catalogue import recovery, soak

#: Enough to pass the wrap of the chunk ids, and to OR the fourth tensor.
CHUNKS = 4 * soak.TENSOR_CHUNKS


def test_a_soak_sums_all_chunks_past_the_wraps() -> None:
    done = peelsum("bench", "soak", "--chunks", str(CHUNKS), "--loss", "0.01", "--json")
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert (report["summed"], report["wrong"]) == (CHUNKS, 0)
    assert report["chunks_in_switch"] + report["chunks_at_server"] >= CHUNKS
    assert report["last_chunk_id"] == CHUNKS - soak.CHUNKS_BEFORE_WRAP - 1
    assert report["resends"] > 0


def test_a_soak_counts_a_wrong_bit_at_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = soak.Tensors.expected

    def spoiled(self: soak.Tensors, number: int) -> Any:
        words = honest(self, number)
        words[7] ^= np.uint32(number == 1)
        return words

    monkeypatch.setattr(soak.Tensors, "expected", spoiled)
    assert soak.measure(1, CHUNKS, 0.0)["wrong"] == soak.WORKERS


def test_recovery_of_tight_and_of_roomy_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "ELEMENTS", 1 << 19)
    monkeypatch.setattr(recovery, "AIM_ELEMENTS", 1 << 16)
    for support in SUPPORTS:
        tight, roomy = (recovery.left_over(support, 64, cells, seeds=1) for cells in (1.0, 4.0))
        assert tight["ours"] > 0.1
        assert roomy["ours"] == 0
        assert 0 <= recovery.not_peeled(support, 0.01, seeds=2)["failed"] <= 2
