"""Pages, figures and comparisons that are made of rows; medians and their intervals."""

import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from math import comb
from pathlib import Path

import pytest
from command_line import benchmarks

from benchmarks import committed
from benchmarks.experiment import find, known, load
from benchmarks.figures import draw, spread
from benchmarks.page import Medians, confidence, interval, page, shown, summaries, title
from benchmarks.rows import Run

ROOT = Path(__file__).parents[2]
DRAW_AGAIN = "run: python -m benchmarks.committed"


def test_a_page_has_figures_tables_and_how_they_were_measured(mine, tmp_path):
    done = benchmarks(str(mine), "--out", str(tmp_path))
    folder = tmp_path / "squares"
    assert done.stderr.splitlines()[-1] == f"squares: 21 rows: {folder / 'page.md'}"
    text = (folder / "page.md").read_text()
    assert done.stdout in text
    for part in (
        "# Squares\n\n![area by width](areas.svg)\n\nAreas of squares.\n",
        "| 1 | a | 2 [1, 3] | a | 0.5 |",
        "| 4 | b | 17 [16, 18] | b | - |",
        "Missing figures: b, has no loss.",
        "- `area`, measured: cells, more with a larger seed.",
        "- `lost`, modelled: share that is lost.",
        "- In rows with `way` `b`, all columns are modelled.",
        f"- Command: `python -m benchmarks {mine}`",
        "[Rows](rows.csv): 21, in random order; seeds 0; 1; 2.",
        "confidence of 75%",
        "Load average: median",
    ):
        assert part in text
    assert text.index("| 2 | a |") < text.index("| 4 | a |") < text.index("| 8 | a |")
    assert {path.name for path in folder.iterdir()} == {"areas.png", "areas.svg", "page.md", "rows.csv"}
    drawn = (folder / "areas.svg").read_text()
    assert ">area by width<" in drawn
    for path in (folder / "page.md", folder / "areas.svg"):
        path.unlink()
    assert benchmarks("draw", str(mine), "--out", str(tmp_path)).stdout == f"{folder / 'page.md'}\n"
    assert ((folder / "page.md").read_text(), (folder / "areas.svg").read_text()) == (text, drawn)
    other = benchmarks("draw", str(mine), "--seed", "9", "--out", str(tmp_path))
    assert (other.returncode, other.stdout) == (2, "")
    assert "has rows of size usual, none of size usual with these values; give the options" in other.stderr
    assert (folder / "page.md").read_text() == text


def test_files_that_cannot_be_written_are_named(mine, tmp_path):
    """No process may write a file here, as if the disk were full."""
    words = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-m", "benchmarks", str(mine)]
    done = subprocess.run(
        [*words, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    rows = tmp_path / "squares/rows.csv"
    assert done.stderr.splitlines()[-1] == f"peelsum: {rows}: File too large; pass another --out"
    assert done.returncode == 2
    assert not list(rows.parent.iterdir())


@pytest.mark.parametrize("name", [name for name in committed.FOLDERS if name not in committed.PRINTED])
def test_a_committed_page_is_what_its_rows_say(name):
    text = page(Run(find(name)), committed.rows_of(name), name)
    assert (committed.FOLDERS[name] / "page.md").read_text(encoding="utf-8") == text, DRAW_AGAIN
    begins = ("# ", "![", "**What was measured.** ", "**What it shows.** ", "**Where we lose.** ")
    parts = text.split("\n\n")[: len(begins)]
    assert all(part.startswith(begin) for begin, part in zip(begins, parts, strict=True)), parts


def without_ids(path):
    """Return an SVG with its ids numbered: Matplotlib's depend on addresses of objects, in rare cases."""
    ids = {}
    return re.sub(
        r"\b[a-z][0-9a-f]{10}\b", lambda found: ids.setdefault(found[0], f"id{len(ids)}"), path.read_text()
    )


@pytest.mark.parametrize("name", committed.FOLDERS)
def test_committed_figures_are_what_their_rows_show_and_say_it(name, tmp_path):
    experiment, folder = load(find(name)), committed.FOLDERS[name]
    points = summaries(experiment, committed.rows_of(name))
    drawn = list(draw(experiment, points, tmp_path, ("svg",)))
    assert {path.name for path in drawn} == {path.name for path in folder.glob("*.svg")}
    for path in drawn:
        assert without_ids(folder / path.name) == without_ids(path), DRAW_AGAIN
    pages = [path.read_text() for path in committed.DOCS.glob("results/**/*.md")]
    for plot in experiment.plots:
        finding = title(plot, points)
        assert finding != title(replace(plot, finding=""), points)
        embedded = [re.search(rf"!\[(.*)\]\((?:\S*/)?{name}/{plot.name}.svg\)", text) for text in pages]
        assert {found[1] for found in embedded if found} <= {finding}


def test_a_median_says_that_some_repetitions_have_no_number():
    """Two of three runs reached the target: their median is not that of the method."""
    experiment, rows = load(find("adapting")), committed.rows_of("adapting")
    where = (rows["network"] == "far") & (rows["method"] == "top 1%")
    reached = sorted(rows[where]["seconds_to_target"].astype(float))
    rows.loc[where & (rows["seconds_to_target"].astype(str) == str(reached[2])), "seconds_to_target"] = ""
    points = summaries(experiment, rows)
    (point,) = [p for _, p in points.iterrows() if (p["network"], p["method"]) == ("far", "top 1%")]
    assert shown(point, "seconds_to_target") == f"{(reached[0] + reached[1]) / 2:.4g} in 2 of 3"
    drawn = Medians(experiment.plots[0], points).by_series["top 1%"]
    assert "far" not in drawn
    assert len(drawn) == 2


@pytest.mark.parametrize("ports", ["packet", "veth"])
def test_a_run_of_today_shows_what_the_committed_rows_of_the_switch_do(ports):
    """BMv2's ports were named "veth" in the committed rows, and new runs had no finding."""
    experiment, rows = load(find("switch")), committed.rows_of("switch")
    points = summaries(experiment, rows.replace({"ports": {"veth": ports}}))
    for plot in experiment.plots:
        assert title(plot, points).startswith("By UDP the softswitch takes 2.")


def test_the_headline_is_what_its_rows_show(tmp_path):
    drawn = without_ids(committed.headline(tmp_path))
    assert without_ids(committed.DOCS / "results/figures/headline.svg") == drawn, DRAW_AGAIN


@pytest.mark.parametrize("places", [[], [5.0], [0.0, 1.0, 30.0], [9.0, 0.0, 8.0, 8.5, 40.0]])
def test_names_of_lines_are_apart_and_in_order(places):
    apart = spread(places, 10.0)
    order = sorted(range(len(places)), key=lambda number: places[number])
    assert all(apart[b] - apart[a] >= 10.0 - 1e-9 for a, b in pairwise(order))
    assert sum(apart) == pytest.approx(sum(places))  # least squares keep the mean


def test_all_experiments_are_listed():
    assert [line.split()[0] for line in benchmarks("list").stdout.splitlines()] == known()
    said = benchmarks("list", "loss").stdout
    assert "\n  --loss 0.0,0.001,0.005,0.01,0.02,0.05 (0 to 0.5)\n" in said
    assert "\n  wrong: words that differ from an independent sum\n" in said


def test_the_example_of_the_how_to_page_runs(tmp_path):
    text = (ROOT / "docs/how-to/write-an-experiment.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.S)
    assert example.count("\n") <= 45
    (tmp_path / "mine.py").write_text(example)
    done = benchmarks(str(tmp_path / "mine.py"), "--quick", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "mine/page.md").read_text()
    assert made.count("\n| 0.") == 4


@pytest.mark.parametrize(
    ("count", "k"), [(1, 1), (2, 1), (5, 1), (6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (20, 6), (25, 8)]
)
def test_intervals_are_those_of_the_sign_test(count, k):
    """The tables of the sign test at 5 % have these k; under six values there are none."""
    assert interval(range(count)) == (k - 1, count - k)
    outside = sum(comb(count, heads) for heads in range(count + 1) if heads < k or heads > count - k)
    assert confidence(count, k) == pytest.approx(1 - outside / 2**count)
    assert (confidence(count, k) >= 0.95) == (count >= 6)
