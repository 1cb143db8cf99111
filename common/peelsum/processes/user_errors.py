"""User errors at the command line: one line on stderr, exit status 2, no traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from peelsum.processes.errors import ProcessError
from peelsum.processes.interrupts import Interrupted

OUTPUT_LOST = 1
USER_ERROR = 2
INTERRUPTED = 130
#: Errors of a write to an open file that has no space left, or no reader.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


@contextmanager
def reported(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds, and of child processes, into one line and exit status 2.

    A signal becomes the exit status that shells expect.
    """
    caught: tuple[type[Exception], ...] = (*kinds, ProcessError)
    try:
        yield
    except caught as error:
        print(f"peelsum: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(USER_ERROR) from None
    except KeyboardInterrupt as stopped:
        status = stopped.status if isinstance(stopped, Interrupted) else INTERRUPTED
        raise SystemExit(status) from None


@contextmanager
def delivered() -> Iterator[None]:
    """Exit with status 1 and one line on stderr if stdout does not accept what the body prints.

    A reader that closed the pipe, as `head` does, causes the exit status but no line.
    """
    lost = None
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        lost = error
    finally:
        refused = _undelivered()
        lost = lost or refused
        if lost is not None:
            if lost.errno != errno.EPIPE:
                print(f"peelsum: stdout: {lost.strerror}; write it elsewhere", file=sys.stderr)
            raise SystemExit(OUTPUT_LOST) from None


def _undelivered() -> OSError | None:
    """Flush stdout; return the error, if any, after dropping what could not be written."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Otherwise the interpreter tries again at its end, and prints a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None
