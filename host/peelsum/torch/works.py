"""What calls of a process group return: `torch.distributed.Work`, for Python and C++ to wait for."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from peelsum.torch.errors import CallTimeoutError
from peelsum.torch.futures import pass_on


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
                future.set_exception(error)  # type: ignore[arg-type]  # see `futures`

        # Not every work of gloo has a future of its own.
        threading.Thread(target=complete, name="peelsum waits", daemon=True).start()
        return future
