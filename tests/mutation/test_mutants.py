"""Mutants: their kinds, that each changes one place only, and that a seed always chooses the same ones."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from mutants import chosen, mutants
from patience import PATIENCE_S
from run import fate_of

SOURCE = '''\
"""A docstring with 1 in it."""

def f(a: int, b, *rest) -> "1 + 1":
    """Nothing of 2 either."""
    if a < 3 and b:
        g(a, b.c)
        b.c = 4
        b.d = 5
    h(*rest, a)
    return max(a, b) + 1
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f.py"
    path.write_text(SOURCE)
    return path


def test_each_kind_is_made_except_in_docstrings_and_annotations(file: Path) -> None:
    assert [(mutant.kind, mutant.change) for mutant in mutants(file)] == [
        ("removal", "h(*rest, a) -> pass"),
        ("condition", "a < 3 and b -> not (a < 3 and b)"),
        ("removal", "g(a, b.c) -> pass"),
        ("order", "g(a, b.c); b.c = 4 -> swapped"),
        ("removal", "b.c = 4 -> pass"),
        ("removal", "b.d = 5 -> pass"),
        ("and/or", "a < 3 and b -> a < 3 or b"),
        ("comparison", "a < 3 -> a <= 3"),
        ("constant", "3 -> 4"),
        ("constant", "3 -> 2"),
        ("arguments", "g(a, b.c) -> g(b.c, a)"),
        ("constant", "4 -> 5"),
        ("constant", "4 -> 3"),
        ("constant", "5 -> 6"),
        ("constant", "5 -> 4"),
        ("operator", "max(a, b) + 1 -> max(a, b) - 1"),
        ("constant", "1 -> 2"),
        ("constant", "1 -> 0"),
    ]


def test_a_mutant_changes_its_place_only(file: Path) -> None:
    before = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in mutants(file):
        after = mutant.source().splitlines()
        differing = [line for line, pair in enumerate(zip(before, after, strict=True)) if len({*pair}) > 1]
        assert len(differing) == (2 if mutant.kind == "order" else 1), mutant


def test_the_choice_is_even_and_the_same_for_the_same_seed(file: Path) -> None:
    found = mutants(file)
    assert chosen(found, 8, "0") == chosen(found, 8, "0") != chosen(found, 8, "1")
    assert len({mutant.kind for mutant in chosen(found, 8, "0")}) == 8
    assert sorted(map(found.index, chosen(found, 99, "0"))) == list(range(len(found)))


@pytest.mark.parametrize(
    ("status", "fate"), [(0, "survived"), (1, "killed"), (2, "killed"), (4, "killed"), (None, "timed out")]
)
def test_a_change_is_noticed_also_where_nothing_can_be_imported(status: int | None, fate: str) -> None:
    """pytest ends with 2 or 4 then: a test file, or conftest.py, that cannot be loaded."""
    assert fate_of(status) == fate


def test_a_run_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither the tests that it started, nor their folder."""
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--area", "wire", "--sample", "1"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (children := psutil.Process(run.pid).children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run.terminate()
        run.communicate(timeout=PATIENCE_S)
    finally:
        run.kill()
        run.communicate()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert (run.returncode, alive, list(tmp_path.iterdir())) == (143, [], [])
