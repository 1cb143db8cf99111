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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from peelsum.bench.devices import require_device
from peelsum.bench.train.links import ShapedLan
from peelsum.bench.train.report import Row, compared
from peelsum.bench.train.worker import FORMS, FP16, HOOK_OVER_GLOO, Job, Measurement
from peelsum.topology import Child, Star, TopologyError
from peelsum.topology.namespaces import HOST_INTERFACE
from peelsum.training import Density, ModelName, densities, make_task, overall

#: Seconds that a sum waits for a worker. At the published sizes, steps take minutes and differ by as much.
_TIMEOUT_SMALL_S, _TIMEOUT_FULL_S = 30.0, 600.0
#: Seconds between two polls of the workers' output.
_POLL_S = 0.05
#: The backends without a switch.
BY_GLOO = ["gloo", HOOK_OVER_GLOO, FP16]
#: Numbers of workers for which the union's density is shown.
UNIONS = (2, 4, 8)


@dataclass(frozen=True)
class Request:
    """The options of the benchmark."""

    model: ModelName
    workers: int = 4
    gbps: tuple[float, ...] = (1.0, 10.0)
    """Link rates to measure, in Gbit/s."""
    small: bool = True
    """Whether to train the small model instead of the published size."""
    path: str | None = None
    """Path of the data; None for data that every machine has."""
    steps: int = 10
    """Timed steps."""
    warm_ups: int = 3
    """Steps before them."""
    seed: int = 0
    top_k: float | None = None
    """Share of elements that `switch` sends; None for all."""
    cpu: bool = False
    """Whether to compare CPU time, without rates."""
    device: str = "cpu"
    """"cpu", or "cuda" for a GPU that all workers share: the model trains there, and gradients are encoded
    there."""


def bench_train(request: Request) -> list[Row]:
    """Measure each rate in turn; return the rows, compared with each other.

    Raises ProcessError if a process fails, and NoDeviceError without the requested device.
    """
    return compared(list(_rows(request)))


def measure_densities(request: Request) -> tuple[str, list[Density]]:
    """Measure every parameter's density: of one worker's gradient, and of the union of UNIONS workers'.

    Return a description of the data, and the densities; the last is that of all parameters.
    """
    task = make_task(request.model, small=request.small, path=request.path, seed=request.seed)
    found = densities(task, UNIONS, seed=request.seed)
    return task.data, [*found, overall(found)]


def _rows(request: Request) -> Iterator[Row]:
    require_device(request.device)
    with ExitStack() as stack:
        # Namespaces must exist before this process starts threads.
        lan = None if request.cpu else _lan(stack, request.workers)
        yield from _by_switch(request)
        yield from _by_gloo(request, lan)


def _lan(stack: ExitStack, workers: int) -> ShapedLan | None:
    """Return links whose rate can be limited; None if there are none."""
    try:
        return stack.enter_context(ShapedLan(workers))
    except TopologyError:
        return None


def _by_switch(request: Request) -> Iterator[Row]:
    timeout_s = _TIMEOUT_SMALL_S if request.small else _TIMEOUT_FULL_S
    with ExitStack() as stack:
        children = _started(stack, request, None)
        for gbps in [None] if request.cpu else request.gbps:
            with Star(request.workers, rate_mbit=gbps and 1000 * gbps, timeout_s=timeout_s) as star:
                for row in _asked(children, request, list(FORMS), star):
                    star.check()
                    yield replace(row, gbps=gbps, shaped_by="switch ports" if gbps else None)


def _by_gloo(request: Request, lan: ShapedLan | None) -> Iterator[Row]:
    with ExitStack() as stack:
        children = _started(stack, request, lan)
        for gbps in request.gbps if lan else [None]:
            if lan and gbps:
                lan.shape(gbps)
            for row in _asked(children, request, BY_GLOO, None):
                yield replace(row, gbps=gbps, shaped_by="namespaces" if lan else None)


def _started(stack: ExitStack, request: Request, lan: ShapedLan | None) -> list[Child]:
    """Start the workers; return them when all are ready for commands."""
    store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peelsum-"))) / "gloo"
    options = {name: getattr(request, name) for name in asdict(request) if name not in ("gbps", "cpu")}
    options |= {"store": str(store), "interface": HOST_INTERFACE if lan else "lo"}
    children = []
    for rank in range(request.workers):
        job = Job(rank=rank, **options)
        command = [sys.executable, "-m", "peelsum.bench.train.worker", json.dumps(asdict(job))]
        child = Child(f"worker {rank}", [*(lan.prefix(rank) if lan else []), *command])
        stack.callback(child.stop)
        children.append(child)
    _answers(children)
    return children


def _asked(children: Sequence[Child], request: Request, paths: list[str], star: Star | None) -> Iterator[Row]:
    for rank, child in enumerate(children):
        seat = None if star is None else asdict(star.seats[rank])
        child.tell(paths=paths, seat=seat, watched=star.process_ids if star and rank == 0 else [])
    for _ in paths:
        yield _row(request, [Measurement(**line) for line in _answers(children)])


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


def _row(request: Request, measured: Sequence[Measurement]) -> Row:
    def slowest(name: str) -> float:
        seconds: list[float] = [getattr(one, name) for one in measured]
        return round(1e3 * max(seconds), 2)

    wrong = [one.wrong for one in measured if one.wrong is not None]
    elements, aggregation_s = measured[0].elements, max(one.aggregation_s for one in measured)
    return Row(
        model=request.model,
        workers=request.workers,
        gbps=None,
        shaped_by=None,
        path=measured[0].path,
        form=measured[0].form,
        density_worker=round(sum(one.density_worker for one in measured) / len(measured), 5),
        density_union=round(measured[0].density_union, 5),
        bytes_per_step=round(max(one.bytes_sent for one in measured)),
        iteration_ms=slowest("iteration_s"),
        iteration_least_ms=slowest("iteration_least_s"),
        iteration_most_ms=slowest("iteration_most_s"),
        compute_ms=slowest("compute_s"),
        encode_ms=slowest("encode_s"),
        network_ms=slowest("network_s"),
        decode_ms=slowest("decode_s"),
        aggregation_ms=slowest("aggregation_s"),
        aggregation_gbps=round(32 * elements / aggregation_s / 1e9, 4),
        exact=not any(wrong) if wrong else None,
        cpu_ms=round(1e3 * sum(one.cpu_s + one.switch_cpu_s for one in measured), 2),
        switch_cpu_ms=round(1e3 * sum(one.switch_cpu_s for one in measured), 2),
    )
