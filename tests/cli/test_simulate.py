"""`peelsum simulate`: options, files, errors of one line."""

import json

from command_line import peelsum

QUICK = ("--elements", "4000", "--lanes", "32")


def test_options_come_before_the_file_and_the_same_seed_prints_the_same(tmp_path):
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


def test_a_table_for_people():
    done = peelsum("simulate", *QUICK, "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert "packets at switches" in done.stdout
    assert "dropped: none" in done.stdout
