"""Worker processes that sum seeded words over a network on each command, timed and checked.

This module is also the program of a worker. The check is plain NumPy, in 64 bits.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import Value
from peelsum.allreduce import Part
from peelsum.processes import Child, print_message, receive_from_parent
from peelsum.processes.children import gather_reports
from peelsum.processes.progress import compile_progress_reporter
from peelsum.processes.user_errors import exit_on_errors
from peelsum.topology import Star
from peelsum.transport import TransportError
from peelsum.transport.seats import plug_in

#: Sums that are not timed.
WARM_UPS = 2
#: Seconds within which a worker must finish a sum; otherwise the run fails.
_PATIENCE_S = 120.0


def started(stack: ExitStack, seats: Iterable[Mapping[str, Any]], *, elements: int, seed: int) -> list[Child]:
    """Start a worker in each seat, until `stack` closes; return them when all are ready."""
    workers = []
    for seat in seats:
        arguments = json.dumps({"seat": seat, "elements": elements, "seed": seed})
        command = [sys.executable, "-m", "benchmarks.summing_workers", arguments]
        # In a sum it does not read its input, and would outlive a killed parent until the sum stalls.
        workers.append(Child(f"worker {seat['worker_id']}", command, foreign=True))
        stack.callback(workers[-1].stop)
    for worker in workers:
        worker.ready()
    return workers


def one_sum(workers: Sequence[Child], *, again: bool = True) -> list[dict[str, Any]]:
    """Have all workers do a sum; return the seconds and wrong words of each.

    again: False lets them leave their job instead; returned are each one's counters.
    """
    for worker in workers:
        worker.send(again=again)
    return gather_reports(workers, timeout_s=_PATIENCE_S)


def sum_repeatedly(star: Star, *, elements: int, seed: int, seconds: float) -> tuple[dict[str, Value], float]:
    """Sum words over a star again and again; return figures, and the packets of a worker in a sum.

    The first WARM_UPS sums are not timed, but their packets count. Raises ProcessError.
    """
    sums: list[list[dict[str, Any]]] = []
    with star, ExitStack() as stack:
        workers = started(stack, map(asdict, star.seats), elements=elements, seed=seed)
        ends = time.monotonic() + seconds
        while len(sums) <= WARM_UPS or time.monotonic() < ends:
            sums.append(one_sum(workers))
        counts = one_sum(workers, again=False)
    slowest = [max(line["seconds"] for line in lines) for lines in sums[WARM_UPS:]]
    assert star.report is not None
    server = star.report.server
    chunks = server["chunks_in_switch"] + server["chunks_at_server"]
    sent = sum(worker["contributions"] + worker["resends"] for worker in counts)
    figures: dict[str, Value] = {
        "goodput_gbit_s": 32 * elements * len(slowest) / sum(slowest) / 1e9,
        "in_switch": server["chunks_in_switch"] / max(1, chunks),
        "packets_over_least": sent / max(1, len(workers) * chunks),
        "window_cuts": sum(worker["window_cuts"] for worker in counts),
        "wrong": sum(line["wrong"] for lines in sums for line in lines),
    }
    return figures, sent / len(workers) / len(sums)


def words_of(elements: int, seed: int, worker_id: int) -> NDArray[np.uint32]:
    """Return worker `worker_id`'s words uint32[elements]; every process computes the same ones."""
    return np.random.default_rng([seed, worker_id]).integers(0, 1 << 32, elements, np.uint32)


def expected(elements: int, seed: int, workers: int) -> NDArray[np.uint32]:
    """Return the sum of all workers' words, modulo 2**32."""
    total = np.zeros(elements, np.uint64)
    for worker_id in range(workers):
        total += words_of(elements, seed, worker_id)
    return (total % (1 << 32)).astype(np.uint32)


def run(seat: Mapping[str, Any], *, elements: int, seed: int) -> None:
    """Join the job of `seat`; print a line for every sum, and the endpoint's counters at the end."""
    with plug_in(seat) as summation:
        words = words_of(elements, seed, summation.worker_id)
        right = expected(elements, seed, summation.workers)
        print_message(ready=True)
        while receive_from_parent()["again"]:
            started = time.perf_counter()
            (total,) = summation.sum_words([Part(words, "add")])
            elapsed = time.perf_counter() - started
            print_message(seconds=elapsed, wrong=int(np.count_nonzero(total != right)))
        stats = summation.stats()
    print_message(**asdict(stats))


if __name__ == "__main__":
    compile_progress_reporter(child=True)
    with exit_on_errors(TransportError):
        run(**json.loads(sys.argv[1]))
