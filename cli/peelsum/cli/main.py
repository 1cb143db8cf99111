"""The entry point of `peelsum`. It imports little itself, so that Ctrl-C is quiet from the start."""

from __future__ import annotations

import signal
import sys

from peelsum.extras import missing

#: The extra that installs each package, by import name.
_EXTRAS = dict.fromkeys(("finsy", "google", "grpc", "pydantic", "rich", "typer"), "cli")
_EXTRAS |= dict.fromkeys(("cryptography", "prometheus_client", "structlog"), "ops")


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, even while it loads or exits."""
    try:
        _main()
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _EXTRAS:
            raise
        print(f"peelsum: {missing(package, _EXTRAS[package])}", file=sys.stderr)
        sys.exit(2)


def _main() -> None:
    on_interrupt = signal.getsignal(signal.SIGINT)
    quietly = signal.SIG_IGN if on_interrupt is signal.SIG_IGN else signal.SIG_DFL
    signal.signal(signal.SIGINT, quietly)
    from peelsum.cli.app import run

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        run()
    finally:
        signal.signal(signal.SIGINT, quietly)
