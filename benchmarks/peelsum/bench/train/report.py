"""The rows of `peelsum bench train`, their comparison, and the tables that show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich import box
from rich.table import Table

#: The best speedups in LHC's paper (arXiv 2402.07529): of an iteration, and of an aggregation.
PAPER_ITERATION, PAPER_AGGREGATION = 3.74, 6.33


@dataclass(frozen=True)
class Row:
    """A training iteration with one backend at one rate.

    Times are the slowest worker's; unless stated otherwise, they are medians over steps.
    """

    model: str
    workers: int
    gbps: float | None
    """Rate of every link in each direction, in Gbit/s; None if links could not be shaped."""
    shaped_by: Literal["switch ports", "namespaces"] | None
    """What limits the rate: token buckets in the softswitch's ports, or those of virtual Ethernet."""
    path: str
    """The backend: "switch", "switch-dense" (the same switch, all gradients dense), or "gloo"."""
    form: str
    """Forms in which gradients were sent."""
    density_worker: float
    """Share of all gradients' elements that are non-zero on one worker; with top-k, of what is sent."""
    density_union: float
    """Share of all gradients' elements that are non-zero on any worker; with top-k, of what is sent."""
    bytes_per_step: int
    """Bytes that a worker sends per step; for gloo, calculated for a ring."""
    iteration_ms: float
    """Time of an iteration."""
    iteration_least_ms: float
    """Time of the fastest iteration."""
    iteration_most_ms: float
    """Time of the slowest iteration."""
    compute_ms: float
    """Time of forward, backward and optimizer, without sums."""
    encode_ms: float
    """Encoding time of the summing threads, which run in parallel to the computation."""
    network_ms: float
    """Network time of the summing threads; for gloo, the iteration's time beyond `compute_ms`."""
    decode_ms: float
    """Decoding time of the summing threads."""
    aggregation_ms: float
    """Time to sum all gradients of a step without any computation."""
    aggregation_gbps: float
    """Gigabits of gradients, 32 bits per element, per second of `aggregation_ms`."""
    exact: bool | None
    """Whether every average equals that of the workers' integers.

    None if not compared: for gloo, which adds floats, and for top-k.
    """
    speedup_over_dense: float | None = None
    """`iteration_ms` of "switch-dense" over that of this row."""
    speedup_over_gloo: float | None = None
    """`iteration_ms` of "gloo" over that of this row."""
    aggregation_over_dense: float | None = None
    """`aggregation_ms` of "switch-dense" over that of this row."""
    aggregation_over_gloo: float | None = None
    """`aggregation_ms` of "gloo" over that of this row."""


def compared(rows: Sequence[Row]) -> list[Row]:
    """Return the rows sorted by rate, with their speedups."""
    by_path = {(row.path, row.gbps): row for row in rows}

    def other(row: Row, path: str) -> Row | None:
        # If gloo's links could not be shaped, its only row serves all rates.
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
    """Yield a table of iterations, and one of sums without computation; each has a line for every row."""
    times = ("ms", "least", "most", "compute", "encode", "network", "decode")
    speedups = ("over dense", "over gloo")
    shown = _table(f"{title}\niterations", "MB", *times, *speedups, "exact")
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
    shown = _table("sums alone", "ms", "Gbit/s of gradients", *speedups)
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
    """Return a sentence with the best speedups of this run, and those of LHC's paper."""
    ours = [row for row in rows if row.path == "switch"]
    best = max(ours, key=lambda row: row.speedup_over_dense or 0)
    sums = max(row.aggregation_over_dense or 0 for row in ours)
    return (
        f"Best speedup over dense sums through this switch: {best.speedup_over_dense:.2f} for an iteration, "
        f"at {best.gbps:g} Gbit/s, and {sums:.2f} for aggregation. LHC's paper: up to {PAPER_ITERATION} and "
        f"{PAPER_AGGREGATION}, on GPUs, over its own baselines."
    )
