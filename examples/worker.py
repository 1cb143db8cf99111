"""One worker of a job: sums one sparse gradient with the job's other workers.

    python examples/worker.py ADMISSION WORKER_ID SWITCH_PORT

ADMISSION is a file with the output of `peelsum job admit --json`, SWITCH_PORT the host:port to connect to.
"""

import json
import sys
from pathlib import Path

import numpy as np

from peelsum.allreduce import Allreduce, AllreduceError
from peelsum.transport import SwitchSummation, TransportError, job_config


def gradient(worker_id: int) -> np.ndarray:
    """Return an embedding's gradient, float32[1000, 64]: a row that all workers share, and one of its own."""
    rows = np.zeros((1000, 64), np.float32)
    rows[7] = worker_id + 1
    rows[100 + worker_id] = 0.5
    return rows


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit("usage: worker.py ADMISSION WORKER_ID SWITCH_PORT, such as admission.json 0 127.0.0.1:41001")
    path, number, switch_port = sys.argv[1:]
    host, _, port = switch_port.rpartition(":")
    if not (number.isdecimal() and host and port.isdecimal()):
        sys.exit(f"{number} {switch_port}: give the worker's number and host:port, such as 0 127.0.0.1:41001")
    try:
        admission = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not JSON ({error})"
        sys.exit(f"{path}: {reason}; give a file of what `peelsum job admit --json` printed")
    try:
        work(admission, int(number), (host, int(port)))
    except (AllreduceError, TransportError) as error:
        sys.exit(f"worker {number}: {error}")


def work(admission: dict, worker_id: int, switch: tuple[str, int]) -> None:
    """Sum with the other workers, and print the result."""
    with SwitchSummation(job_config(admission), worker_id, switch) as summation:
        result = Allreduce(summation, forms={"embedding": "sparse"}).sum({"embedding": gradient(worker_id)})
    embedding = result["embedding"]
    print(
        f"worker {worker_id}: row 7 sums up to {embedding.values[7, 0]:g}; "
        f"{embedding.density:.1%} is not zero; "
        f"sent {result.wire_bytes:,} bytes, dense would be {result.dense_bytes:,}"
    )


if __name__ == "__main__":
    main()
