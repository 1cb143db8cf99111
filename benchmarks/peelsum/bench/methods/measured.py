"""The cost model against measurements: collectives over links of several rates and latencies.

Latency and rate are measured by messages from one worker to another; the model predicts the rest from them.
Workers are namespaces behind a relay, or processes behind the softswitch's ports, which have the same links.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from peelsum.bench.methods.lan import RelayedLan
from peelsum.flexible import COLLECTIVES, LinkModel
from peelsum.topology import Child, TopologyError
from peelsum.topology.namespaces import HOST_INTERFACE

#: Seconds that workers have to prepare a collective, and within which it must end.
_AHEAD_S, _PATIENCE_S = 0.03, 60.0
_REPEATS, _PROBE_WORDS = 3, 1 << 17


@dataclass(frozen=True)
class Grid:
    """What to measure: every combination."""

    workers: tuple[int, ...] = (2, 4)
    mbit: tuple[float, ...] = (20.0, 100.0)
    delays_ms: tuple[float, ...] = (0.0, 2.0, 10.0)
    words: tuple[int, ...] = (1_000, 25_000, 100_000)


@dataclass(frozen=True)
class MeasuredRow:
    """One collective, as predicted and as measured."""

    collective: str
    workers: int
    mbit: float
    """Rate of every link, in Mbit/s."""
    delay_ms: float
    """Delay of every link, in milliseconds."""
    words: int
    """32-bit words of every worker."""
    latency_ms: float
    """Milliseconds that a short message took."""
    gbps: float
    """Rate of a long message, in Gbit/s."""
    predicted_ms: float
    """By the cost model, from latency and rate."""
    measured_ms: float
    """Median of three, each until the slowest worker was done."""
    error: float
    """`predicted_ms` over `measured_ms`, less 1."""
    wrong: int
    """Elements of sums that were wrong, over all workers."""


def measure(grid: Grid) -> Iterator[MeasuredRow]:
    """Measure the collectives of every combination. Raises TopologyError where namespaces cannot be made."""
    with ExitStack() as stack:
        lans = [stack.enter_context(RelayedLan(workers)) for workers in grid.workers]
        for lan, workers in zip(lans, grid.workers, strict=True):
            with ExitStack() as processes:
                lan.shape(1.0)
                children = _started(processes, lan, workers)
                for mbit in grid.mbit:
                    for delay_ms in grid.delays_ms:
                        lan.shape(mbit / 1e3, delay_ms / 1e3)
                        yield from _rows(children, grid, mbit, delay_ms)


def _rows(children: Sequence[Child], grid: Grid, mbit: float, delay_ms: float) -> Iterator[MeasuredRow]:
    link = _link(children)
    for words in grid.words:
        for name in _MODELS:
            seconds, wrong = _seconds(children, name, words)
            predicted = predict(name, link, len(children), words)
            yield MeasuredRow(
                collective=name,
                workers=len(children),
                mbit=mbit,
                delay_ms=delay_ms,
                words=words,
                latency_ms=round(1e3 * link.latency_s, 4),
                gbps=round(link.gbps, 6),
                predicted_ms=round(1e3 * predicted, 3),
                measured_ms=round(1e3 * seconds, 3),
                error=round(predicted / seconds - 1, 4),
                wrong=wrong,
            )


#: The collectives in a row of each that is measured.
_MODELS: dict[str, tuple[str, ...]] = {
    "broadcast": ("broadcast",),
    "all_gather": ("all_gather",),
    "all_reduce_ring": ("all_reduce_ring",),
    "all_reduce_tree": ("all_reduce_tree",),
    "ar_top_k_ring": ("broadcast", "all_reduce_ring"),
    "ar_top_k_tree": ("broadcast", "all_reduce_tree"),
}


def predict(name: str, link: LinkModel, workers: int, words: int) -> float:
    """Return the seconds of a collective of `words` words by the cost model."""
    return sum(COLLECTIVES[part](link, workers).seconds(words, 1) for part in _MODELS[name])


def _link(children: Sequence[Child]) -> LinkModel:
    """Measure the link by short and long messages; the first ones open connections."""
    for name in _MODELS:
        _once(children, name, _PROBE_WORDS)
    latency_s, _ = _seconds(children, "send", 1)
    long_s, _ = _seconds(children, "send", _PROBE_WORDS)
    return LinkModel(latency_s, 32 * _PROBE_WORDS / max(long_s - latency_s, 1e-9) / 1e9)


def _seconds(children: Sequence[Child], name: str, words: int) -> tuple[float, int]:
    """Return the median time of a collective, until the slowest worker is done, and wrong elements."""
    found = [_once(children, name, words) for _ in range(_REPEATS)]
    return median(seconds for seconds, _ in found), sum(wrong for _, wrong in found)


def _once(children: Sequence[Child], name: str, words: int) -> tuple[float, int]:
    at = time.monotonic() + _AHEAD_S
    for child in children:
        child.tell(name=name, words=words, at=at)
    answers = [child.next_line(_PATIENCE_S) for child in children]
    if None in answers:
        raise TopologyError("a worker ended early; run again, it may have been stopped")
    done = [answer for answer in answers if answer is not None]
    # In a point-to-point message, the sender is done before the receiver.
    return max(one["ended"] for one in done) - at, sum(one["wrong"] for one in done)


def _started(stack: ExitStack, lan: RelayedLan, workers: int) -> list[Child]:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="peelsum-"))
    children = []
    for rank in range(workers):
        job = {
            "rank": rank,
            "workers": workers,
            "store": str(Path(folder) / "gloo"),
            "interface": HOST_INTERFACE,
        }
        command = [sys.executable, "-m", "peelsum.bench.methods.worker", json.dumps(job)]
        child = Child(f"worker {rank}", [*lan.prefix(rank), *command])
        stack.callback(child.stop)
        children.append(child)
    for child in children:
        child.ready()
    return children
