"""A gradient's sum takes no more Python calls than it did: counts, which hardly depend on the machine."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from torch_alone import group_of_one
from way_of_a_gradient import Way, calls_of_a_step, way_of

#: A few calls more than usual, as some depend on which thread is first.
MOST = Way(calls=320, hook_calls=56, files=31, switches=223)


def test_no_more_calls_files_and_switches_than_before():
    with group_of_one():
        way = way_of(calls_of_a_step())
    assert all(count <= most for count, most in zip(way, MOST, strict=True)), way
