"""The rows of `peelsum bench train`: what they say, how they compare, and the table that shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich import box
from rich.table import Table

#: LHC's paper at best (arXiv 2402.07529): how many times quicker an iteration is, and an aggregation.
PAPER_ITERATION, PAPER_AGGREGATION = 3.74, 6.33


@dataclass(frozen=True)
class Row:
    """A training iteration of `workers` workers whose gradients are summed one way.

    gbps: of every link, each way; None where links could not be shaped. shaped_by: what holds them to it:
    "switch ports", by token buckets in the embedded switch, or "namespaces", by those of virtual Ethernet.
    path: switch, switch-dense (all of every gradient, through the same switch), gloo. form: what gradients
    were sent as. density_worker, density_union: share of all gradients' elements that are not zero on a
    worker, on any. With top-k both are of what is sent. bytes_per_step: what a worker sends; for gloo, a
    ring's. Times are the slowest worker's medians of steps: iteration_ms, with its quickest and slowest step;
    compute_ms (forward, backward, optimizer, with no sums); encode_ms, network_ms and decode_ms of threads
    that run beside the rest, gloo's network being what is left. aggregation_ms: all of a step's gradients
    summed, with nothing computed meanwhile; aggregation_gbps: the gradients' 32 bits an element in that time.
    exact: every average equals that of the workers' integers; None if not compared, as for gloo, which adds
    floats, and for top-k.
    """

    model: str
    workers: int
    gbps: float | None
    shaped_by: Literal["switch ports", "namespaces"] | None
    path: str
    form: str
    density_worker: float
    density_union: float
    bytes_per_step: int
    iteration_ms: float
    iteration_least_ms: float
    iteration_most_ms: float
    compute_ms: float
    encode_ms: float
    network_ms: float
    decode_ms: float
    aggregation_ms: float
    aggregation_gbps: float
    exact: bool | None
    speedup_over_dense: float | None = None
    speedup_over_gloo: float | None = None
    aggregation_over_dense: float | None = None
    aggregation_over_gloo: float | None = None


def compared(rows: Sequence[Row]) -> list[Row]:
    """The rows by rate, with how many times faster they are than those they are compared with."""
    by_path = {(row.path, row.gbps): row for row in rows}

    def other(row: Row, path: str) -> Row | None:
        # Where gloo's links could not be shaped, there is one row of it for all rates.
        return by_path.get((path, row.gbps)) or (by_path.get((path, None)) if path == "gloo" else None)

    def against(row: Row) -> Row:
        dense, gloo = other(row, "switch-dense"), other(row, "gloo")
        return replace(
            row,
            speedup_over_dense=_ratio(dense, row, "iteration_ms"),
            speedup_over_gloo=_ratio(gloo, row, "iteration_ms"),
            aggregation_over_dense=_ratio(dense, row, "aggregation_ms"),
            aggregation_over_gloo=_ratio(gloo, row, "aggregation_ms"),
        )

    return [against(row) for row in sorted(rows, key=lambda row: row.gbps or 0)]


def _ratio(slow: Row | None, quick: Row, key: str) -> float | None:
    return None if slow is None else round(getattr(slow, key) / getattr(quick, key), 3)


def tables(title: str, rows: Sequence[Row]) -> Iterator[Table]:
    """Of iterations, and of sums with nothing computed meanwhile; a line each for every row."""
    times = ("ms", "least", "most", "compute", "encode", "network", "decode")
    speedups = ("over dense", "over gloo")
    shown = _table(f"{title}\nan iteration", "MB", *times, *speedups, "exact")
    for row in rows:
        parts = (row.iteration_ms, row.iteration_least_ms, row.iteration_most_ms, row.compute_ms)
        shown.add_row(
            *_which(row),
            f"{row.bytes_per_step / 1e6:.2f}",
            *(f"{ms:.0f}" for ms in (*parts, row.encode_ms, row.network_ms, row.decode_ms)),
            *map(_times, (row.speedup_over_dense, row.speedup_over_gloo)),
            {True: "yes", False: "NO", None: "-"}[row.exact],
        )
    yield shown
    shown = _table("its sums alone", "ms", "Gbit/s of gradients", *speedups)
    for row in rows:
        ratios = map(_times, (row.aggregation_over_dense, row.aggregation_over_gloo))
        shown.add_row(*_which(row), f"{row.aggregation_ms:.0f}", f"{row.aggregation_gbps:.2f}", *ratios)
    yield shown


def _table(title: str, *columns: str) -> Table:
    shown = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("Gbit/s", "path"):
        shown.add_column(column, no_wrap=True)
    for column in columns:
        shown.add_column(column, justify="right", no_wrap=True)
    return shown


def _which(row: Row) -> tuple[str, str]:
    return "any" if row.gbps is None else f"{row.gbps:g}", row.path


def _times(speedup: float | None) -> str:
    return "-" if speedup is None else f"{speedup:.2f}x"


def beside_the_paper(rows: Sequence[Row]) -> str:
    """The best of this run, and what LHC's paper has."""
    ours = [row for row in rows if row.path == "switch"]
    best = max(ours, key=lambda row: row.speedup_over_dense or 0)
    sums = max(row.aggregation_over_dense or 0 for row in ours)
    return (
        f"Best here: {best.speedup_over_dense:.2f} times an iteration, at {best.gbps:g} Gbit/s, and "
        f"{sums:.2f} times the aggregation throughput, over dense through this switch. LHC's paper: up "
        f"to {PAPER_ITERATION} and {PAPER_AGGREGATION}, on GPUs, over baselines of its own."
    )
