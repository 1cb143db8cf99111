"""`peelsum simulate`: options, files, errors of one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import peelsum

QUICK = ("--elements", "4000", "--lanes", "32")


def test_options_come_before_the_file_and_the_same_seed_prints_the_same(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text("[network]\ngbps = 25.0\nloss = 0.01\n[[jobs]]\nworkers = 3\n")
    runs = [
        json.loads(peelsum("simulate", str(path), *QUICK, "--workers", "5", "--json").stdout) for _ in "12"
    ]
    for run in runs:
        del run["wall_s"]
    assert runs[0] == runs[1]
    (row,) = runs[0]["jobs"]
    assert (row["workers"], row["elements"], row["wrong"]) == (5, 4000, 0)
    assert runs[0]["drops"]["lost"] > 0
    given = runs[0]["scenario"]
    assert (given["seed"], given["lanes"], given["jobs"][0]["workers"]) == (1, 32, 5)
    assert (given["network"]["gbps"], given["network"]["loss"]) == (25.0, 0.01)


def test_a_table_for_people() -> None:
    done = peelsum("simulate", *QUICK, "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert "packets at switches" in done.stdout
    assert "dropped: none" in done.stdout


@pytest.mark.parametrize(
    ("option", "beyond", "limits"),
    [
        ("--workers", "0", "1 to 1024"),
        ("--gbps", "1601", "0.001 to 1600"),
        ("--loss", "2", "0 to 0.99"),
        ("--jobs", "129", "1 to 128"),
        ("--racks", "33", "1 to 32"),
        ("--oversubscription", "0", "0.01 to 1000"),
        ("--elements", "0", f"1 to {2**30}"),
        ("--lanes", "5000", "1 to 4096"),
        ("--seed", "-1", f"0 to {2**63 - 1}"),
    ],
)
def test_an_option_out_of_range_is_named_with_its_range(option: str, beyond: str, limits: str) -> None:
    done = peelsum("simulate", option, beyond)
    assert done.returncode == 2
    assert done.stderr == f"peelsum: {option}: {beyond} is out of range; use {limits}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere.toml"], "nowhere.toml: No such file or directory; give the path of a scenario"),
        (["--racks", "1", "--workers", "40"], "network.racks: 1: jobs.0 has 40 workers"),
    ],
)
def test_a_bad_value_gets_one_line_that_names_it(options: list[str], message: str) -> None:
    done = peelsum("simulate", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
