"""`make gpu`, for machines with a GPU, names tests and benchmarks that exist, and leaves none of them out."""

from __future__ import annotations

import ast
import shlex
import subprocess
from pathlib import Path

from benchmarks.__main__ import _parameter_texts, _parser, _run

ROOT = Path(__file__).parents[2]


def commands() -> list[list[str]]:
    """Return what `make gpu` would run."""
    run = ["make", "--dry-run", "--no-print-directory", "gpu"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    return [shlex.split(line) for line in lines if "/pytest " in line or " -m benchmarks " in line]


def named_tests() -> list[Path]:
    (command,) = (command for command in commands() if command[0].endswith("pytest"))
    return [ROOT / word for word in command[1:] if word.endswith(".py")]


def test_every_file_has_tests() -> None:
    for path in named_tests():
        functions = [
            node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        assert any(name.startswith("test_") for name in functions), path


def test_every_test_of_a_device_is_among_them() -> None:
    using = {path for path in (ROOT / "tests").glob("*/test_*.py") if "\nfrom gpu_device" in path.read_text()}
    assert len(using) > 4
    assert using <= set(named_tests())


def test_the_benchmarks_take_the_options_that_they_are_given() -> None:
    arguments = [words[3:] for words in commands() if words[1:3] == ["-m", "benchmarks"]]
    assert len(arguments) == 3
    for words in arguments:
        options, others = _parser().parse_known_args(words)
        texts = _parameter_texts(others)
        assert len(_run(options.names[0], options, texts).values) == len(texts)
