"""Report user errors of commands: one line on stderr and exit status 2, without a traceback."""

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
#: Errors of a write to an open file: the disk is full, or the reader of the pipe has closed it.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


@contextmanager
def exit_on_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Exit with one line on stderr and status 2 if the body raises one of these errors, or a ProcessError.

    If a signal interrupts the body, exit with the status that shells expect.
    """
    error_types: tuple[type[Exception], ...] = (*kinds, ProcessError)
    try:
        yield
    except error_types as error:
        print(f"peelsum: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(USER_ERROR) from None
    except KeyboardInterrupt as interrupt:
        status = interrupt.status if isinstance(interrupt, Interrupted) else INTERRUPTED
        raise SystemExit(status) from None


@contextmanager
def check_stdout() -> Iterator[None]:
    """Exit with status 1 and one line on stderr if the output of the body cannot be written to stdout.

    If the reader has closed the pipe, as `head` does, exit with status 1 but without the line.
    """
    failure = None
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        failure = error
    finally:
        flush_error = _flush_stdout()
        failure = failure or flush_error
        if failure is not None:
            if failure.errno != errno.EPIPE:
                print(f"peelsum: stdout: {failure.strerror}; write it elsewhere", file=sys.stderr)
            raise SystemExit(OUTPUT_LOST) from None


def _flush_stdout() -> OSError | None:
    """Flush stdout. If that fails, drop the output that could not be written, and return the error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Otherwise the interpreter would try again at its exit, and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None
