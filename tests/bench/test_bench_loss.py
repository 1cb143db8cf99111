"""`bench loss`: a lossy network beside one without, and the check of every sum."""

import json

import numpy as np
import pytest
from command_line import benchmarks

from benchmarks.summing_workers import expected, words_of


@pytest.mark.system
def test_a_lossy_network_sums_in_more_packets() -> None:
    shape = ("--workers", "2", "--lanes", "32", "--elements", "5000", "--seconds", "0", "--seed", "3")
    done = benchmarks("loss", "--quick", "--loss", "0,0.02", *shape, "--attempts", "1", "--json")
    assert done.returncode == 0, done.stderr
    none, some = ([row for row in json.loads(done.stdout) if row["loss"] == loss] for loss in (0, 0.02))
    # A busy machine answers late: chunks sent again without loss are summed by the server.
    assert min(row["in_switch"] for row in none) > 0.9
    assert all(row["packets_over_least"] > 1 for row in some)
    assert not any(row["wrong"] for row in (*none, *some))


def test_the_expected_sum_is_of_all_workers_words() -> None:
    total = expected(6, seed=1, workers=3)
    for i in range(6):
        assert int(total[i]) == sum(int(words_of(6, 1, worker)[i]) for worker in range(3)) % 2**32
    assert np.unique(total).size > 1
