"""The seats that this process holds, each at most once.

A second connection to a seat would look to the switch like an earlier run of the same worker.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from peelsum.torch.errors import HookConfigError

#: How long an unreferenced state may take to leave its seat, in seconds.
_LEAVING_S = 5.0
_held: set[str] = set()
_left = threading.Condition()


@contextmanager
def only_here(seat: str) -> Iterator[None]:
    """Hold a seat in the body. Raises HookConfigError if this process holds it already and keeps it."""
    if seat in _held:
        gc.collect()  # an unreferenced state can be in cycles
    with _left:
        if not _left.wait_for(lambda: seat not in _held, _LEAVING_S):
            raise HookConfigError(
                f"over: this process is {seat} already; share one state between modules, or close the other "
                "state or process group first"
            )
        _held.add(seat)
    try:
        yield
    finally:
        with _left:
            _held.discard(seat)
            _left.notify_all()
