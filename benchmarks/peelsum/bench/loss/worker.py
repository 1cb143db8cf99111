"""One worker of `peelsum bench loss`: sum the same seeded words on each command, timed and checked.

`peelsum.bench.loss.rows` runs it as a separate process. The check is plain NumPy, in 64 bits.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Part
from peelsum.topology import hear, say
from peelsum.topology.telling import told_of_compiling
from peelsum.topology.user_errors import reported
from peelsum.transport import TransportError
from peelsum.transport.seats import plug_in


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
        say(ready=True)
        while hear()["again"]:
            started = time.perf_counter()
            (total,) = summation.sum_words([Part(words, "add")])
            elapsed = time.perf_counter() - started
            say(seconds=elapsed, wrong=int(np.count_nonzero(total != right)))
        stats = summation.stats()
    say(**asdict(stats))


def main() -> None:
    """Run the process; its only argument is a JSON object of `run`'s arguments."""
    arguments = json.loads(sys.argv[1])
    told_of_compiling(child=True)
    with reported(TransportError):
        run(arguments.pop("seat"), **arguments)


if __name__ == "__main__":
    main()
