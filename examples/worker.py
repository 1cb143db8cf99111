"""One worker of a job: sums one sparse gradient with the job's other workers.

python examples/worker.py admission.json 0 127.0.0.1:41001
"""

import argparse
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


def place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: give HOST:PORT, for example 127.0.0.1:41001")
    return host, int(port)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sum one sparse gradient with the job's other workers.")
    parser.add_argument("admission", type=Path, help="file with the output of `peelsum job admit --json`")
    parser.add_argument("worker_id", type=int, help="from 0 on")
    parser.add_argument("switch", type=place, help="host:port of the switch's port to connect to")
    arguments = parser.parse_args()
    try:
        admission = json.loads(arguments.admission.read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        sys.exit(f"{arguments.admission}: {reason}; give a file of what `peelsum job admit --json` printed")
    try:
        work(admission, arguments.worker_id, arguments.switch)
    except KeyboardInterrupt:
        sys.exit(130)
    except (AllreduceError, OSError, TransportError) as error:
        sys.exit(f"worker {arguments.worker_id}: {error}")


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
