"""One worker of a job, by hand: sums one sparse gradient with the job's other workers.

    python examples/worker.py ADMISSION WORKER_ID SWITCH_PORT

ADMISSION is a file of what `peelsum job admit --json` printed, SWITCH_PORT the host:port to plug into.
"""

import json
import sys
from pathlib import Path

import numpy as np

from peelsum.allreduce import Allreduce
from peelsum.transport import SwitchSummation, job_config


def gradient(worker_id: int) -> np.ndarray:
    """An embedding's, float32[1000, 64]: a row that all workers have seen, and one of this worker's own."""
    rows = np.zeros((1000, 64), np.float32)
    rows[7] = worker_id + 1
    rows[100 + worker_id] = 0.5
    return rows


def main() -> None:
    admission, number, switch_port = sys.argv[1:]
    job = job_config(json.loads(Path(admission).read_text()))
    host, _, port = switch_port.rpartition(":")
    worker_id = int(number)
    with SwitchSummation(job, worker_id, (host, int(port))) as summation:
        result = Allreduce(summation, forms={"embedding": "compact"}).sum({"embedding": gradient(worker_id)})
    embedding = result["embedding"]
    print(
        f"worker {worker_id}: row 7 sums up to {embedding.values[7, 0]:g}; "
        f"{embedding.density:.1%} is not zero; "
        f"sent {result.wire_bytes:,} bytes, dense would be {result.dense_bytes:,}"
    )


if __name__ == "__main__":
    main()
