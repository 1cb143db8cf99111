"""Packets per second of processor time, in the softswitch and in BMv2: `speed_beside_bmv2.py PROGRAM.json`.

BMv2 reads the frames from capture files. It processes all in ingress, and drops those that exceed a queue.
"""

import random
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from bmv2_files import outputs_of

from peelsum.softswitch import Frames, Switch, load

BATCH, BATCHES = 1000, 50


def main(path):
    rng = random.Random(1)
    frames = [(rng.randrange(1, 5), rng.randbytes(128)) for _ in range(BATCH)]
    switch, batch = Switch(load(path)), Frames.of(frames)
    switch.process(batch, 0)
    start = time.process_time()
    for _ in range(BATCHES):
        switch.process(batch, 0)
    print(f"softswitch ({switch.mode}): {BATCH * BATCHES / (time.process_time() - start):,.0f}")
    with tempfile.TemporaryDirectory() as folder:
        sent = outputs_of(path.resolve(), frames * BATCHES, BATCH * BATCHES, Path(folder))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    share = sum(map(len, sent.values())) / (BATCH * BATCHES)
    print(f"BMv2, which sent {share:.0%}: {BATCH * BATCHES / (used.ru_utime + used.ru_stime):,.0f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
