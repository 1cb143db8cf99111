"""`peelsum bench train`: measure a training iteration with the switch, beside dense sums and gloo.

Every worker is a separate process. The switch is the softswitch, on loopback, with rate-limited ports. Gloo's
links are virtual Ethernet, limited to the same rate by token buckets.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peelsum.bench.devices import require_device
from peelsum.bench.train.links import ShapedLan
from peelsum.bench.train.worker import FORMS, FP16, HOOK_OVER_GLOO, Job
from peelsum.processes import Child
from peelsum.topology import Star, TopologyError
from peelsum.topology.namespaces import HOST_INTERFACE

#: Seconds that a sum waits for a worker. At the published sizes, steps take minutes and differ by as much.
_TIMEOUT_SMALL_S, _TIMEOUT_FULL_S = 30.0, 600.0
#: Seconds between two polls of the workers' output.
_POLL_S = 0.05
#: The backends without a switch.
BY_GLOO = ["gloo", HOOK_OVER_GLOO, FP16]
#: What is timed, of the slowest worker.
_TIMES = (
    *("iteration", "iteration_least", "iteration_most", "compute", "encode", "network", "decode"),
    "aggregation",
)


def bench_train(
    options: dict[str, Any], workers: int, gbps: Sequence[float], *, cpu: bool
) -> list[dict[str, Any]]:
    """Measure each rate in turn; return the rows, compared with each other.

    options: those of a worker's `Job` that all have in common. cpu: whether to compare CPU time, without
    rates. Raises ProcessError if a process fails, and NoDeviceError without the requested device.
    """
    require_device(options["device"])
    rates = [None] if cpu else list(gbps)
    with ExitStack() as stack:
        # Namespaces must exist before this process starts threads.
        lan = None if cpu else _lan(stack, workers)
        return compared([*_by_switch(options, workers, rates), *by_gloo(options, workers, rates, lan)])


def _lan(stack: ExitStack, workers: int) -> ShapedLan | None:
    """Return links whose rate can be limited; None if there are none."""
    try:
        return stack.enter_context(ShapedLan(workers))
    except TopologyError:
        return None


def _by_switch(
    options: dict[str, Any], workers: int, rates: Sequence[float | None]
) -> Iterator[dict[str, Any]]:
    timeout_s = _TIMEOUT_SMALL_S if options["small"] else _TIMEOUT_FULL_S
    with ExitStack() as stack:
        children = _started(stack, options, workers, None)
        for gbps in rates:
            with Star(workers, rate_mbit=gbps and 1000 * gbps, timeout_s=timeout_s) as star:
                for row in _asked(children, list(FORMS), star):
                    star.check()
                    yield {**row, "gbps": gbps, "shaped_by": "switch ports" if gbps else None}


def by_gloo(
    options: dict[str, Any], workers: int, rates: Sequence[float | None], lan: ShapedLan | None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the backends without a switch; without `lan`, at no set rate."""
    with ExitStack() as stack:
        children = _started(stack, options, workers, lan)
        for gbps in rates if lan else [None]:
            if lan and gbps:
                lan.shape(gbps)
            for row in _asked(children, BY_GLOO, None):
                yield {**row, "gbps": gbps, "shaped_by": "namespaces" if lan else None}


def _started(stack: ExitStack, options: dict[str, Any], workers: int, lan: ShapedLan | None) -> list[Child]:
    """Start the workers; return them when all are ready for commands."""
    store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peelsum-"))) / "gloo"
    network: dict[str, Any] = {"store": str(store), "interface": HOST_INTERFACE if lan else "lo"}
    children = []
    for rank in range(workers):
        job = Job(rank=rank, workers=workers, **network, **options)
        command = [sys.executable, "-m", "peelsum.bench.train.worker", json.dumps(asdict(job))]
        child = Child(f"worker {rank}", [*(lan.prefix(rank) if lan else []), *command])
        stack.callback(child.stop)
        children.append(child)
    _answers(children)
    return children


def _asked(children: Sequence[Child], paths: list[str], star: Star | None) -> Iterator[dict[str, Any]]:
    for rank, child in enumerate(children):
        seat = None if star is None else asdict(star.seats[rank])
        child.tell(paths=paths, seat=seat, watched=star.process_ids if star and rank == 0 else [])
    for _ in paths:
        yield _row(_answers(children))


def _answers(children: Sequence[Child]) -> list[dict[str, Any]]:
    """Return every worker's next line. If workers fail, the error names the first, which made others fail."""
    lines: dict[str, dict[str, Any]] = {}
    while silent := [child for child in children if child.name not in lines]:
        for child in silent:
            if child.has_line(_POLL_S / len(silent)):
                line = child.next_line(0)
                if line is None:
                    raise TopologyError(f"{child.name}: ended early; run again, it may have been stopped")
                lines[child.name] = line
    return [lines[child.name] for child in children]


def _row(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def of_all(name: str) -> list[float]:
        return [one[name] for one in measured]

    wrong = [one["wrong"] for one in measured if one["wrong"] is not None]
    bits, first = 32 * measured[0]["elements"], measured[0]
    slowest = {f"{name}_ms": round(1e3 * max(of_all(f"{name}_s")), 2) for name in _TIMES}
    return {
        "path": first["path"],
        "form": first["form"],
        "density_worker": round(sum(of_all("density_worker")) / len(measured), 5),
        "density_union": round(first["density_union"], 5),
        "bytes_per_step": round(max(of_all("bytes_sent"))),
        **slowest,
        "aggregation_gbps": round(bits / max(of_all("aggregation_s")) / 1e9, 4),
        "exact": not any(wrong) if wrong else None,
        "cpu_ms": round(1e3 * sum(of_all("cpu_s") + of_all("switch_cpu_s")), 2),
        "switch_cpu_ms": round(1e3 * sum(of_all("switch_cpu_s")), 2),
    }


def compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows sorted by rate, with their speedups over dense sums and over gloo."""
    by_path = {(row["path"], row["gbps"]): row for row in rows}

    def against(row: dict[str, Any]) -> dict[str, Any]:
        dense = by_path.get(("switch-dense", row["gbps"]))
        # If gloo's links could not be shaped, its only row serves all rates.
        gloo = by_path.get(("gloo", row["gbps"])) or by_path.get(("gloo", None))
        return {
            **row,
            "speedup_over_dense": _ratio(dense, row, "iteration_ms"),
            "speedup_over_gloo": _ratio(gloo, row, "iteration_ms"),
            "aggregation_over_dense": _ratio(dense, row, "aggregation_ms"),
            "aggregation_over_gloo": _ratio(gloo, row, "aggregation_ms"),
            "cpu_of_gloo": _ratio(row, gloo, "cpu_ms"),
        }

    return [against(row) for row in sorted(rows, key=lambda row: row["gbps"] or 0)]


def _ratio(slow: dict[str, Any] | None, quick: dict[str, Any] | None, key: str) -> float | None:
    if slow is None or quick is None or not quick[key]:
        return None
    return float(round(slow[key] / quick[key], 3))
