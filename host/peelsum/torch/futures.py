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
) -> None:
    """Have `future` end when `done` does: with `value`, or with the error, of whatever kind that is.

    after_error: the value to end with after an error, of which somebody else tells.
    """

    def tell(done: Future[None]) -> None:
        error = done.exception()
        if error is None:
            future.set_result(value())
            return
        if after_error is not None:
            future.set_result(after_error())
            return
        if not isinstance(error, Exception):  # torch takes no other
            wrapped = HookFailedError(f"sum: ended by {type(error).__name__} ({error}); start training again")
            wrapped.__cause__ = error
            error = wrapped
        future.set_exception(error)  # type: ignore[arg-type]  # as in torch's documentation

    done.add_done_callback(tell)
