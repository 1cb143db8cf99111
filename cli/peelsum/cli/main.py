"""The entry point of `peelsum`. It imports little, so that its handling of Ctrl-C starts early."""

from __future__ import annotations

import signal
import sys

from peelsum.extras import missing_extra_message

#: The extra that installs each package, by import name.
_EXTRAS = dict.fromkeys(("finsy", "google", "grpc", "pydantic", "rich", "typer"), "cli")
_EXTRAS |= dict.fromkeys(("cryptography", "prometheus_client", "structlog"), "ops")


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, even while modules load or at exit.

    A missing package becomes one line that names the extra to install.
    """
    try:
        _run()
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _EXTRAS:
            raise
        print(f"peelsum: {missing_extra_message(package, _EXTRAS[package])}", file=sys.stderr)
        sys.exit(2)


def simple_switch_grpc() -> None:
    """Run `peelsum simple-switch`: the entry point of `peelsum_simple_switch_grpc`."""
    sys.argv.insert(1, "simple-switch")
    main()


def _run() -> None:
    """Import the command line and run it, with the default handling of Ctrl-C before and after."""
    handler = signal.getsignal(signal.SIGINT)
    without_traceback = signal.SIG_IGN if handler is signal.SIG_IGN else signal.SIG_DFL
    signal.signal(signal.SIGINT, without_traceback)
    from peelsum.cli import app

    signal.signal(signal.SIGINT, handler)
    try:
        app.run()
    finally:
        signal.signal(signal.SIGINT, without_traceback)
