"""Peak memory beyond the caller's tensors stays within the bounds in docs/reference/codec.md."""

import tracemalloc
import weakref

import numpy as np
import pytest

from peelsum.allreduce import Allreduce, NetworkModel
from peelsum.codec import threads, warm_up

N = 1 << 20
#: Bytes for arrays whose size does not grow with the tensor, interpreter objects, etc.
SLACK = 64 * 1024
#: Networks for which the choice has the fewest words, and the fewest exchanges (filters are not refined).
SLOW, FAR = NetworkModel(gbps=1e-3, round_trip_s=0.0), NetworkModel(gbps=0.01, round_trip_s=10.0)


def peak_bytes(summation, non_zeros, dtype=np.float32, **settings):
    """Return the peak memory of a step after others, and its number of candidates."""
    warm_up()
    rng = np.random.default_rng(0)
    tensor = np.zeros(N, dtype)
    tensor[rng.permutation(N)[:non_zeros]] = 1 + rng.random(non_zeros)
    reduce = Allreduce(summation, **{"network": SLOW, **settings})
    for _ in range(2):
        reduce.sum({"g": tensor})
    tracemalloc.start()
    try:
        result = reduce.sum({"g": tensor})
        return tracemalloc.get_traced_memory()[1], result["g"].total_at.size
    finally:
        tracemalloc.stop()


@pytest.fixture(params=[1, 2, 16])
def cores(request, monkeypatch):
    """Set the number of cores, all of which work on tensors of N elements."""
    monkeypatch.setattr(threads, "PER_CORE", N // 32)
    monkeypatch.setattr(threads, "_CORES", request.param)


@pytest.mark.covering(1)
@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(
    ("settings", "per_element", "per_candidate", "while_peeling"),
    [
        ({"forms": "dense"}, 12.5, 0, 0),
        ({"forms": "sparse"}, 4.5, 16, 0),
        ({"forms": "sparse", "network": FAR}, 4.5, 25, 0),
        ({"forms": "sparse", "values": "sketch"}, 4.5, 17, 60),
        ({"forms": "sparse", "values": "sketch", "network": FAR}, 4.5, 25, 68),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_peak(echo, settings, per_element, per_candidate, while_peeling):
    for non_zeros in (N // 1000, N // 5, N // 2):
        peak, candidates = peak_bytes(echo, non_zeros, **settings)
        bound = max(per_element * N + per_candidate * candidates, 0.25 * N + while_peeling * candidates)
        assert peak < bound + SLACK


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("implementation", ["cpu", "reference"])
def test_what_is_kept_of_a_step_keeps_no_more_alive(echo, form, implementation):
    """A result does not keep the tensors, and a summary keeps no array of elements."""
    reduce = Allreduce(echo, forms=form, implementation=implementation)
    for _ in range(2):
        tensor = np.ones(40_000, np.float32)
        result = reduce.sum({"g": tensor})
        given, values, total = (weakref.ref(one) for one in (tensor, result["g"].values, result["g"].total))
        del tensor
        assert given() is None
        summary = result.summary
        assert values() is not None
        del result
        assert values() is None
        assert total() is None
        assert summary.tensors()["g"].density == 1.0
