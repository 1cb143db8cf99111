"""Makes processes that start together compile in turn: all but the first find Numba's cache filled."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from peelsum.forks import keep_from_children

#: Seconds of waiting before a message says so, and between two. Loading compiled code takes less.
BEAT_S = 2.0
_PAUSE_S = 0.02
_log = logging.getLogger("peelsum")


class _Reporter:
    tell: Callable[[str], None] = staticmethod(_log.warning)


def announce(tell: Callable[[str], None]) -> None:
    """Call `tell` with messages on waiting, instead of the logger `peelsum`."""
    _Reporter.tell = staticmethod(tell)


def cache_of(function: Any) -> str:
    """Return the folder in which Numba caches a compiled function; empty if it is not compiled."""
    return str(function.stats.cache_path) if hasattr(function, "stats") else ""


@contextmanager
def first_alone(folder: str | Path, what: str) -> Iterator[None]:
    """Run the body at once if no other process runs such a body; otherwise after the first one has ended.

    folder: Numba's cache of `what`, the same for all processes. Processes that waited run side by side. If
    the folder cannot be locked, the body runs at once.
    """
    with ExitStack() as held:
        with suppress(ImportError, OSError):
            if folder:
                Path(folder).mkdir(parents=True, exist_ok=True)
                lock = held.enter_context((Path(folder) / ".peelsum.lock").open("ab"))
                keep_from_children(lock)
                held.callback(_unlock, lock)
                if not _locked(lock, alone=True):
                    _wait(lock, what)
        yield


def _locked(lock: IO[bytes], *, alone: bool) -> bool:
    import fcntl  # not on Windows, where the body runs at once

    try:
        fcntl.flock(lock, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(lock: IO[bytes]) -> None:
    """Release the lock. Closing it would not while a child, just forked, still has it open, too."""
    import fcntl

    fcntl.flock(lock, fcntl.LOCK_UN)


def _wait(lock: IO[bytes], what: str) -> None:
    since = told_at = time.monotonic()
    while not _locked(lock, alone=False):
        time.sleep(_PAUSE_S)
        now = time.monotonic()
        if now - told_at >= BEAT_S:
            told_at = now
            _Reporter.tell(f"another process compiles the {what}, once for this machine: {now - since:.0f} s")
