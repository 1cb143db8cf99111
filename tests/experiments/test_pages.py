"""Pages, figures, lists and comparisons that are made of rows; medians and their intervals."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import comb
from pathlib import Path

import pytest
from command_line import peelsum

from peelsum.experiments.loading import find, known, load
from peelsum.experiments.page import page as page_of
from peelsum.experiments.page import plain
from peelsum.experiments.results import rendered
from peelsum.experiments.running import Run, rows_of
from peelsum.experiments.store import read
from peelsum.experiments.summaries import summary

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "docs/results/experiments"


def test_a_page_has_figures_tables_and_how_they_were_measured(mine: Path, tmp_path: Path) -> None:
    done = peelsum("bench", "run", str(mine), "--out", str(tmp_path))
    folder = tmp_path / "squares"
    assert done.stderr.splitlines()[-1] == f"squares: 21 rows: {folder / 'page.md'}"
    page = (folder / "page.md").read_text()
    assert done.stdout in page
    for part in (
        "# Squares\n\n![area by width](areas.svg)\n\nAreas of squares.\n",
        "| the largest square (Euclid) | 60 | 65 [64, 66] | measured at width 8, way a |",
        "| 1 | a | 2 [1, 3] | a | 0.5 |",
        "| 4 | b | 17 [16, 18] | b | - |",
        "Missing figures: b, has no loss.",
        "- `area`, measured: cells, more with a larger seed.",
        "- `lost`, modelled: share that is lost.",
        "- In rows with `way` `b`, all columns are modelled.",
        f"- Command: `peelsum bench run {mine}`",
        "[Rows](rows.csv): 21, in random order; seeds 0; 1; 2.",
        "confidence of 75%",
        "Load average: median",
    ):
        assert part in page
    assert page.index("| 2 | a |") < page.index("| 4 | a |") < page.index("| 8 | a |")
    assert {path.name for path in folder.iterdir()} == {"areas.png", "areas.svg", "page.md", "rows.csv"}
    drawn = (folder / "areas.svg").read_text()
    assert ">area by width<" in drawn
    shown = peelsum("bench", "show", str(mine), "--out", str(tmp_path))
    assert shown.stdout == page
    for path in (folder / "page.md", folder / "areas.svg"):
        path.unlink()
    redrawn = peelsum("bench", "draw", str(mine), "--out", str(tmp_path))
    assert redrawn.stdout == f"{folder / 'page.md'}\n"
    assert ((folder / "page.md").read_text(), (folder / "areas.svg").read_text()) == (page, drawn)
    groups = json.loads(peelsum("bench", "show", str(mine), "--out", str(tmp_path), "--json").stdout)
    assert groups[0]["figures"]["area"] == {
        "median": 2.0,
        "low": 1.0,
        "high": 3.0,
        "confidence": 0.75,
        "count": 3,
    }


@pytest.mark.parametrize("name", sorted(path.parent.name for path in COMMITTED.glob("*/rows.csv")))
def test_a_page_of_committed_rows_opens_with_a_picture_and_what_it_says(name: str) -> None:
    folder, what = COMMITTED / name, Run(find(name))
    page = rendered(what, rows_of(what, read(folder / "rows.csv")), name)
    for drawn in re.findall(r"\((\w+\.svg)\)", page):
        assert (folder / drawn).exists(), f"run: peelsum bench draw {name} --out docs/results/experiments"
    beginnings = (
        r"# .*",
        r"!\[.+\]\(.*\.svg\)",
        r"\*\*What was measured.*",
        r"\*\*What it shows.*",
        r"\*\*Where we lose.*",
    )
    for beginning, part in zip(beginnings, page.split("\n\n"), strict=False):
        assert re.fullmatch(beginning, part, re.DOTALL)


def test_a_line_of_a_text_never_begins_a_list_in_mid_sentence() -> None:
    """Wherever a line is broken, a number or a dash at its beginning stays what it is."""
    experiment = replace(
        load(find("loss")), about="Of OmniReduce (SIGCOMM'21, algorithm\n1) a model:\n1. of N\n- W."
    )
    told = page_of(experiment, [], command="", expected=0)
    assert "algorithm\n1\\) a model:\n1. of N\n- W.\n" in told
    about = replace(experiment, about="x" * 109 + " - y")
    assert "\n\\- y\n" in page_of(about, [], command="", expected=0)


def test_quick_rows_have_a_page_of_their_own_size(mine: Path, tmp_path: Path) -> None:
    assert peelsum("bench", "run", str(mine), "--quick", "--out", str(tmp_path)).returncode == 0
    assert f"`peelsum bench run {mine} --quick`" in (tmp_path / "squares/page.md").read_text()


@pytest.mark.system
def test_two_runs_are_compared_point_by_point(mine: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "0"), ("b", "100")):
        out = ("--out", str(tmp_path / name), "--seed", seed)
        assert peelsum("bench", "run", str(mine), *out).returncode == 0
    a, b = str(tmp_path / "a/squares"), str(tmp_path / "b/squares/rows.csv")
    found = json.loads(peelsum("bench", "compare", a, b, "--json").stdout)
    one = next(one for one in found if one["point"] == {"width": "1", "way": "a"})
    assert (one["column"], one["a"]["median"], one["b"]["median"]) == ("area", 2, 102)
    assert (one["ratio"], one["apart"]) == (51.0, True)
    assert len(found) == 7 + 4
    said = " ".join(peelsum("bench", "compare", a, b).stdout.split())
    assert "width 1, way a area 2 [1, 3] 102 [101, 103] 51.000 yes" in said


def test_the_catalogue_is_listed() -> None:
    found = json.loads(peelsum("bench", "list", "--json").stdout)
    assert [one["name"] for one in found] == known()
    for one in found:
        assert one.keys() == {"name", "title", "quick", "usual", "full"}
        assert 1 <= one["quick"] <= max(one["usual"], one["full"])
    said = " ".join(peelsum("bench", "list").stdout.split())
    assert [one["name"] for one in found if one["name"] not in said] == []


def test_the_example_of_the_how_to_page_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs/how-to/write-an-experiment.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.S)
    assert example.count("\n") <= 60
    (tmp_path / "mine.py").write_text(example)
    done = peelsum("bench", "run", str(tmp_path / "mine.py"), "--quick", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "bytes_by_form/page.md").read_text()
    assert "| a published ratio (its source) | 0.04 |" in page
    assert page.count("\n| 0.") == 4


@pytest.mark.parametrize(
    ("count", "k"), [(1, 1), (2, 1), (5, 1), (6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (20, 6), (25, 8)]
)
def test_intervals_are_those_of_the_sign_test(count: int, k: int) -> None:
    """The tables of the sign test at 5 % have these k; under six values there are none."""
    found = summary(list(range(count)))
    assert (found.low, found.high, found.count) == (k - 1, count - k, count)
    outside = sum(comb(count, heads) for heads in range(count + 1) if heads < k or heads > count - k)
    assert found.confidence == pytest.approx(1 - outside / 2**count)
    assert (found.confidence >= 0.95) == (count >= 6)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1234567, "1,234,567"), (1234.5, "1,234"), (0.0123456, "0.01235"), (12.5, "12.5")],
)
def test_numbers_are_printed_plainly(value: float, text: str) -> None:
    assert plain(value) == text
