"""User errors at the command line: one line on stderr, exit status 2, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from peelsum.cli.interrupts import Interrupted

USER_ERROR = 2
INTERRUPTED = 130


@contextmanager
def reported(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into their message and exit status 2; a signal into what shells expect."""
    try:
        yield
    except kinds as error:
        print(f"peelsum: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(USER_ERROR) from None
    except KeyboardInterrupt as stopped:
        status = stopped.status if isinstance(stopped, Interrupted) else INTERRUPTED
        raise SystemExit(status) from None
