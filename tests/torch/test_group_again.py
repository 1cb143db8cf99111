"""Some of all ranks make a summation over gloo, close it, and make another."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from group_ranks import sums_again, sums_in_two_worlds
from torch_ranks import run_ranks

pytestmark = pytest.mark.usefixtures("forked_children")


@pytest.mark.parametrize(("members", "slow"), [((0, 1), 0), ((0, 2), 2), ((0, 1, 2), 1)])
def test_a_second_group_of_the_same_ranks_does_not_meet_the_first(members, slow):
    """The store still has the first group's addresses while the slow rank has not made the second."""
    found = run_ranks(3, sums_again, members, slow)
    for rank, sums in enumerate(found):
        ranks, count = sum(members), len(members)
        expected = [[count * i + 10**number * ranks for i in range(4)] for number in range(2)]
        assert sums == (expected if rank in members else [])


def test_processes_of_earlier_worlds_make_groups_with_new_ones(tmp_path):
    """Rank 1 of the second world has made no group of ranks 0 and 1 before, and rank 0 has."""
    assert run_ranks(3, sums_in_two_worlds, tmp_path) == [[[3, 3]] * worlds for worlds in (2, 1, 1)]
