"""Mutants: their kinds, that each changes one place only, and that a seed always chooses the same ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import run as harness
from mutants import chosen, mutants
from patience import PATIENCE_S

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


def test_each_kind_is_found_except_in_docstrings_and_annotations(file: Path) -> None:
    assert [(mutant.line, mutant.kind, mutant.change) for mutant in mutants(file)] == [
        (5, "comparison", "a < 3 -> (a <= 3)"),
        (5, "and/or", "a < 3 and b -> (a < 3 or b)"),
        (5, "condition", "a < 3 and b -> (not (a < 3 and b))"),
        (5, "constant", "3 -> 2"),
        (5, "constant", "3 -> 4"),
        (6, "arguments", "g(a, b.c) -> (g(b.c, a))"),
        (6, "removal", "g(a, b.c) -> pass"),
        (6, "order", "g(a, b.c) b.c = 4 -> b.c = 4 g(a, b.c)"),
        (7, "removal", "b.c = 4 -> pass"),
        (7, "constant", "4 -> 3"),
        (7, "constant", "4 -> 5"),
        (8, "removal", "b.d = 5 -> pass"),
        (8, "constant", "5 -> 4"),
        (8, "constant", "5 -> 6"),
        (9, "removal", "h(*rest, a) -> pass"),
        (10, "operator", "max(a, b) + 1 -> (max(a, b) - 1)"),
        (10, "constant", "1 -> 0"),
        (10, "constant", "1 -> 2"),
    ]


def test_a_mutant_changes_its_place_only(file: Path) -> None:
    for mutant in mutants(file):
        before, after = SOURCE.splitlines(), mutant.applied(SOURCE.encode()).decode().splitlines()
        assert len(before) == len(after)
        differing = [line for line, pair in enumerate(zip(before, after, strict=True), 1) if len({*pair}) > 1]
        assert differing == ([6, 7] if mutant.kind == "order" else [mutant.line])


def test_the_choice_is_even_and_the_same_for_the_same_seed(file: Path) -> None:
    found = mutants(file)
    assert chosen(found, 8, "0") == chosen(found, 8, "0") != chosen(found, 8, "1")
    assert len({mutant.kind for mutant in chosen(found, 8, "0")}) == 8
    assert sorted(map(found.index, chosen(found, 99, "0"))) == list(range(len(found)))


@pytest.mark.parametrize(
    ("status", "fate"), [(0, "survived"), (1, "killed"), (2, "killed"), (4, "killed"), (None, "timed out")]
)
def test_a_change_is_noticed_also_where_nothing_can_be_imported(
    status: int | None, fate: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest ends with 2 or 4 then: a test file, or conftest.py, that cannot be loaded."""
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(harness.Bench, "run", lambda bench, *_: (status, ""))
    area = harness.Area("*.py", ())
    result = harness.Run(1, None, tmp_path / "benches")._tried("wire", area, mutants(file)[0], "", 1.0)
    assert result.fate == fate


@pytest.mark.parametrize("named", ["tests", "tests/test_f.py"])
def test_results_are_kept_while_tests_are_the_same(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    area, seen = harness.Area("*.py", (named,)), set()
    for text in ("one", "two", "one"):
        (tmp_path / "tests/test_f.py").write_text(text)
        seen.add(harness._fingerprint(area))
    assert len(seen) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    """Neither the tests that it started, nor their folder, nor a result."""
    options = ["--area", "wire", "--sample", "1", "--json", str(tmp_path / "kept")]
    command = [sys.executable, str(Path(__file__).with_name("run.py")), *options]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (children := psutil.Process(run.pid).children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run.send_signal(number)
        run.communicate(timeout=PATIENCE_S)
    finally:
        run.kill()
        run.communicate()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert (run.returncode in (143, -signal.SIGINT, 130), alive, list(tmp_path.iterdir())) == (True, [], [])
