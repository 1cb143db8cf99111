"""`make gpu`, for machines with a GPU, names tests and benchmarks that exist, and leaves none of them out."""

from __future__ import annotations

import ast
import shlex
import subprocess
from pathlib import Path

from benchmarks.__main__ import _given, _parser, _run

ROOT = Path(__file__).parents[2]


def commands() -> list[list[str]]:
    """Return what `make gpu` would run."""
    run = ["make", "--dry-run", "--no-print-directory", "gpu"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    return [shlex.split(line) for line in lines if "/pytest " in line or " -m benchmarks " in line]


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
    found = [words[3:] for words in commands() if words[1:3] == ["-m", "benchmarks"]]
    assert len(found) == 3
    for words in found:
        options, others = _parser().parse_known_args(words)
        given = _given(others)
        assert len(_run(options.names[0], options, given).given) == len(given)
