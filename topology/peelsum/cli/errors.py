"""User errors at the command line: one line on stderr, exit status 2, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

USER_ERROR = 2
INTERRUPTED = 130


@contextmanager
def reported(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into their message and exit status 2; Ctrl-C into 130."""
    try:
        yield
    except kinds as error:
        print(f"peelsum: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(USER_ERROR) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
