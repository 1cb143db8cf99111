"""A worker of a network that is up: sums random words round after round, and compares every bit of every sum.

    python scenario_worker.py FIRST LAST CHUNKS [PAUSE ...]

Sums rounds FIRST to LAST, of so many chunks each. Before each round PAUSE, says so and waits for a line of
input.
"""

import json
import os
import sys

import numpy as np

from peelsum.summation import Part
from peelsum.transport import job_config
from peelsum.transport.seats import plug_in


def words_of(worker, round_, count):
    return np.random.default_rng((worker, round_)).integers(0, 1 << 32, count, np.uint32)


def main():
    first, last, chunks, *pauses = map(int, sys.argv[1:])
    seat = json.loads(os.environ["PEELSUM_SEAT"])
    workers = job_config(seat["admission"]).worker_ids
    with plug_in(seat) as summation:
        count = chunks * summation.lanes
        for round_ in range(first, last + 1):
            if round_ in pauses:
                print(f"before {round_}", flush=True)
                sys.stdin.readline()
            (result,) = summation.sum_words([Part(words_of(seat["worker_id"], round_, count), "add")])
            expected = sum(words_of(worker, round_, count).astype(np.uint64) for worker in workers)
            assert result.tobytes() == expected.astype(np.uint32).tobytes(), f"round {round_} is wrong"
    print("exact")


if __name__ == "__main__":
    main()
