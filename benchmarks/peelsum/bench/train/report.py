"""The rows of `peelsum bench train`, and their comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

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
    """The backend.

    "switch"; "switch-dense", the same switch with all gradients dense; "gloo", its all_reduce of floats;
    "hook-gloo", the hook over gloo; "fp16", torch's hook over gloo, which halves gradients.
    """
    form: str
    """Forms in which gradients were sent."""
    density_worker: float
    """Share of all gradients' elements that are non-zero on one worker; with top-k, of what is sent."""
    density_union: float
    """Share of all gradients' elements that are non-zero on any worker; with top-k, of what is sent."""
    bytes_per_step: int
    """Bytes that a worker sends per step; for gloo and fp16, calculated for a ring."""
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
    cpu_ms: float
    """CPU time of all processes, switch and server included, per step beyond computation, the mean."""
    switch_cpu_ms: float
    """The share of `cpu_ms` of switch and server."""
    speedup_over_dense: float | None = None
    """`iteration_ms` of "switch-dense" over that of this row."""
    speedup_over_gloo: float | None = None
    """`iteration_ms` of "gloo" over that of this row."""
    aggregation_over_dense: float | None = None
    """`aggregation_ms` of "switch-dense" over that of this row."""
    aggregation_over_gloo: float | None = None
    """`aggregation_ms` of "gloo" over that of this row."""
    cpu_of_gloo: float | None = None
    """`cpu_ms` of this row over that of "gloo"."""


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
            cpu_of_gloo=None if gloo is None else _ratio(row, gloo, "cpu_ms"),
        )

    return [against(row) for row in sorted(rows, key=lambda row: row.gbps or 0)]


def _ratio(slow: Row | None, quick: Row, key: str) -> float | None:
    below = getattr(quick, key)
    return None if slow is None or not below else round(getattr(slow, key) / below, 3)
