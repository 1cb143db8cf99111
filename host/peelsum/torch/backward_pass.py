"""The backward passes of torch's autograd engine: which one runs here, what follows it, and who waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from peelsum.torch.errors import HookFailedError
from peelsum.torch.profiling import profiled

T = TypeVar("T")


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


def pass_on(
    done: Future[None],
    future: torch.futures.Future[T],
    value: Callable[[], T],
    after_error: Callable[[], T] | None = None,
) -> Future[None]:
    """Complete `future` when `done` completes, with `value` or with the error.

    after_error: the value to complete it with after an error, which the caller then reports in another way.
    Returns a future that completes as `done` does, after all callbacks of `future` have run.
    """
    told: Future[None] = Future()

    def tell(done: Future[None]) -> None:
        error = done.exception()
        try:
            if error is None:
                future.set_result(value())
            elif after_error is not None:
                future.set_result(after_error())
            else:
                # mypy expects a result of type T; torch documents an exception here.
                future.set_exception(_for_torch(error))  # type: ignore[arg-type]
        except Exception as failure:
            error = error or failure
        if error is None:
            told.set_result(None)
        else:
            told.set_exception(error)

    done.add_done_callback(tell)
    return told


def _for_torch(error: BaseException) -> Exception:
    """Return an Exception, the only kind of error that torch accepts."""
    if isinstance(error, Exception):
        return error
    wrapped = HookFailedError(f"sum: ended by {type(error).__name__} ({error}); start training again")
    wrapped.__cause__ = error
    return wrapped
