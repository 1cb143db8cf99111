"""The `peelsum` command's way in: quiet from the first moment, so it imports next to nothing itself."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line. Ctrl-C while it loads, or is about to be over, ends it without a traceback."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    quietly = signal.SIG_IGN if on_interrupt is signal.SIG_IGN else signal.SIG_DFL
    signal.signal(signal.SIGINT, quietly)
    from peelsum.cli.app import run

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        run()
    finally:
        signal.signal(signal.SIGINT, quietly)
