"""`peelsum bench train`: measure a training iteration with the switch, beside dense sums and gloo.

Every worker is a separate process. The switch is the softswitch, on loopback, with rate-limited ports. Gloo's
links are virtual Ethernet, limited to the same rate by token buckets.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from peelsum.bench.devices import require_device
from peelsum.bench.train.worker import FORMS, FP16, HOOK_OVER_GLOO, WorkerOptions
from peelsum.processes import Child
from peelsum.processes.children import gather_reports
from peelsum.topology import Star, TopologyError
from peelsum.topology.namespaces import HOST_INTERFACE, hold_namespace, inside, run

#: Seconds that a sum waits for a worker. At the published sizes, steps take minutes and differ by as much.
_TIMEOUT_SMALL_S, _TIMEOUT_FULL_S = 30.0, 600.0
#: The backends without a switch.
GLOO_PATHS = ["gloo", HOOK_OVER_GLOO, FP16]
#: Times of which a row has those of the slowest worker.
_TIMES = (
    *("iteration", "iteration_least", "iteration_most", "compute", "encode", "network", "decode"),
    "aggregation",
)
_TOOLS = ("ip", "tc", "nsenter")
_MTU = 9000
#: A token bucket holds a millisecond of the rate, and the largest segment that the kernel sends at once.
_SEGMENT_BYTES = 1 << 16
#: Length of a link's queue, in milliseconds of the rate.
_QUEUE_MS = 50


def bench_train(
    options: dict[str, Any], workers: int, gbps: Sequence[float], *, cpu: bool
) -> list[dict[str, Any]]:
    """Measure all backends at each rate; return the rows, compared with each other.

    options: the fields of `WorkerOptions` that are the same for all workers. cpu: whether to compare CPU
    time, without rates. Raises ProcessError if a process fails, and NoDeviceError if the device is missing.
    """
    require_device(options["device"])
    rates: list[float | None] = [None] if cpu else list(gbps)
    timeout_s, rows = _TIMEOUT_SMALL_S if options["small"] else _TIMEOUT_FULL_S, list[dict[str, Any]]()
    with ExitStack() as links:
        lan = None
        if not cpu:  # namespaces must exist before this process starts threads
            try:
                lan = links.enter_context(ShapedLan(workers))
            except TopologyError as error:
                sys.stderr.write(f"gloo is measured at no set rate, and not compared: {error}\n")
        with ExitStack() as stack:
            children = _start_workers(stack, options, workers, None)
            for rate in rates:
                with Star(workers, rate_mbit=rate and 1000 * rate, timeout_s=timeout_s) as star:
                    shaped = {"gbps": rate, "shaped_by": "switch ports" if rate else None}
                    rows += [row | shaped for row in _measure_paths(children, list(FORMS), star)]
        with ExitStack() as stack:
            children = _start_workers(stack, options, workers, lan)
            for rate in rates if lan else [None]:
                if lan and rate:
                    lan.shape(rate)
                shaped = {"gbps": rate, "shaped_by": "namespaces" if lan else None}
                rows += [row | shaped for row in _measure_paths(children, GLOO_PATHS, None)]
        return compared(rows)


def _start_workers(
    stack: ExitStack, options: dict[str, Any], workers: int, lan: ShapedLan | None
) -> list[Child]:
    """Start the workers; return them when all are ready for requests."""
    store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peelsum-"))) / "gloo"
    network: dict[str, Any] = {"store": str(store), "interface": HOST_INTERFACE if lan else "lo"}
    children = []
    for rank in range(workers):
        arguments = WorkerOptions(rank=rank, workers=workers, **network, **options)
        command = [sys.executable, "-m", "peelsum.bench.train.worker", json.dumps(asdict(arguments))]
        child = Child(f"worker {rank}", [*(lan.prefix(rank) if lan else []), *command])
        stack.callback(child.stop)
        children.append(child)
    gather_reports(children)
    return children


def _measure_paths(
    children: Sequence[Child], paths: list[str], star: Star | None
) -> Iterator[dict[str, Any]]:
    """Have the workers measure some backends; yield the row of each."""
    for rank, child in enumerate(children):
        seat = None if star is None else asdict(star.seats[rank])
        child.send(paths=paths, seat=seat, switch_pids=star.process_ids if star and rank == 0 else [])
    for _ in paths:
        yield _row(gather_reports(children, star.check) if star else gather_reports(children))


def _row(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a backend's row: times of the slowest worker, sums of processor times, mean densities."""

    def values(name: str) -> list[float]:
        return [report[name] for report in reports]

    wrong = [report["wrong"] for report in reports if report["wrong"] is not None]
    bits, first = 32 * reports[0]["elements"], reports[0]
    times = {f"{name}_ms": round(1e3 * max(values(f"{name}_s")), 2) for name in _TIMES}
    return {
        "path": first["path"],
        "form": first["form"],
        "density_worker": round(sum(values("density_worker")) / len(reports), 5),
        "density_union": round(first["density_union"], 5),
        "bytes_per_step": round(max(values("bytes_sent"))),
        **times,
        "aggregation_gbps": round(bits / max(values("aggregation_s")) / 1e9, 4),
        "exact": not any(wrong) if wrong else None,
        "cpu_ms": round(1e3 * sum(values("cpu_s") + values("switch_cpu_s")), 2),
        "switch_cpu_ms": round(1e3 * sum(values("switch_cpu_s")), 2),
    }


def compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows sorted by rate, with their speedups over dense sums and over gloo."""
    by_path, by_rate = {(row["path"], row["gbps"]): row for row in rows}, []
    for row in sorted(rows, key=lambda row: row["gbps"] or 0):
        dense = by_path.get(("switch-dense", row["gbps"]))
        # If gloo's links could not be shaped, only the rows over gloo have one to compare with.
        gloo = by_path.get(("gloo", row["gbps"]))
        ratios = {
            "speedup_over_dense": _ratio(dense, row, "iteration_ms"),
            "speedup_over_gloo": _ratio(gloo, row, "iteration_ms"),
            "aggregation_over_dense": _ratio(dense, row, "aggregation_ms"),
            "aggregation_over_gloo": _ratio(gloo, row, "aggregation_ms"),
            "cpu_of_gloo": _ratio(row, gloo, "cpu_ms"),
        }
        by_rate.append(row | ratios)
    return by_rate


def _ratio(numerator: dict[str, Any] | None, denominator: dict[str, Any] | None, key: str) -> float | None:
    if numerator is None or denominator is None or not denominator[key]:
        return None
    return float(round(numerator[key] / denominator[key], 3))


class ShapedLan:
    """`workers` namespaces, connected by a bridge in another one.

    Entering it raises TopologyError if a tool is missing or the process lacks permission.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for tool in _TOOLS:
            if shutil.which(tool) is None:
                raise TopologyError(f"{tool}: not found on PATH; install iproute2 and util-linux")
        with self._stack:
            self._bridge, *self._pids = [hold_namespace(self._stack) for _ in range(self._workers + 1)]
            _ip(self._bridge, "link add bridge type bridge", f"link set bridge mtu {_MTU} up")
            for worker, pid in enumerate(self._pids):
                self._connect(worker, pid)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def prefix(self, worker: int) -> list[str]:
        """Return what to put before a command to run it in a worker's namespace, which has HOST_INTERFACE."""
        return inside(self._pids[worker])

    def shape(self, gbps: float) -> None:
        """Limit every link to `gbps` Gbit/s in each direction."""
        rate_bit = int(gbps * 1e9)
        burst = str(_SEGMENT_BYTES + rate_bit // 8000)
        bucket = ["tbf", "rate", f"{rate_bit}bit", "burst", burst, "latency", f"{_QUEUE_MS}ms"]
        ends = [(self._bridge, f"w{worker}") for worker in range(self._workers)]
        for pid, name in [*ends, *((pid, HOST_INTERFACE) for pid in self._pids)]:
            run(f"link {name}", *inside(pid, "tc", "qdisc", "replace", "dev", name, "root", *bucket))

    def _connect(self, worker: int, pid: int) -> None:
        """Connect a worker's HOST_INTERFACE to the bridge; links have no rate until `shape` sets one."""
        name, end = f"w{worker}", HOST_INTERFACE
        _ip(
            self._bridge,
            f"link add {name} type veth peer name {end} netns {pid}",
            f"link set {name} mtu {_MTU} master bridge up",
        )
        address = f"address add 10.0.0.{worker + 1}/24 dev {end}"
        _ip(pid, address, f"link set {end} mtu {_MTU} up", "link set lo up")


def _ip(pid: int, *commands: str) -> None:
    """Run commands of `ip` in the namespace of process `pid`. Raises TopologyError."""
    run("links of gloo", *inside(pid, "ip", "-batch", "-"), stdin="\n".join(commands))
