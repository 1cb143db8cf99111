"""Tables and text of the training page have the figures of benchmarks/results/train.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/results/training.md").read_text()
TEXT = " ".join(PAGE.split())
PATHS = ("switch", "switch-dense", "gloo", "hook-gloo", "fp16")
BESIDE_THE_PAPER = {
    "lstm": {"dense": "language model, over dense through the same switch, at 0.1 / 1 / 10 Gbit/s"}
    | {"gloo": "language model, over gloo"},
    "lstm, ten steps": {"dense": "the same, over dense, a run of `--gbps 0.1,1,10` alone, ten steps"}
    | {"gloo": "the same, over gloo, in the ten-step run"},
    "bert": {"dense": "BERT, over dense"},
    "ncf": {"dense": "NCF, over dense"},
    "vgg19": {"dense": "VGG19, over dense"},
    "vgg19, top 1%": {"dense": "VGG19, top 1%, over dense"},
}

Row = dict[str, Any]


def runs() -> dict[str, list[Row]]:
    """Return the rows of each command that measured three rates, by the page's name for it."""
    named = {}
    for command, rows in json.loads((ROOT / "benchmarks/results/train.json").read_text()).items():
        if "--gbps 0.1,1,10" in command:
            note = (
                ", top 1%" if "--top-k 0.01" in command else "" if "--steps 5" in command else ", ten steps"
            )
            named[rows[0]["model"] + note] = rows
    return named


RUNS = runs()
TABLE = {name: rows for name, rows in RUNS.items() if not name.endswith("ten steps")}


def by_rate(rows: Sequence[Row]) -> Iterator[tuple[Row, list[Row]]]:
    """Yield, for each rate, the switch's row and the rows of all backends."""
    for gbps in (0.1, 1, 10):
        ways = [next(row for row in rows if (row["path"], row["gbps"]) == (path, gbps)) for path in PATHS]
        yield ways[0], ways


def joined(pattern: str, rows: Sequence[Row]) -> str:
    return " / ".join(pattern.format(**row) for row in rows)


def bytes_line(name: str) -> str:
    ways = [ways for _, ways in by_rate(TABLE[name])]
    sent = [f"{sum(way['bytes_per_step'] for way in same) / 3e6:.2f}" for same in zip(*ways, strict=True)]
    return f"| {name} | {ways[0][0]['density_union']:.1%} | {' | '.join(sent)} |"


def iteration_lines(name: str) -> list[str]:
    step = "{iteration_ms:,.0f} ({iteration_least_ms:,.0f} to {iteration_most_ms:,.0f})"
    lines = []
    for switch, ways in by_rate(TABLE[name]):
        times = " | ".join(step.format(**way) for way in ways)
        over = "{speedup_over_dense:.2f} | {speedup_over_gloo:.2f}".format(**switch)
        hook = "{speedup_over_gloo:.2f}".format(**ways[3])
        lines.append(
            f"| {name} | {switch['gbps']:g} | {switch['compute_ms']:,.0f} | {times} | {over} | {hook} |"
        )
    return lines


def sums_lines(name: str) -> list[str]:
    lines = []
    for switch, (*ways, _) in by_rate(TABLE[name]):
        ms, rate = joined("{aggregation_ms:,.0f}", ways), joined("{aggregation_gbps:.2f}", ways)
        over = "{aggregation_over_dense:.2f} | {aggregation_over_gloo:.2f}".format(**switch)
        hook = "{aggregation_over_gloo:.2f}".format(**ways[3])
        lines.append(f"| {name} | {switch['gbps']:g} | {ms} | {rate} | {over} | {hook} |")
    return lines


@pytest.mark.parametrize("name", TABLE)
def test_tables(name: str) -> None:
    for line in (bytes_line(name), *iteration_lines(name), *sums_lines(name)):
        assert line in PAGE


@pytest.mark.parametrize("name", BESIDE_THE_PAPER)
def test_beside_the_paper(name: str) -> None:
    switch = [row for row, _ in by_rate(RUNS[name])]
    for other, label in BESIDE_THE_PAPER[name].items():
        iteration = joined(f"{{speedup_over_{other}:.2f}}", switch)
        assert f"| {label} | {iteration} | {joined(f'{{aggregation_over_{other}:.2f}}', switch)} |" in PAGE


def test_links_are_shaped_as_the_page_says() -> None:
    for rows in RUNS.values():
        for row in rows:
            by_switch = row["path"].startswith("switch")
            assert row["shaped_by"] == ("switch ports" if by_switch else "namespaces")


def test_extremes() -> None:
    def dense_and_gloo(rows: Sequence[Row]) -> tuple[str, ...]:
        dense = max(row["aggregation_gbps"] for row in rows if row["path"] == "switch-dense")
        gloo = [row["aggregation_gbps"] for row in rows if (row["path"], row["gbps"]) == ("gloo", 10)]
        return f"{dense:.2f}", f"{min(gloo):.1f}", f"{max(gloo):.1f}"

    def spreads(rows: Sequence[Row]) -> list[str]:
        return [
            f"{one:.1f}"
            for one in sorted(row["iteration_most_ms"] / row["iteration_least_ms"] for row in rows)
        ]

    table = [row for rows in TABLE.values() for row in rows]
    alone = RUNS["lstm, ten steps"]
    dense, least, most = dense_and_gloo(table)
    assert f"at most {dense} Gbit/s of them in this table (LSTM at 10 Gbit/s)" in TEXT
    assert f"carry {least} to {most} there" in TEXT
    dense, _, most = dense_and_gloo(alone)
    assert f"In the ten-step run the two were {dense} and {most}." in TEXT
    assert f"a row took up to {spreads(table)[-1]} times the fastest." in TEXT
    *_, usual, hook, half = spreads(alone)
    ways = "for fp16 and for gloo at 10 Gbit/s"
    assert f"it was {hook} and {half} times {ways}, and up to {usual} otherwise" in TEXT
