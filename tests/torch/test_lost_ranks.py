"""Ranks that are killed at a random moment: the others fail at once, or go on with those that are left."""

from __future__ import annotations

from random import Random

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import lost_ranks
from served_job import served_to_four
from torch_ranks import run_ranks

pytestmark = pytest.mark.usefixtures("forked_children")

#: Far below the job's timeout, and far above what a busy machine takes.
SOON_S = 60.0


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The environment of the ranks of a job of four, whose sums wait longer for a rank than a test does."""
    with served_to_four(tmp_path_factory.mktemp("served"), spare=0, timeout_s=900.0) as (_, _, environment):
        yield environment


@pytest.mark.parametrize("seed", range(3))
def test_the_others_fail_at_once_and_name_the_rank(job, tmp_path, seed):
    random = Random(seed)
    victim = random.randrange(4)
    kills = {victim: (random.randrange(2, 8), random.uniform(0, 0.01))}
    ranks = run_ranks(4, lost_ranks.train, 10_000, kills, tmp_path, {}, environments=[job] * 4)
    assert ranks[victim] is None
    killed_at = lost_ranks.killed_at(tmp_path)[victim]
    for records, (name, message, failed_at) in (rank for rank in ranks if rank is not None):
        assert name == "RankLostError"
        assert f"step {len(records)}, average of 'p" in message
        assert f": rank {victim} (process " in message
        assert " of 127.0.0.1) was lost; " in message
        assert 0 < failed_at - killed_at < SOON_S


def check_sums(ranks):
    """Check that all ranks have the same averages, those of the members that they name."""
    sums = {}
    for records, (_, message, _) in ranks:
        assert not message
        for step, averages, _ in records:
            assert sums.setdefault(step, averages) == averages
    for step, averages in sums.items():
        for bucket, (members, bits) in enumerate(averages):
            assert bits == lost_ranks.digest(lost_ranks.expected(members, step, bucket))
    return sums


@pytest.mark.parametrize("seed", range(3))
def test_those_that_are_left_go_on(job, tmp_path, seed):
    random = Random(seed)
    victims = random.sample(range(4), random.randrange(1, 4))
    step = random.randrange(2, 8)
    kills = {victim: (step, random.uniform(0, 0.02)) for victim in victims}
    options = {"on_lost": "continue"}
    ranks = run_ranks(4, lost_ranks.train, 20, kills, tmp_path, options, environments=[job] * 4)
    assert {rank for rank, result in enumerate(ranks) if result is None} == set(victims)
    left = [result for result in ranks if result is not None]
    sums = check_sums(left)
    assert len(sums) == 20
    assert sums[19][-1][0] == tuple(sorted(set(range(4)) - set(victims)))
    dead_at = max(lost_ranks.killed_at(tmp_path).values())
    slowest = max(min(at for *_, at in records if at > dead_at) - dead_at for records, _ in left)
    print(f"{len(victims)} lost: {1000 * slowest:.0f} ms")
