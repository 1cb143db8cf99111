"""Malformed experiments and files of rows end in one line that names file, field and remedy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from command_line import peelsum

CHANGES = {
    "name": ('name="squares"', 'name="Squares!"', "name: 'Squares!' cannot be used"),
    "measure": ("measure=measure", "measure=None", "measure: None cannot be used"),
    "column": ('"area": Column(', '"seed": Column(', "columns: 'seed' cannot be used"),
    "size": ('"usual": Size(', '"huge": Size(', "sizes: ['quick', 'huge'] cannot be used; add 'usual'"),
    "repetitions": ('("a",)}], 2)', '("a",)}], 0)', "sizes.quick.repetitions: 0 cannot be used"),
    "values": ('"way": ("a",)}], 2)', '"way": ()}], 2)', "sizes.quick.grid.way: () cannot be used"),
    "plot": ('x="width"', 'x="wide"', "plots.x: 'wide' cannot be used; use one of width, way"),
    "lines": ('lines="way"', 'lines="ways"', "plots.lines and plots.where: 'ways'"),
    "published": ('"Euclid", "area"', '"Euclid", "volume"', "published.column: 'volume'"),
    "modelled": ('modelled={"way"', 'modelled={"ways"', "modelled: 'ways' cannot be used"),
    "missing": ("EXPERIMENT = Experiment(", "OTHER = Experiment(", "EXPERIMENT: is None; set it"),
    "syntax": ("import time", "import import", "line 3: SyntaxError: "),
    "exception": ("PAUSE_S = 0.0", "PAUSE_S = 1 / 0", "line 14: ZeroDivisionError: division by zero"),
}


def one_line(*arguments: str) -> str:
    done = peelsum("bench", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    *_, line = done.stderr.splitlines()  # on a busy machine after lines of progress
    return line


@pytest.mark.parametrize("change", CHANGES)
def test_a_malformed_experiment_is_one_line_with_file_and_field(mine: Path, change: str) -> None:
    before, after, told = CHANGES[change]
    assert before in mine.read_text()
    mine.write_text(mine.read_text().replace(before, after, 1))
    assert one_line("run", str(mine)).startswith(f"peelsum: mine.py: {told}")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("return figures |", "measure: area: is missing from what it returned; add it"),
        ('return {"area": 1, "label": 2, "lost": 3, "volume": 4} |', "measure: volume: is not among"),
        ("return [] and", "measure: returned list; return a dict of all columns"),
    ],
)
def test_rows_with_other_columns_fail(mine: Path, tmp_path: Path, change: str, told: str) -> None:
    body = change.replace("return figures |", 'figures.pop("area"); return figures |')
    mine.write_text(mine.read_text().replace("return figures |", body))
    done = peelsum("bench", "run", str(mine), "--quick", "--out", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"peelsum: {told}")
    page = " ".join((tmp_path / "squares/page.md").read_text().split())
    assert f"The first that failed: {told}" in page


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run",), "NAME: is missing"),
        (("run", "unheard"), "unheard: is unknown; use one of"),
        (("run", "unheard.py"), "unheard.py: No such file or directory; pass the path"),
        (("run", "unheard", "--calm", "2"), "--calm: 2 is out of range; use 0 to 1"),
        (("run", "unheard", "--attempts", "0"), "--attempts: 0 is out of range"),
        (("run", "slots", "--slots", "0"), "--slots: 0 is out of range; use 256 to 1048576"),
        (("run", "slots", "--slots", "300", "--jobs", "1", "--quick"), "slots: 300 is not a power of two"),
        (("compare", "here", "there"), "here: No such file or directory; pass a file of rows"),
    ],
)
def test_invalid_options_are_one_line(arguments: tuple[str, ...], told: str) -> None:
    assert one_line(*arguments).startswith(f"peelsum: {told}")


def test_files_that_are_no_rows_are_one_line(mine: Path, tmp_path: Path) -> None:
    rows = tmp_path / "squares/rows.csv"
    command = ("run", str(mine), "--quick", "--out", str(tmp_path))
    assert peelsum("bench", *command).returncode == 0
    right = rows.read_text()
    for wrong, told in (
        ("hello\nyou\n", "is not a file of an experiment's rows"),
        (right.replace("version 1", "version 2"), "'peelsum experiment rows, version 2: squares' is not"),
        (right.replace(",area,", ",volume,"), "has other columns than squares; remove it"),
        (f"{right}1,2,3\n", "line 7: has 3 cells instead of 21; remove the line"),
        (f'{right}"1\n', "unexpected end of data; remove the line"),
    ):
        rows.write_text(wrong)
        assert f"{rows}: {told}" in one_line(*command)
    rows.unlink()
    rows.parent.joinpath("page.md").unlink()
    assert "No such file" in one_line("show", str(mine), "--out", str(tmp_path))
    assert "no_folder" in one_line("run", str(mine), "--out", str(mine / "no_folder"))


def test_a_missing_package_is_one_line(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name)
    )
    assert one_line("run", str(mine)).endswith(
        "matplotlib: is not installed; run: pip install 'peelsum[plots]'"
    )
