"""The rows and tables of `peelsum bench accuracy`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any


@dataclass(frozen=True)
class Row:
    """One method on one model, over one link: means over seeds, and their sample standard deviations."""

    model: str
    data: str
    """Description of the data."""
    published: str
    """What the model reaches elsewhere on published data, with its source; empty for other data."""
    method: str
    """The compression method."""
    workers: int
    shares: str
    """How examples are divided among workers."""
    seeds: int
    """Runs of which this is the mean."""
    steps: int
    """Steps of training."""
    metric: str
    """The measure of what was learned, on data held out."""
    final: float | None
    """Measured after the last step; None if any run's was not finite."""
    final_spread: float | None
    """Its standard deviation; None for one seed."""
    target: float | None
    """The target: 95 % of dense training's improvement; None if dense training was not finite."""
    reached: int
    """Runs that reached the target."""
    steps_to_target: float | None
    """Steps to the first measurement at the target; None unless all runs reached it."""
    bytes_per_step: int
    """Measured bytes that a worker contributes, by the hook's statistics."""
    times_less: float
    """Bytes that a worker of dense training contributes, over this method's."""
    compute_ms: float
    """Measured processor time of a step's computation: the median over all runs of the model."""
    gbps: float
    """Rate of the links in Gbit/s."""
    latency_ms: float
    """Time of a message in milliseconds."""
    path: str
    """Modelled: the fastest path, see `peelsum.bench.accuracy.network`."""
    compress_ms: float
    """Measured processor time of a step's encoding and decoding; 0 on a path without."""
    network_ms: float
    """Modelled time of a step's exchanges."""
    time_s: float | None
    """Time to the target, measured and modelled; None unless all runs reached it."""
    time_spread_s: float | None
    """Its standard deviation; None for one seed."""
    faster: float | None
    """Dense training's time to the target over this one."""
    pays_below_gbps: float | None
    """Modelled: the highest rate at which the target is reached sooner than dense; None if there is none."""


def text(rows: Sequence[dict[str, Any]]) -> str:
    """Return the tables of rows, as they are in JSON."""
    names = [field.name for field in fields(Row)]
    whole = [row | {"steps": row["trained"], "path": row["over"]} for row in rows]
    found = tables([Row(**{name: row[name] for name in names}) for row in whole])
    return "\n\n".join("\n".join(lines) for lines in found)


def tables(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield a Markdown table of each model's rows, with lines above it that explain it."""
    for _, of_model in groupby(rows, lambda row: (row.model, row.workers, row.shares, row.steps)):
        mine = list(of_model)
        one = mine[0]
        rates = list(dict.fromkeys(row.gbps for row in mine))
        headings = [
            *("method", f"{one.metric} at the end", "bytes a step", f"steps to {_number(one.target)}"),
            *("compress ms", *(f"s at {rate:g} Gbit/s" for rate in rates), "pays below Gbit/s"),
        ]
        lines = [*_title(one), "", _line(headings), "|---" * len(headings) + "|"]
        for _, of_method in groupby(mine, lambda row: row.method):
            lines.append(_line(_cells(list(of_method))))
        yield lines


def _title(one: Row) -> list[str]:
    return [
        f"{one.model}: {one.data}. {one.workers} workers, shares {one.shares};",
        f"{one.steps} steps of {one.compute_ms:.1f} ms, {one.seeds} seeds, {one.latency_ms:g} ms a message.",
        "Measured: all but the network's part of the seconds (s) and the last column, which are modelled.",
        "In brackets: dense training's figure over this one.",
        *([f"Published, {one.published}."] if one.published else []),
    ]


def _cells(rows: Sequence[Row]) -> list[str]:
    """Return the cells of one method, whose rows differ in the rate."""
    one = rows[0]
    reached = _number(one.steps_to_target) if one.steps_to_target else f"{one.reached} of {one.seeds} runs"
    compress = max(row.compress_ms for row in rows)
    return [
        f"`{one.method}`",
        _with_spread(one.final, one.final_spread),
        f"{one.bytes_per_step:,} ({one.times_less:.3g}x)",
        reached,
        f"{compress:.1f}",
        *map(_time, rows),
        "-" if one.method == "dense" or one.faster is None else _number(one.pays_below_gbps, "never"),
    ]


def _time(row: Row) -> str:
    faster = "" if row.faster is None or row.method == "dense" else f" ({row.faster:.2f}x)"
    return _with_spread(row.time_s, row.time_spread_s) + faster


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _with_spread(value: float | None, spread: float | None) -> str:
    return _number(value) if spread is None else f"{_number(value)} ± {_number(spread)}"


def _number(value: float | None, missing: str = "-") -> str:
    return missing if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
