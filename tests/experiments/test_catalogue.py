"""What the catalogue's experiments measure that no other bench does; all quick ones, and their sentences."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from command_line import peelsum
from patience import PATIENCE_S

from peelsum.experiments.catalogue.levels import topology_of
from peelsum.experiments.catalogue.slots import Scene, Shares, share_slots, share_slots_atp
from peelsum.experiments.loading import CATALOGUE, find, known, load
from peelsum.experiments.store import read

#: What needs a machine that is not everywhere, with a part of the error.
MACHINES = {
    "gpu": "no GPU",
    "gpu_stages": "no GPU",
}
#: Whose quick size takes minutes of processor time.
SLOW = ("density", "accuracy")


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("workers", [2, 3])
def test_with_enough_slots_the_switch_sums_everything_in_least_packets(jobs: int, workers: int) -> None:
    found = share_slots(Scene(slots=2**14, jobs=jobs, outstanding=512, workers=workers))
    assert (found.at_server, found.packets_to_servers, found.wrong) == (0.0, 1.0, 0)
    assert found.fairness == pytest.approx(1.0, abs=0.01)


def test_with_few_slots_the_servers_sum_what_the_switch_cannot_exactly() -> None:
    scene = Scene(slots=256, jobs=4, outstanding=2048, seed=5)
    found = share_slots(scene)
    assert found == share_slots(scene)
    assert found != share_slots(replace(scene, seed=6))
    assert found.wrong == 0
    assert 0.2 < found.at_server < 1
    # Both contributions of a chunk that the server sums reach it, instead of one sum.
    assert found.packets_to_servers == pytest.approx(1 + found.at_server, rel=0.05)


@pytest.mark.parametrize("share", [share_slots, pytest.param(share_slots_atp, marks=pytest.mark.slow)])
def test_with_all_chunks_under_way_one_in_a_hundred_slots_leaves_the_servers_nearly_all(
    share: Callable[[Scene], Shares],
) -> None:
    plenty, few = (share(Scene(slots, 1, outstanding=6400, full=True)) for slots in (2**14, 256))
    assert (plenty.wrong, few.wrong) == (0, 0)
    # A slot is held for as long as a link takes to send all outstanding chunks. The sum is of three windows.
    assert few.at_server > 1 - 5 * 256 / 6400
    assert few.packets_to_servers == pytest.approx(1 + few.at_server, rel=0.01)
    assert plenty.at_server < (0.4 if share is share_slots_atp else 0.001)


def test_trunks_have_rates_of_their_own() -> None:
    links = topology_of(2, 4, mbit=100.0, trunk=0.5).links
    assert sorted(link.rate_mbit or 0 for link in links) == [50.0, 50.0, *[100.0] * 5]
    assert len(topology_of(1, 4, None, 1.0).links) == 5


def test_sentences_are_of_experiments_and_name_their_run() -> None:
    said = tomllib.loads((CATALOGUE / "sentences.toml").read_text())
    assert set(said) <= set(known())
    for name in said:
        sentences = load(find(name)).sentences
        assert sentences is not None
        assert "peelsum bench run" in sentences.run


def is_worker(process: psutil.Process) -> bool:
    """Say whether `process` runs a worker of `bench loss`; one that has ended does not."""
    try:
        return "bench.sums" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


@pytest.mark.system
def test_a_killed_experiment_leaves_no_process(tmp_path: Path) -> None:
    command = ["bench", "run", "loss", "--quick", "--out", str(tmp_path)]
    child = subprocess.Popen([sys.executable, "-m", "peelsum.cli", *command], stderr=subprocess.DEVNULL)
    try:
        family: set[psutil.Process] = set()
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
def test_quick_experiments_run(name: str, tmp_path: Path) -> None:
    done = peelsum("bench", "run", name, "--quick", "--attempts", "1", "--out", str(tmp_path), "--json")
    if name in MACHINES and MACHINES[name] in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read(tmp_path / name / "rows.csv")
    assert len(json.loads(done.stdout)) == len(rows)
    assert {row.get("wrong", "0") for row in rows} <= {"0", ""}
    drawn = {".svg", ".png"} if load(find(name)).plots else set()
    assert {path.suffix for path in (tmp_path / name).iterdir()} == {".csv", ".md", *drawn}
