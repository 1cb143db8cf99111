"""The rows of a run, and what becomes of them when it is disturbed, interrupted or killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from command_line import benchmarks
from patience import PATIENCE_S

from benchmarks import ExperimentError, rows
from benchmarks.experiment import find, load, plan
from benchmarks.rows import Run, Span, measure_missing, measured, read, rows_of_plan

FIGURES = ["width", "way", "repetition", "seed", "size", "modelled", "note", "area", "label", "lost"]
PARTS = """
from benchmarks import Experiment, Size

def measure(seed, lanes, share_each, checked):
    for share in share_each:
        yield {"share": share, "area": lanes * share, "wrong": 0}

EXPERIMENT = Experiment(
    measure=measure,
    columns={"share": "a share", "area": "an area", "wrong": "wrong sums"},
    keys=("share",),
    sizes={"usual": Size([{"lanes": (32, 64), "share_each": ((0.5, 0.25),), "checked": True}], 1)},
    ranges={"share_each": (0, 1)},
    choices={"lanes": (32, 64, 128)},
)
"""


def run(what, path):
    """Run; return the number of tasks that were measured, all rows, and errors."""
    count, *outcomes = measure_missing(what, path)
    assert len(outcomes) == count
    return (
        count,
        rows_of_plan(what, read(path), current_only=True),
        [one for one in outcomes if isinstance(one, str)],
    )


def figures(path):
    """Return the cells that do not depend on time and machine, ordered."""
    return sorted(map(list, read(path)[FIGURES].to_numpy()))


def test_rows_that_are_missing_are_added_in_the_plan_s_order(mine, tmp_path):
    what, whole, cut = Run(find(str(mine)), "quick"), tmp_path / "whole.csv", tmp_path / "cut.csv"
    _, first, _ = run(what, whole)
    lines = whole.read_text().splitlines(keepends=True)
    for count in range(5):
        cut.write_text("".join(lines[: 2 + count]))
        measured_again, again, _ = run(what, cut)
        assert measured_again == 4 - count
        assert figures(cut) == figures(whole)
        assert list(again["area"]) == list(first["area"])


def test_parameters_are_options(tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    command = (str(tmp_path / "parts.py"), "--out", str(tmp_path))
    given = ("--lanes=128", "--share", "0.5,1", "--checked")
    found = json.loads(benchmarks(*command, *given, "--json").stdout)
    assert [(row["lanes"], row["share"], row["area"]) for row in found] == [
        (128, 0.5, 64.0),
        (128, 1.0, 128.0),
    ]
    command_line = f"`python -m benchmarks {command[0]} --lanes 128 --share 0.5,1.0 --checked True`"
    assert command_line in (tmp_path / "parts/page.md").read_text()
    assert ", 1 point of earlier runs (--again measures" in benchmarks(*command, *given).stderr
    assert "parts: 2 rows: " in benchmarks(*command, *given, "--again").stderr


def test_a_killed_run_goes_on(mine, tmp_path):
    mine.write_text(mine.read_text().replace('    modelled={"way": ("b",)},\n', ""))
    benchmarks(str(mine), "--out", str(tmp_path / "whole"))
    slow = tmp_path / "slow/mine.py"
    slow.parent.mkdir()
    slow.write_text(mine.read_text().replace("PAUSE_S = 0.0", "PAUSE_S = 0.1"))
    command, path = [str(slow), "--out", str(tmp_path / "killed")], tmp_path / "killed/squares/rows.csv"
    with subprocess.Popen([sys.executable, "-m", "benchmarks", *command], stderr=subprocess.DEVNULL) as child:
        began = time.monotonic()
        while not path.exists() or path.read_bytes().count(b"\n") < 8:
            assert child.poll() is None
            assert time.monotonic() < began + PATIENCE_S
            time.sleep(0.01)
        child.kill()
    done = benchmarks(*command, "--json")
    assert len(json.loads(done.stdout)) == 21, done.stderr
    assert re.search("points? of earlier runs", done.stderr)
    assert figures(path) == figures(tmp_path / "whole/squares/rows.csv")
    folders = [tmp_path / name / "squares" for name in ("whole", "killed")]
    pages = [(folder / "page.md").read_text().partition("## How it was measured")[0] for folder in folders]
    assert pages[0] == pages[1]
    assert len({(folder / "areas.svg").read_bytes() for folder in folders}) == 1


def test_an_interrupt_keeps_the_rows_and_leaves_nothing_else(mine, tmp_path):
    stop = "    if width == 4:\n        import os, signal\n        os.kill(os.getpid(), signal.SIGINT)\n"
    changed = (
        mine.read_text()
        .replace("    time.sleep(PAUSE_S)\n", stop)
        .replace('    modelled={"way": ("b",)},\n', "")
    )
    mine.write_text(changed)
    done = benchmarks(str(mine), "--out", str(tmp_path / "out"), "--json")
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, "")
    assert done.stderr.endswith("squares: interrupted; the same command goes on\n")
    assert [path.name for path in (tmp_path / "out/squares").iterdir()] == ["rows.csv"]
    order = [task.point["width"] for task in plan(load(find(str(mine))), "usual", 0)]
    assert len(read(tmp_path / "out/squares/rows.csv")) == order.index(4)


def test_another_commit_or_seed_measures_all_rows_again(mine, tmp_path, monkeypatch):
    what, path = Run(find(str(mine)), "quick"), tmp_path / "rows.csv"
    assert [run(what, path)[0] for _ in range(2)] == [4, 0]
    monkeypatch.setattr(rows, "commit", lambda: "another")
    assert run(what, path)[0] == 4
    assert list(rows_of_plan(what, read(path))["commit"]) == ["another"] * 4
    assert run(Run(find(str(mine)), "quick", seed=5), path)[0] == 4


@pytest.mark.parametrize(
    ("others", "attempt", "disturbed", "wall_s"),
    [((0.1,), 1, "False", "1"), ((0.9, 0.2), 2, "False", "2"), ((0.9, 0.5, 0.7), 2, "True", "2")],
)
def test_disturbed_rows_are_repeated_and_the_calmest_counts(
    mine, monkeypatch, others, attempt, disturbed, wall_s
):
    spans = iter([{"wall_s": str(number), "others": str(share)} for number, share in enumerate(others, 1)])
    monkeypatch.setattr(Span, "conditions", lambda self: next(spans))
    what = Run(find(str(mine)), "quick", calm=0.25, attempts=3)
    (row,) = measured(what, "c", what.tasks[0])
    assert (row["attempt"], row["disturbed"], row["wall_s"]) == (f"{attempt} of 3", disturbed, wall_s)
    assert list(spans) == []


def test_rows_that_fail_are_reported_and_measured_by_the_next_run(mine, tmp_path):
    mine.write_text(mine.read_text().replace("time.sleep(PAUSE_S)", "1 / (width - 2)"))
    done = benchmarks(str(mine), "--quick", "--out", str(tmp_path), "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert [row["width"] for row in found[:2]] == [1, 1]
    line = next(number for number, text in enumerate(mine.read_text().splitlines(), 1) if "1 /" in text)
    failure = f"{mine.name}, line {line}: ZeroDivisionError: division by zero"
    assert found[2:] == [{"failure": failure}] * 2
    page = (tmp_path / "squares/page.md").read_text()
    assert "**2 of 4 rows are missing.**" in page
    assert f"The first that failed: {failure}." in page


def test_two_runs_do_not_write_to_one_file(mine, tmp_path):
    first, second = (measure_missing(Run(find(str(mine))), tmp_path / "rows.csv") for _ in range(2))
    next(first)
    with pytest.raises(ExperimentError, match="another run writes to it"):
        next(second)


def test_modelled_rows_with_measured_times_are_alone(mine, tmp_path, monkeypatch):
    """Such as simulated sums with a codec's measured time: another one beside them would count in it."""
    monkeypatch.setattr(rows, "_FEW", 2)
    text = mine.read_text().replace('"label": way', '"label": str(os.getpid())')
    text = text.replace("import time", "import os, time")
    mine.write_text(text.replace("    modelled={", "    timed_models=True,\n    modelled={"))
    _, found, failed = run(Run(find(str(mine))), tmp_path / "rows.csv")
    assert failed == []
    assert set(found["label"]) == {str(os.getpid())}
    assert (found["others"] != "").all()
    assert all(load(find(name)).timed_models for name in ("density", "which_form"))


@pytest.mark.parametrize("timed", [True, False])
def test_only_rows_without_measured_times_are_side_by_side(timed, mine, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "_FEW", 2)
    text = mine.read_text().replace('"label": way', '"label": str(os.getpid())')
    text = text.replace("PAUSE_S = 0.0", "PAUSE_S = 0.1").replace("import time", "import os, time")
    mine.write_text(text.replace("    modelled={", f"    timed={timed},\n    modelled={{"))
    what = Run(find(str(mine)))
    _, found, failed = run(what, tmp_path / "rows.csv")
    assert failed == []
    planned = [[str(task.point["width"]), task.point["way"], str(task.seed)] for task in what.tasks]
    assert found[["width", "way", "seed"]].to_numpy().tolist() == planned
    assert (found["area"].astype(int) == found["width"].astype(int) ** 2 + found["seed"].astype(int)).all()
    assert set(found["way"][found["others"] != ""]) == ({"a"} if timed else set())
    assert set(found["way"][found["label"] == str(os.getpid())]) == ({"a"} if timed else set())
    assert found["label"].nunique() > 1


@pytest.mark.system
def test_a_cluster_of_two_workers_measures_all_rows(mine, tmp_path):
    from distributed import LocalCluster

    mine.write_text(
        mine.read_text()
        .replace('"label": way', '"label": str(os.getpid())')
        .replace("import time", "import os, time")
    )
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster:
        done = benchmarks(str(mine), "--out", str(tmp_path), "--scheduler", cluster.scheduler_address)
    assert done.returncode == 0, done.stderr
    found = read(tmp_path / "squares/rows.csv")
    assert len(found) == 21
    assert str(os.getpid()) not in set(found["label"])
    assert (found["area"].astype(int) == found["width"].astype(int) ** 2 + found["seed"].astype(int)).all()


def test_a_pipe_in_place_of_rows_is_refused(named_pipe):
    with pytest.raises(ExperimentError, match=f"{named_pipe}: is not a regular file; pass a file of rows"):
        read(named_pipe)


def test_files_that_are_no_rows_are_one_line(mine, tmp_path):
    path, command = tmp_path / "squares/rows.csv", (str(mine), "--quick", "--out", str(tmp_path))
    assert benchmarks(*command).returncode == 0
    right = path.read_text()
    for wrong, said in (
        ("", "is not a file of rows, version 1"),
        ("hello\nyou\n", "is not a file of rows, version 1"),
        (right.replace("version 1", "version 2"), "is not a file of rows, version 1"),
        (right.replace(",area,", ",volume,"), "has other columns than squares; remove it"),
        (f"{right}{',' * 30}\n", "remove the line"),
    ):
        path.write_text(wrong)
        done = benchmarks(*command)
        assert done.returncode == 2
        assert f"{path}: " in done.stderr
        assert said in done.stderr
    done = benchmarks(str(mine), "--out", str(mine / "no_folder"))
    assert "no_folder/squares/rows.csv: Not a directory; pass another --out" in done.stderr
