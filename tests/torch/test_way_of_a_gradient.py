"""A gradient's sum takes no more Python calls than it did: counts, which do not depend on the machine."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch_alone import group_of_one
from way_of_a_gradient import Way, calls_of_a_step, way_of

MOST = Way(calls=480, hook_calls=54, files=38, switches=310)


def test_no_more_calls_files_and_switches_than_before():
    with group_of_one():
        way = way_of(calls_of_a_step())
    assert all(count <= most for count, most in zip(way, MOST, strict=True)), way
