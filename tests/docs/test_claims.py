"""The README's numbers are claims of `make artifact`, which says of each whether it holds here."""

import csv
import json
import re
from pathlib import Path

import pytest
import yaml

from benchmarks.artifact import CLAIMS, CommandError, main

ROOT = Path(__file__).parents[2]
#: Numbers that claim nothing: names, versions and options.
NAMES = re.compile(r"Python 3\.11|Debian 12|arXiv 2402\.07529|NSDI'21|Apache-2\.0|^\d\. ", re.MULTILINE)


def prose(page):
    """Return the text of a page without code, targets of links and names that have digits."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", page, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "", re.sub(r"\]\([^)]*\)", "]", text))
    return NAMES.sub("", text)


def unclaimed(page):
    """Return the numbers of a page that are in no claim's words."""
    text = " ".join(prose(page).split())
    for claim in CLAIMS:
        text = text.replace(claim.text, "").replace(claim.condition, "")
    return re.findall(r"(?<![\w.])\d[\d.,]*\b%?", text)


def test_every_claim_is_in_the_readme_and_no_other_number():
    page = (ROOT / "README.md").read_text()
    text = " ".join(prose(page).split())
    assert [words for claim in CLAIMS for words in (claim.text, claim.condition) if words not in text] == []
    assert unclaimed(page) == []


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_the_number_that_the_readme_prints_is_within_the_claim_s_range(claim):
    printed = re.findall(r"\d+(?:\.\d+)?(?= times| cells)", claim.text)
    assert all(claim.least <= float(number) <= claim.most for number in printed)


def rows_for(command):
    """Return an output of a command with which all its claims hold."""
    if command.startswith("peelsum.cli demo"):
        return {"exact": True, "tensors_checked": 9, "bytes_ratio": 11.5, "cells": 130, "candidates": 100}
    if command.startswith("peelsum.cli simulate"):
        return {"jobs": [{"wrong": 0}]}
    if command.startswith("pytest"):
        return "5 passed"
    if "bench train" in command:
        slow = 0.9 if "vgg19" in command else 8.7
        return [{"path": "switch", "gbps": gbps, "speedup_over_gloo": slow} for gbps in (0.1, 1.0, 10.0)]
    figures = {"compact": (11.8, 4.0), "sketch": (10.3, 7.0), "lhc": (3.9, 9.0), "lhc_fastest": (7.0, 7.6)}
    rows = [
        {"way": way, "mbit": mbit, "network_speedup": speedup, "time_ms": time_ms}
        for way, (speedup, time_ms) in figures.items()
        for mbit in (200.0, 1000.0, 100_000.0)
    ]
    return [*rows, *({"way": "ring", "mbit": mbit, "time_ms": 53_000 / mbit} for mbit in (1000.0, 100_000.0))]


@pytest.fixture
def as_root(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)


def test_claims_that_hold_end_with_status_0_and_share_commands(as_root, capsys):
    commands = []

    def run(command):
        commands.append(command)
        return rows_for(command)

    assert main(["--json"], run) == 0
    verdicts = json.loads(capsys.readouterr().out)
    assert [verdict["verdict"] for verdict in verdicts] == ["holds"] * len(CLAIMS)
    assert len(commands) == len(set(commands)) < len(CLAIMS)


@pytest.mark.parametrize(
    ("name", "output", "shown"),
    [
        ("exact", {"exact": False, "tensors_checked": 9}, "0  FAILS"),
        ("exact", {"exact": True, "tensors_checked": 0}, "0  FAILS"),
        ("bytes", {"bytes_ratio": 9.9}, "9.9  FAILS"),
        ("racks", {"jobs": [{"wrong": 0}, {"wrong": 3}]}, "3  FAILS"),
        ("dense_models", [{"path": "switch", "gbps": 10.0, "speedup_over_gloo": 1.2}], "1.2  FAILS"),
        ("program", "1 failed, 4 passed", "0  FAILS"),
        ("lhc", CommandError("status 1: no memory"), "-  FAILS: status 1: no memory"),
    ],
)
def test_a_claim_that_fails_ends_with_status_1(as_root, capsys, name, output, shown):
    def run(command):
        if isinstance(output, Exception):
            raise output
        return output

    assert main(["--only", name], run) == 1
    out = capsys.readouterr().out
    assert shown in out
    assert "claims: 1, failed: 1, minutes: 0" in out


def test_without_root_what_needs_it_is_not_run(monkeypatch, capsys):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["--only", "slow_links"], lambda command: pytest.fail(command)) == 0
    assert "not run: needs root" in capsys.readouterr().out


def test_a_command_that_fails_is_named_with_its_last_line():
    from benchmarks.artifact import run_command

    with pytest.raises(CommandError, match=r"status 2: .*--nothing"):
        run_command("benchmarks.artifact --nothing")


def test_the_citation_has_the_package_s_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert str(citation["version"]) == version[1]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_the_code_of_the_readme_averages_gradients():
    """With one rank, over gloo in place of the switch: the average is the gradient itself."""
    pytest.importorskip("torch", reason="torch is not installed")
    from torch_ranks import run_ranks
    from torch_training import averaged_by

    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert 'over="switch"' in code
    given = [1.0, 0.0, -2.5, 0.5]
    assert run_ranks(1, averaged_by, code.replace("switch", "gloo"), given) == [([given], 1)]


def committed_rows(claim):
    """Return the committed rows of the experiment that checks a claim, or None if it has none."""
    if "density" in claim.command:
        lines = (ROOT / "docs/results/experiments/density/rows.csv").read_text().splitlines()[1:]
        figures = ("mbit", "network_speedup", "time_ms")
        return [
            {"way": row["way"]} | {name: float(row[name]) for name in figures}
            for row in csv.DictReader(lines)
            if (row["network"], row["support"]) == ("simulated", "uniform")
            and row["density"] == ("1.0" if row["way"] == "ring" else "0.05")
        ]
    runs = json.loads((ROOT / "benchmarks/results/train.json").read_text())
    model = re.search(r"--model (\w+)", claim.command)
    return model and next(rows for command, rows in runs.items() if f"--model {model[1]} --gbps" in command)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_the_readme_prints_the_committed_rows_numbers(claim):
    """As far as a claim has such rows; it holds on them, too."""
    rows = committed_rows(claim)
    if rows is None:
        assert claim.name in {"exact", "bytes", "cells", "lost", "racks", "program"}
        return
    measured = claim.measure(rows)
    assert claim.least <= measured <= claim.most
    for printed in re.findall(r"(\d+(?:\.\d+)?) times", claim.text):
        assert abs(float(printed) - measured) <= 0.5 * 10.0 ** -len(printed.partition(".")[2]) + 1e-9
