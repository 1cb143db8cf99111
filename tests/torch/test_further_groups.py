"""Further groups of a process group: each sums over the switch in a job of its own, as long as it lives."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch_training as training
from served_job import served_to_four
from torch_ranks import run_ranks

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("forked_children")]


def in_mesh(folder, spare):
    """What `training.in_mesh` returns on four ranks, if so many ports are spare, and what was admitted."""
    with served_to_four(folder, spare=spare) as (switch, _, environment):
        told = run_ranks(
            4, training.in_mesh, switch.p4runtime, environments=[environment] * 4, backend="peelsum"
        )
        while {number for number, _ in switch.jobs} - {255}:
            pass  # the groups' leases have ended, and soon their jobs
        return told


#: Sums of the ranks 1, 2, 4 and 8 in rows and columns of two by two, and then of all.
SUMS = [[3, 5, 15], [3, 10, 15], [12, 5, 15], [12, 10, 15]]


def test_rows_and_columns_of_a_mesh_sum_at_the_same_time(tmp_path):
    for (sums, numbers, then, warnings), expected in zip(in_mesh(tmp_path, 12), SUMS, strict=True):
        assert sums == expected
        assert numbers == [251, 252, 253, 254, 255]
        assert then == [253, 254, 255]
        assert warnings == []


def test_groups_without_room_use_gloo_and_say_so(tmp_path):
    """Five ports are room for one group of two ranks."""
    told = in_mesh(tmp_path, 5)
    for (sums, numbers, _, _), expected in zip(told, SUMS, strict=True):
        assert sums == expected
        assert numbers == [254, 255]
    said = [warning for _, _, _, warnings in told for warning in warnings]
    assert len(said) == 6
    assert set(said) == {
        "group of 2 ranks: uses gloo, as a group of 2 ranks needs 3 spare ports of the switch, and 2 are "
        "free; add some to ports.spare of the job's description"
    }
