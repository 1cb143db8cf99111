"""The backward passes of torch's autograd engine: which one runs here, and what follows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

import torch

from peelsum.torch.profiling import profiled


def this_pass() -> int | None:
    """Return torch's id of the backward pass that this thread runs; None outside of any."""
    running = torch._C._current_graph_task_id()
    return None if running == -1 else running


def call_at_end(function: Callable[[], None]) -> None:
    """Call `function` at the end of this thread's backward pass, after callbacks queued before."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def wait_at_end(work: Future[None], waited: Callable[[float], None]) -> None:
    """Wait for work at the end of this thread's backward pass, which then raises the work's error.

    If PyTorch's C++ code waited for the bucket's future instead, the error would lose its type. The error is
    raised after all of DDP's callbacks have run. `waited` is called with the seconds that the pass waited.
    """

    def wait() -> None:
        started = time.perf_counter()
        with profiled("wait"):
            error = work.exception()
        waited(time.perf_counter() - started)
        if error is not None:
            call_at_end(lambda: work.result())

    call_at_end(wait)


class PassCounter:
    """Counts backward passes; one pass through several modules counts once."""

    def __init__(self) -> None:
        self._last_pass: int | None = None

    @property
    def counted(self) -> bool:
        """Whether the current backward pass has been counted already, with another module's buckets."""
        return self._last_pass is not None and self._last_pass == this_pass()

    def count(self) -> bool:
        """Count the current backward pass; return False if it was counted already."""
        if self.counted:
            return False
        self._last_pass = this_pass()
        return True
