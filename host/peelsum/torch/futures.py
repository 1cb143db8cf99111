"""From the futures of threads to those of torch, on which C++ and streams can wait."""

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
    """Have `future` end when `done` does: with `value`, or with the error, of whatever kind that is.

    after_error: the value to end with after an error, of which somebody else tells. The future that is
    returned ends as `done` does, after everything that hangs on `future` has been called.
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
                # Not a result, says mypy; but this is how torch has it documented.
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
    """Torch takes no other than an Exception."""
    if isinstance(error, Exception):
        return error
    wrapped = HookFailedError(f"sum: ended by {type(error).__name__} ({error}); start training again")
    wrapped.__cause__ = error
    return wrapped
