"""A training process with one rank in the test's own process, and sums that can fail."""

import gc
import threading
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist
from patience import PATIENCE_S
from torch.distributed import HashStore  # not exported, but documented

from peelsum.torch import hook


@contextmanager
def group_of_one():
    """This process as the only rank of torch.distributed."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Sums:
    """A backend of one worker, of which call number `fails_at` raises `error`."""

    lanes, workers, worker_id = 32, 1, 0

    def __init__(self, fails_at=-1, error=None):
        self.calls, self.fails_at, self.error = 0, fails_at, error
        self.closed = threading.Event()

    def sum_words(self, parts):
        self.calls += 1
        if self.calls > self.fails_at >= 0:
            raise self.error
        results = [part.words.copy() for part in parts]
        for part, result in zip(parts, results, strict=True):
            if part.check is not None:
                part.check(result)
        return results

    def close(self):
        self.closed.set()


def hooked(state, module):
    """The module under DDP, in several buckets, with the hook."""
    ddp = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=1e-4)
    ddp.register_comm_hook(state, hook)
    return ddp


def layers():
    """Return three layers, which make three buckets."""
    return torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(3)))


def in_time(work):
    """Return what `work` returns, or raise what it raises; TimeoutError if it hangs."""
    outcome = []

    def run():
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if not outcome:
        raise TimeoutError(f"nothing came within {PATIENCE_S:g} s")
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def summing_threads():
    """Those of the hook."""
    return [one for one in threading.enumerate() if one.name.startswith("peelsum sums")]


def let_go(reference):
    """Return whether an object is collected within `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while reference() is not None and time.monotonic() < deadline:
        gc.collect()
    return reference() is None
