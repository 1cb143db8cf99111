"""The quick size of every experiment, and the sentences about their runs."""

import json
import subprocess
import sys
import time
import tomllib

import psutil
import pytest
from command_line import benchmarks
from patience import PATIENCE_S

from benchmarks.experiment import FOLDER, find, known, load
from benchmarks.rows import read

#: Whose quick size takes minutes of processor time.
SLOW = ("density", "accuracy")


def test_sentences_are_of_experiments_and_name_their_run():
    said = tomllib.loads((FOLDER.parent / "sentences.toml").read_text())
    assert set(said) <= set(known())
    names = {"measured", "shows", "loses", "does_not_show", "surprised", "run"}
    assert [name for name, texts in said.items() if texts.keys() != names] == []
    assert [name for name, texts in said.items() if name not in texts["run"]] == []


def is_worker(process):
    """Say whether `process` runs a worker of `loss`; one that has ended does not."""
    try:
        return "benchmarks.summing_workers" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


@pytest.mark.system
def test_a_killed_experiment_leaves_no_process(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "loss", "--quick", "--out", str(tmp_path)]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        family = set()
        began = time.monotonic()
        while sum(map(is_worker, family)) < 4:
            assert child.poll() is None
            assert time.monotonic() < began + PATIENCE_S
            family = set(psutil.Process(child.pid).children(recursive=True))
            time.sleep(0.1)
    finally:
        child.kill()
        child.wait()
    _, left = psutil.wait_procs(list(family), timeout=PATIENCE_S)
    assert left == []


@pytest.mark.system
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in known()]
)
def test_quick_experiments_run(name, tmp_path):
    done = benchmarks(name, "--quick", "--attempts", "1", "--out", str(tmp_path), "--json")
    if ("gpu" in name and "no GPU" in done.stderr) or ": needs p4c-bm2-ss" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read(tmp_path / name / "rows.csv")
    assert len(json.loads(done.stdout)) == len(rows)
    assert "wrong" not in rows or set(rows["wrong"]) <= {"0", ""}
    drawn = {".svg", ".png"} if load(find(name)).plots else set()
    assert {path.suffix for path in (tmp_path / name).iterdir()} == {".csv", ".md", *drawn}
