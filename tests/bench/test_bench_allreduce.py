"""`peelsum bench allreduce`: inputs and checks are independent and strict."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from command_line import peelsum

from peelsum.allreduce import Allreduce, LocalSummation
from peelsum.bench.allreduce import Case, measure, worker_tensor, wrong_elements
from peelsum.wire import packet_bytes

CASES = [
    Case(1000, 1.0, "dense"),
    Case(1000, 0.05, "compact"),
    Case(1000, 0.05, "sketch"),
    Case(77, 0.0, "dense"),
]


class Corrupting:
    """A backend that flips one bit of the values' sum, for this worker only."""

    def __init__(self, honest):
        self._honest = honest
        self.lanes, self.workers, self.worker_id = honest.lanes, honest.workers, honest.worker_id

    def sum_words(self, parts):
        results = self._honest.sum_words(parts)
        if parts[-1].op == "add":
            results[-1][7] ^= np.uint32(1)
        return results


def measured(case, summations, **settings):
    options = {"iterations": 2, "warmups": 1} | settings
    with ThreadPoolExecutor(len(summations)) as pool:
        return list(pool.map(lambda summation: measure(summation, case, **options), summations))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_exact_sums_count_no_wrong_element(case):
    for report in measured(case, LocalSummation.group(3)):
        assert report["wrong"] == 0
        assert report["time_s"] >= report["encode_s"] + report["network_s"] + report["decode_s"] > 0


def test_one_wrong_bit_is_counted_where_it_arrived():
    group = LocalSummation.group(2)
    results = measured(CASES[1], [group[0], Corrupting(group[1])], iterations=1)
    assert [report["wrong"] for report in results] == [0, 1]


@pytest.mark.usefixtures("forked_children")
def test_rows_over_a_real_switch():
    sizes = ("--elements", "2048", "--iterations", "2", "--workers", "2", "--density", "0.1")
    done = peelsum("bench", "allreduce", *sizes, "--form", "compact,sketch", "--json")
    assert done.returncode == 0, done.stderr
    dense, compact, sketch = json.loads(done.stdout)
    for row in (dense, compact, sketch):
        assert row["size_bytes"] == 4 * 2048
        assert row["wrong"] == 0
        assert row["algbw"] == row["busbw"] >= 0  # rounded, to 0 if the machine is very busy
        assert row["ratio_to_dense"] == pytest.approx(row["time_us"] / dense["time_us"], abs=1e-3)
    assert [row["form"] for row in (dense, compact, sketch)] == ["dense", "compact", "sketch"]
    assert dense["wire_bytes"] == (1 + 1 + 9) * packet_bytes(256)  # 90 words for blocks that exceed scales
    assert compact["wire_bytes"] == (1 + 1 + 1) * packet_bytes(256)
    assert sketch["wire_bytes"] == (1 + 1 + 2) * packet_bytes(256)  # 1.4 cells for each of 205 candidates


@pytest.mark.parametrize("workers", [1, 3])
def test_density_is_that_of_the_union(workers):
    case = Case(100_000, 0.05, "compact", seed=5)
    tensors = [worker_tensor(case, worker_id, workers) for worker_id in range(workers)]
    union = np.logical_or.reduce([tensor != 0 for tensor in tensors])
    assert union.mean() == pytest.approx(0.05, rel=0.05)
    assert workers == 1 or all(0 < (tensor != 0).sum() < union.sum() for tensor in tensors)
    np.testing.assert_array_equal(tensors[0], worker_tensor(case, 0, workers))


def test_elements_are_wrong_that_differ_in_the_total_the_value_or_where_all_should_be_zero():
    (summation,) = LocalSummation.group(1)
    tensor = worker_tensor(CASES[1], 0, 1)
    result, at = Allreduce(summation).sum({"g": tensor})["g"], int(np.flatnonzero(tensor)[0])
    assert wrong_elements(result, [tensor]) == 0
    assert wrong_elements(result, [tensor, np.eye(1, tensor.size, at, dtype=np.float32)[0]]) == 1
    result.values[at] = np.nextafter(result.values[at], np.float32(9))
    assert wrong_elements(result, [tensor]) == 1
    zeros = np.zeros(9, np.float32)
    result = Allreduce(summation).sum({"g": zeros})["g"]
    assert wrong_elements(result, [zeros, np.eye(9, dtype=np.float32)[4]]) == 1
