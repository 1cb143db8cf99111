"""`bench loss`: a lossy network beside one without, and the check of every sum."""

import json

import pytest
from command_line import benchmarks


@pytest.mark.system
def test_a_lossy_network_sums_in_more_packets():
    shape = ("--workers", "2", "--lanes", "32", "--elements", "5000", "--seconds", "0", "--seed", "3")
    done = benchmarks("loss", "--quick", "--loss", "0,0.02", *shape, "--attempts", "1", "--json")
    assert done.returncode == 0, done.stderr
    none, some = ([row for row in json.loads(done.stdout) if row["loss"] == loss] for loss in (0, 0.02))
    # A busy machine answers late: chunks sent again without loss are summed by the server.
    assert min(row["in_switch"] for row in none) > 0.9
    assert all(row["packets_over_least"] > 1 for row in some)
    assert not any(row["wrong"] for row in (*none, *some))
