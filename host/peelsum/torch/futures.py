"""Conversion of `concurrent.futures` futures to torch's, on which C++ and streams can wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from peelsum.torch.errors import HookFailedError

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
