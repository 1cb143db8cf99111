"""`bench rivals`: exact or close sums, sizes that follow from the tensors, a row for every way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.experiments import rivals as bench
from peelsum.bench.codec.timing import NotExactError, tensor

N, WORKERS = 1 << 16, (2, 4)
WAYS = [*bench.OURS, "zstd level 1", "zstd level 3", "lz4", "torch.sparse_coo", "float32"]


@pytest.fixture(scope="module")
def rows() -> dict[int, list[dict[str, Any]]]:
    return {number: list(bench.measure(3, N, 0.05, number)) for number in WORKERS}


def workers_tensors(workers: int) -> list[bench.Floats]:
    return [tensor("uniform", N, 0.05, 3 + worker)[0] for worker in range(workers)]


def test_every_way_is_measured(rows: dict[int, list[dict[str, Any]]]) -> None:
    for measured in rows.values():
        assert [row["way"] for row in measured] == WAYS
        for row in measured:
            assert row["arithmetic"] == ("int32" if row["way"] in bench.OURS else "float32")
            assert row["combine_ms"] > 0
            assert row["way"] == "float32" or min(row["encode_ms"], row["decode_ms"]) > 0


def test_sizes_are_those_of_the_tensors(rows: dict[int, list[dict[str, Any]]]) -> None:
    for workers in WORKERS:
        sizes = {row["way"]: (row["bytes_sent"], row["bytes_received"]) for row in rows[workers]}
        used = [values != 0 for values in workers_tensors(workers)]
        nonzeros, union = np.count_nonzero(used[0]), np.count_nonzero(np.any(used, axis=0))
        assert sizes["float32"] == (4 * N, 4 * N)
        assert sizes["torch.sparse_coo"] == (12 * nonzeros, 12 * union)
        scales = 4 * N // 256  # blocks of 256 elements: the smallest with at most a word for 32 others
        assert sizes["compact"] == 2 * (N // 8 + 4 * 1 + scales + 4 * union,)
        assert sizes["auto"][0] <= sizes["compact"][0] < sizes["sketch"][0]
        for way in ("zstd level 1", "zstd level 3", "lz4"):
            sent, received = sizes[way]
            assert 4 * nonzeros < sent < received < 4 * N


def test_the_exact_ways_give_the_sum_of_integers() -> None:
    tensors = workers_tensors(3)
    for form, index in bench.OURS.values():
        choice = bench.fewest_words(form, index, N, bench._seen(tensors), bench.PlanSettings())
        run = bench._exchange(choice, tensors, 5)
        factor = np.ldexp(1.0, run.fixed.scales_at(np.arange(N)))
        total = sum(np.rint(values * factor).astype(np.int64) for values in tensors)
        np.testing.assert_array_equal(run.decoded, (total / factor).astype(np.float32))


def test_a_wrong_sum_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_float_sum", lambda tensors: next(iter(tensors)) * 2)
    with pytest.raises(NotExactError, match="sum: it differs from that of NumPy's float64"):
        list(bench.measure(0, 4096, 0.05, 2))
