"""The modelled time of a step's exchanges on a given link, by the cost model of `peelsum plan`.

Each path has collectives of its own. A row takes the path on which compression and network together are
fastest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peelsum.bench.accuracy.in_process import Traffic
from peelsum.bench.accuracy.training import Run
from peelsum.flexible import COLLECTIVES, LinkModel, SwitchPath

_WORD_BYTES = 4
#: Reductions over a process group, by the path's name.
_REDUCTIONS = {"ring": COLLECTIVES["all_reduce_ring"], "tree": COLLECTIVES["all_reduce_tree"]}


@dataclass(frozen=True)
class Path:
    """One way to sum, and what a step takes on it. There is no overlap with computation."""

    name: str
    """By what words are summed: "switch", "ring" or "tree".

    "float ring" and "float tree" sum dense gradients without encoding them. "all_gather" sends every worker's
    values and positions to all others.
    """
    compress_s: float
    """Measured seconds of encoding and decoding."""
    network_s: float
    """Modelled seconds of the exchanges."""

    @property
    def seconds(self) -> float:
        """Seconds of both."""
        return self.compress_s + self.network_s


def fastest(run: Run, link: LinkModel) -> Path:
    """Return the fastest path of a run's steps, mean over steps."""
    return min(_paths(run, link), key=lambda path: path.seconds)


def _paths(run: Run, link: LinkModel) -> Iterator[Path]:
    """Yield the paths on which a run's payloads can travel.

    Dense gradients also travel as floats, without encoding. Values and positions can also be gathered.
    """
    traffic, workers = run.traffic, run.setting.workers
    done = max(run.done, 1)
    switch = SwitchPath().network(link)
    words = traffic.summed_words + traffic.broadcast_words
    gathered = _gathered_s(traffic, link, workers)
    yield Path("switch", run.compress_s, (switch.seconds(words, traffic.exchanges) + gathered) / done)
    for name, reduction in _REDUCTIONS.items():
        network = reduction(link, workers)
        broadcast = COLLECTIVES["broadcast"](link, workers)
        seconds = network.seconds(traffic.summed_words, traffic.parts) + gathered
        seconds += broadcast.seconds(traffic.broadcast_words, traffic.broadcasts)
        yield Path(name, run.compress_s, seconds / done)
        if run.kind == "dense":
            yield Path(f"float {name}", 0.0, network.seconds(run.elements, 1))
    if run.kind == "indexed":
        gather = COLLECTIVES["all_gather"](link, workers)
        yield Path("all_gather", run.compress_s, gather.seconds(run.payload_bytes / _WORD_BYTES / done, 1))


def _gathered_s(traffic: Traffic, link: LinkModel, workers: int) -> float:
    """Return the seconds of gathers, each of lengths and then of bytes."""
    network = COLLECTIVES["all_gather"](link, workers)
    return network.seconds(traffic.gathered_bytes / _WORD_BYTES, 2 * traffic.gathers)
