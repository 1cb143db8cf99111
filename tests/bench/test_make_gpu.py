"""`make gpu`, for machines with a GPU, names tests and benchmarks that exist, and leaves none of them out."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from peelsum.cli.app import app

ROOT = Path(__file__).parents[2]


def commands() -> list[list[str]]:
    """Return what `make gpu` would run."""
    run = ["make", "--dry-run", "--no-print-directory", "gpu"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    return [shlex.split(line) for line in lines if "/pytest " in line or "/peelsum " in line]


def named_tests() -> list[Path]:
    (command,) = (one for one in commands() if one[0].endswith("pytest"))
    return [ROOT / one for one in command[1:] if one.endswith(".py")]


def test_every_file_has_tests() -> None:
    for path in named_tests():
        found = ast.parse(path.read_text()).body
        assert any(isinstance(one, ast.FunctionDef) and one.name.startswith("test_") for one in found), path


def test_every_test_of_a_device_is_among_them() -> None:
    using = {path for path in (ROOT / "tests").glob("*/test_*.py") if "\nfrom gpu_device" in path.read_text()}
    assert len(using) > 4
    assert using <= set(named_tests())


def test_the_benchmark_takes_the_options_that_it_is_given() -> None:
    (command,) = (one for one in commands() if one[0].endswith("peelsum"))
    group = typer.main.get_command(app)
    for name in command[1:3]:
        group = group.commands[name]  # type: ignore[attr-defined]
    known = {option for parameter in group.params for option in parameter.opts}
    given = {one for one in command[3:] if one.startswith("-")}
    assert given
    assert given <= known


@pytest.mark.slow
def test_pytest_collects_them() -> None:
    paths = [str(path.relative_to(ROOT)) for path in named_tests()]
    collect = [sys.executable, "-m", "pytest", "-q", "--collect-only", *paths]
    done = subprocess.run(collect, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert all(f"{path}::" in done.stdout for path in paths)
