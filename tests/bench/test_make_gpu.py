"""`make gpu`, for machines with a GPU, names tests and benchmarks that exist, and leaves none of them out."""

from __future__ import annotations

import ast
import shlex
import subprocess
from pathlib import Path

from peelsum.cli.bench import _given, _split
from peelsum.experiments.loading import find, load

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


def test_the_benchmarks_take_the_options_that_they_are_given() -> None:
    found = [one for one in commands() if one[0].endswith("peelsum")]
    assert len(found) == 3
    for command in found:
        names, options = _split(word for word in command[2:] if word != "run")
        options.pop("out")
        for name in names:
            assert _given(load(find(name)), options).keys() or not options
