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
