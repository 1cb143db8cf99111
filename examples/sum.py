"""One worker of a network that `peelsum up` started: sums one sparse tensor, and checks the sum.

peelsum up star --detach
for worker in 1 2 3 4; do peelsum exec h$worker -- python examples/sum.py & done; wait
"""

import json
import os
import sys

import numpy as np

from peelsum.allreduce import Allreduce
from peelsum.transport import TransportError, job_config
from peelsum.transport.seats import plug_in

ELEMENTS = 100_000


def gradient(worker_id: int) -> np.ndarray:
    """Return a worker's sparse gradient, float32[ELEMENTS], of integers, which floats add exactly."""
    rng = np.random.default_rng(worker_id)
    values = rng.integers(-1000, 1000, ELEMENTS).astype(np.float32)
    values[rng.random(ELEMENTS) > 0.02] = 0
    return values


def main() -> None:
    if "PEELSUM_SEAT" not in os.environ:
        sys.exit("PEELSUM_SEAT: is not set; start this by `peelsum exec HOST -- python examples/sum.py`")
    seat = json.loads(os.environ["PEELSUM_SEAT"])
    try:
        with plug_in(seat) as summation:
            result = Allreduce(summation).sum({"gradient": gradient(seat["worker_id"])})["gradient"]
    except TransportError as error:
        sys.exit(f"worker {seat['worker_id']}: {error}")
    expected = sum(gradient(worker) for worker in job_config(seat["admission"]).worker_ids)
    exact = np.array_equal(result.values, expected)
    # One write, because workers may share a terminal.
    sys.stdout.write(f"worker {seat['worker_id']}: {'exact' if exact else 'WRONG'}\n")
    sys.exit(not exact)


if __name__ == "__main__":
    main()
