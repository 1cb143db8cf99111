"""Futures and works of torch, for Python and C++ to wait for, from `concurrent.futures` and from gloo."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from peelsum.torch.errors import CallTimeoutError, HookFailedError

T = TypeVar("T")


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


def future_of(tensors: Sequence[torch.Tensor]) -> torch.futures.Future[list[torch.Tensor]]:
    """Return a future that tensors on these tensors' devices can complete."""
    return torch.futures.Future(devices=sorted({one.device for one in tensors if one.is_cuda}, key=str))


class Submitted(dist.Work):
    """A running call, for which Python or C++ can wait. Its time limit begins here."""

    def __init__(
        self, done: Future[None], tensors: Sequence[torch.Tensor], name: str, limit: timedelta
    ) -> None:
        super().__init__()
        self._done, self._tensors, self._name, self._limit = done, list(tensors), name, limit
        self._deadline = time.monotonic() + limit.total_seconds()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the call is done, at most up to its own limit, and for `timeout` if that is above zero.

        Raises what the call raised, or CallTimeoutError. After that, the call goes on: wait for it again.
        """
        left = self._deadline - time.monotonic()
        own = timedelta(0) < timeout and timeout.total_seconds() < left
        left = max(0.0, min(timeout.total_seconds() if own else left, threading.TIMEOUT_MAX))
        if not concurrent.futures.wait([self._done], left).done:
            limit = timeout if own else self._limit
            raise CallTimeoutError(
                f"{self._name}: not done within its timeout of {limit.total_seconds():g} s; see that all "
                "ranks make the same calls, or give it a longer one"
            )
        self._done.result()
        return True

    def is_completed(self) -> bool:
        """Return whether `wait` would return, or raise, at once."""
        return self._done.done()

    def is_success(self) -> bool:
        """Return whether the call has succeeded."""
        return self._done.done() and self._done.exception() is None

    def exception(self) -> Any:
        """Return what the call raised, or None."""
        return self._done.exception() if self._done.done() else None

    def result(self) -> list[torch.Tensor]:
        """Return the tensors, once the call is done."""
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future for the tensors."""
        future = future_of(self._tensors)
        pass_on(self._done, future, lambda: self._tensors)
        return future


class Finished(dist.Work):
    """A work of gloo, after which `finish` runs once, in the first thread that waits."""

    def __init__(
        self, work: Any, tensors: Sequence[torch.Tensor], finish: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self._work, self._tensors, self._finish = work, list(tensors), finish
        self._lock, self._is_finished = threading.Lock(), False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait as the work does, then finish it. Raises what the work raised."""
        done: bool = self._work.wait(timeout)
        with self._lock:
            if not self._is_finished:
                self._finish()
            self._is_finished = True
        return done

    def is_completed(self) -> bool:
        """Return whether the work is done, so that `wait` does not wait."""
        done: bool = self._work.is_completed()
        return done

    def is_success(self) -> bool:
        """Return whether the work has succeeded."""
        success: bool = self._work.is_success()
        return success

    def exception(self) -> Any:
        """Return what the work raised, or None."""
        return self._work.exception()

    def result(self) -> list[torch.Tensor]:
        """Return the tensors, once the work is done."""
        self.wait()
        return self._tensors

    def _source_rank(self) -> int:
        rank: int = self._work._source_rank()
        return rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future for the tensors."""
        future = future_of(self._tensors)

        def complete() -> None:
            try:
                self.wait()
                future.set_result(self._tensors)
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]  # see `pass_on`

        # Not every work of gloo has a future of its own.
        threading.Thread(target=complete, name="peelsum waits", daemon=True).start()
        return future
