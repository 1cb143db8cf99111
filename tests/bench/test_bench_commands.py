"""`peelsum bench`: parameters from the command line, rows of several kinds, and how a wrong sum ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import peelsum

from peelsum.experiments import ExperimentError
from peelsum.experiments.loading import find, load
from peelsum.experiments.measuring import checked
from peelsum.experiments.running import Run, rows_of, run
from peelsum.experiments.store import read

MINE = """\
from peelsum.experiments import Column, Experiment, Size


def measure(seed, lanes, share_each, checked, path):
    for share in share_each:
        yield {"share": share, "lanes": lanes, "area": lanes * share, "wrong": WRONG, "note": path}


WRONG = 0
PART = {"lanes": (32, 64), "share_each": ((0.5, 0.25),), "checked": (True,), "path": (None, )}
EXPERIMENT = Experiment(
    name="mine",
    title="Mine",
    about="Areas.",
    measure=measure,
    columns={"share": Column("a share"), "area": Column("an area"), "wrong": Column("wrong sums")},
    keys=("share",),
    sizes={"usual": Size([PART], 1)},
    ranges={"share_each": (0, 1)},
    choices={"lanes": (32, 64, 128)},
)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The path of a file whose points have several rows."""
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def measured(mine: Path, *options: str) -> list[list[object]]:
    """Run; return lanes, share and area of the rows."""
    done = peelsum("bench", str(mine), *options, "--json")
    assert done.returncode == 0, done.stderr
    return [[row[name] for name in ("lanes", "share", "area")] for row in json.loads(done.stdout)]


def test_a_point_has_several_rows_which_are_a_table_or_objects(mine: Path) -> None:
    assert sorted(measured(mine)) == [[32, 0.25, 8], [32, 0.5, 16], [64, 0.25, 16], [64, 0.5, 32]]
    said = peelsum("bench", "run", str(mine))
    assert "\n| 32 | 0.5 | 16 | 0 |\n| 32 | 0.25 | 8 | 0 |\n" in said.stdout
    assert (
        "4 rows, 4 of them from earlier runs (--again measures them again): build/bench/mine" in said.stderr
    )
    assert "4 rows: " in peelsum("bench", "run", str(mine), "--again").stderr


def test_parameters_are_options(mine: Path) -> None:
    assert measured(mine, "--lanes", "128", "--share", "0.5,1") == [[128, 0.5, 64], [128, 1, 128]]
    assert measured(mine, "--lanes=64", "--share", "1", "--share=0", "--checked") == [[64, 1, 64], [64, 0, 0]]
    page = Path("build/bench/mine/page.md").read_text()
    assert f"- Command: `peelsum bench run {mine} --lanes 64 --share 1.0,0.0 --checked True`" in page
    assert "  --share 0.5,0.25; 0 to 1\n" in peelsum("bench", "list", str(mine)).stdout


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--lane", "32"), "--lane: is no parameter of mine; use one of --lanes, --share, --checked, --path"),
        (("--lanes", "33"), "--lanes: '33' is unknown; use one of 32, 64, 128"),
        (("--lanes", "many"), "--lanes: 'many' is no number; write numbers like 1,10"),
        (("--share", "0.5,2"), "--share: 2 is out of range; use 0 to 1"),
        (("--quick", "--full"), "--quick: cannot be used with --full; use one of them"),
    ],
)
def test_invalid_options_are_one_line(mine: Path, options: tuple[str, ...], error: str) -> None:
    done = peelsum("bench", "run", str(mine), *options)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"peelsum: {error}\n")


def test_a_point_that_lost_a_part_is_measured_again(mine: Path, tmp_path: Path) -> None:
    what, path = Run(find(str(mine))), tmp_path / "rows.csv"
    whole = run(what, path)
    lines = path.read_text().splitlines(keepends=True)
    for cut in range(2, len(lines)):
        path.write_text("".join(lines[:cut]))
        again = run(what, path)
        assert again.kept == (cut - 2) // 2 * 2
        assert [row["area"] for row in again.rows] == [row["area"] for row in whole.rows]
        assert [row["area"] for row in rows_of(what, read(path))] == [row["area"] for row in whole.rows]


def test_rows_of_a_point_need_all_columns(mine: Path) -> None:
    with pytest.raises(ExperimentError, match="measure: wrong: is missing"):
        checked(load(find(str(mine))), [{"share": 1, "area": 2}])
