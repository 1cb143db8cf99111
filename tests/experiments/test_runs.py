"""A run's plan, its rows, and what becomes of them when it is disturbed, interrupted or killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import peelsum
from patience import PATIENCE_S

from peelsum.experiments import measuring, running
from peelsum.experiments.experiment import plan
from peelsum.experiments.loading import find, load
from peelsum.experiments.machine import Load, Watched
from peelsum.experiments.measuring import Care, measure
from peelsum.experiments.running import Run
from peelsum.experiments.store import RESERVED, read

FIGURES = ("width", "way", "repetition", "seed", "size", "modelled", "note", "area", "label", "lost")


def figures(path: Path) -> list[dict[str, str]]:
    """The rows' cells that do not depend on time and machine, ordered."""
    rows = [{name: row[name] for name in FIGURES} for row in read(path)]
    return sorted(rows, key=lambda row: [row[name] for name in ("width", "way", "repetition")])


def figures_of_page(path: Path) -> str:
    """A page without the section on how it was measured."""
    return path.read_text().partition("## How it was measured")[0]


def test_the_same_seed_gives_the_same_plan(mine: Path) -> None:
    experiment = load(find(str(mine)))
    tasks = plan(experiment, "usual", 3)
    assert tasks == plan(experiment, "usual", 3) != plan(experiment, "usual", 4)
    for repetition in range(3):
        block = tasks[7 * repetition :][:7]
        assert {(task.repetition, task.seed) for task in block} == {(repetition, 3 + repetition)}
        assert len({(task.point["width"], task.point["way"]) for task in block}) == 7
    assert [task.point for task in tasks[:7]] != [task.point for task in tasks[7:14]]


def test_a_file_cut_at_any_byte_is_completed_to_the_same_rows(mine: Path, tmp_path: Path) -> None:
    what, whole = Run(find(str(mine)), "quick"), tmp_path / "whole.csv"
    report = running.run(what, whole)
    content, cut = whole.read_bytes(), tmp_path / "cut.csv"
    for length in range(0, len(content) + 1, 7):
        cut.write_bytes(content[:length])
        again = running.run(what, cut)
        assert again.kept == max(content[:length].count(b"\n") - 2, 0)
        assert figures(cut) == figures(whole)
        assert [row["area"] for row in again.rows] == [row["area"] for row in report.rows]


@pytest.mark.system
def test_a_killed_run_is_completed_to_the_same_page(mine: Path, tmp_path: Path) -> None:
    done = peelsum("bench", "run", str(mine), "--out", str(tmp_path / "whole"))
    assert done.returncode == 0, done.stderr
    slow = tmp_path / "slow.py"
    slow.write_text(mine.read_text().replace("PAUSE_S = 0.0", "PAUSE_S = 0.05"))
    rows = tmp_path / "killed/squares/rows.csv"
    command = ["bench", "run", str(slow), "--out", str(tmp_path / "killed")]
    child = subprocess.Popen([sys.executable, "-m", "peelsum.cli", *command], stderr=subprocess.DEVNULL)
    try:
        began = time.monotonic()
        while not rows.exists() or rows.read_bytes().count(b"\n") < 8:
            assert child.poll() is None
            assert time.monotonic() < began + PATIENCE_S
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    done = peelsum(*command, "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 21
    assert figures(rows) == figures(tmp_path / "whole/squares/rows.csv")
    pages = [figures_of_page(tmp_path / name / "squares/page.md") for name in ("whole", "killed")]
    assert pages[0] == pages[1]
    drawn = [(tmp_path / name / "squares/areas.svg").read_bytes() for name in ("whole", "killed")]
    assert drawn[0] == drawn[1]


def test_an_interrupt_keeps_the_rows_and_leaves_nothing_else(mine: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped.py"
    stopped.write_text(
        mine.read_text()
        .replace(
            "    time.sleep(PAUSE_S)\n",
            "    if width == 4:\n        import os, signal\n        os.kill(os.getpid(), signal.SIGINT)\n",
        )
        .replace('    modelled={"way": ("b",)},\n', "")
    )
    done = peelsum("bench", "run", str(stopped), "--out", str(tmp_path / "out"), "--json")
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, "")
    assert done.stderr.endswith("squares: interrupted; the same command goes on\n")
    assert [path.name for path in (tmp_path / "out/squares").iterdir()] == ["rows.csv"]
    order = [task.point["width"] for task in plan(load(find(str(stopped))), "usual", 0)]
    assert len(read(tmp_path / "out/squares/rows.csv")) == order.index(4)


@pytest.mark.system
def test_a_run_that_is_ended_does_not_wait_for_rows_that_are_measured_side_by_side(
    mine: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    slow = f"    open({str(started)!r}, 'a').close()\n    time.sleep(600)\n"
    mine.write_text(
        mine.read_text().replace("    time.sleep(PAUSE_S)\n", slow).replace('("b",)}', '("a", "b")}')
    )
    code = "from peelsum.cli.main import main; main()"
    command = [sys.executable, "-c", code, "bench", "run", str(mine), "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running_:
        until = time.monotonic() + PATIENCE_S
        while not started.exists() and time.monotonic() < until:
            time.sleep(0.1)
        running_.send_signal(signal.SIGTERM)
        assert running_.wait(PATIENCE_S) == 128 + signal.SIGTERM


def test_another_commit_measures_all_rows_again(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what, path = Run(find(str(mine)), "quick"), tmp_path / "rows.csv"
    assert [running.run(what, path).kept for _ in range(2)] == [0, 4]
    monkeypatch.setattr(running, "commit", lambda: "another")
    assert running.run(what, path).kept == 0
    assert [row["commit"] for row in running.rows_of(what, read(path))] == ["another"] * 4
    changed = Run(find(str(mine.with_name("mine.py"))), "quick", seed=5)
    assert running.run(changed, path).kept == 0


@pytest.mark.parametrize(
    ("others", "attempt", "disturbed", "wall_s"),
    [((0.1,), 1, "False", 1), ((0.9, 0.2), 2, "False", 2), ((0.9, 0.5, 0.7), 2, "True", 2)],
)
def test_disturbed_rows_are_repeated_and_the_calmest_counts(
    mine: Path,
    monkeypatch: pytest.MonkeyPatch,
    others: tuple[float, ...],
    attempt: int,
    disturbed: str,
    wall_s: int,
) -> None:
    loads = iter([Load(float(number), 0.0, 1.0, share) for number, share in enumerate(others, 1)])

    class Watched:
        def load(self) -> Load:
            return next(loads)

    monkeypatch.setattr(measuring, "Watched", Watched)
    source = find(str(mine))
    task = next(task for task in plan(load(source), "quick", 0) if task.point["way"] == "a")
    (row,) = measure(source, task, Care(calm=0.25, attempts=3), commit="c", size="quick")
    assert (row["attempt"], row["disturbed"], float(row["wall_s"])) == (f"{attempt} of 3", disturbed, wall_s)
    assert list(loads) == []


def test_what_others_do_is_seen() -> None:
    watched = Watched()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(0.5)
        seen = watched.load()
        busy.kill()
    assert seen.wall_s >= 0.5
    assert seen.others is None or seen.others > 0.1


def test_a_row_that_takes_long_is_told_of_also_with_json(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines come before the first row has ended, on stderr."""
    monkeypatch.setattr("peelsum.processes.progress.BEAT_S", 0.05)
    monkeypatch.setattr("peelsum.compiling.progress.SHOWN_AFTER_S", 0.0)
    mine.write_text(mine.read_text().replace("PAUSE_S = 0.0", "PAUSE_S = 0.4"))
    done = peelsum("bench", "run", str(mine), "--quick", "--out", str(tmp_path), "--json")
    assert len(json.loads(done.stdout)) == 4
    assert re.match(r"squares: \d+ s, \d of 4 points", done.stderr)


def test_rows_that_fail_are_reported_and_measured_by_the_next_run(mine: Path, tmp_path: Path) -> None:
    failing = tmp_path / "failing.py"
    failing.write_text(mine.read_text().replace("time.sleep(PAUSE_S)", "1 / (width - 2)"))
    command = ("bench", "run", str(failing), "--quick", "--out", str(tmp_path))
    done = peelsum(*command, "--json")
    assert done.returncode == 1
    rows = json.loads(done.stdout)
    assert [row["width"] for row in rows[:2]] == [1, 1]
    assert rows[2:] == [{"failure": "ZeroDivisionError: division by zero"}] * 2
    page = (tmp_path / "squares/page.md").read_text()
    assert "**2 of 4 rows are missing.** The first that failed: ZeroDivisionError: division by zero." in page


def test_two_runs_do_not_write_to_one_file(mine: Path, tmp_path: Path) -> None:
    from peelsum.experiments import ExperimentError
    from peelsum.experiments.store import Store

    experiment = load(find(str(mine)))
    with (
        Store(tmp_path / "rows.csv", experiment),
        pytest.raises(ExperimentError, match="another run writes to it"),
    ):
        Store(tmp_path / "rows.csv", experiment)


@pytest.mark.parametrize("timed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_only_rows_without_measured_times_are_side_by_side(timed: bool, mine: Path, tmp_path: Path) -> None:
    theirs = mine.read_text().replace('"label": way', '"label": str(os.getpid())')
    theirs = theirs.replace("PAUSE_S = 0.0", "PAUSE_S = 0.1").replace("import time", "import os, time")
    (tmp_path / "theirs.py").write_text(
        theirs.replace("    modelled={", f"    timed={timed},\n    modelled={{")
    )
    what = Run(find(str(tmp_path / "theirs.py")))
    report = running.run(what, tmp_path / "rows.csv")
    assert report.failed == []
    planned = [(str(task.point["width"]), task.point["way"], str(task.seed)) for task in what.tasks]
    assert [(row["width"], row["way"], row["seed"]) for row in report.rows] == planned
    for row in report.rows:
        assert int(row["area"]) == int(row["width"]) ** 2 + int(row["seed"])
        assert (row["lost"], row["note"]) == (("", "b, has no loss") if row["way"] == "b" else ("0.5", ""))
    assert {row["way"] for row in report.rows if row["others"]} == ({"a"} if timed else set())
    here = {row["way"] for row in report.rows if row["label"] == str(os.getpid())}
    assert here == ({"a"} if timed else set())
    assert len({row["label"] for row in report.rows}) > 1


def test_rows_whose_process_ended_have_failed(mine: Path, tmp_path: Path) -> None:
    dying = tmp_path / "dying.py"
    dying.write_text(
        mine.read_text()
        .replace("    time.sleep(PAUSE_S)\n", "    if width == 4:\n        import os\n        os._exit(3)\n")
        .replace("    modelled={", "    timed=False,\n    modelled={")
    )
    what = Run(find(str(dying)))
    report = running.run(what, tmp_path / "rows.csv")
    assert len(report.rows) + len(report.failed) == 21
    assert {"BrokenProcessPool"} == {one.error.partition(":")[0] for one in report.failed}
    assert {(4, "a"), (4, "b")} <= {(one.task.point["width"], one.task.point["way"]) for one in report.failed}


def test_every_row_says_where_and_when_it_was_measured(mine: Path, tmp_path: Path) -> None:
    (row, *_) = running.run(Run(find(str(mine)), "quick"), tmp_path / "rows.csv").rows
    assert {name for name in RESERVED if not row[name]} <= {"note", "others"}
    assert re.fullmatch(r"[0-9a-f]{10}(\+[0-9a-f]{8})?", row["commit"])
    assert "cores of" in row["machine"]
    assert "numpy" in row["versions"]
