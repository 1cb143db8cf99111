"""Choose where a command reports its progress: on stderr, or to its parent process."""

from __future__ import annotations

from contextlib import suppress

from peelsum.processes import Child, print_message
from peelsum.processes.progress import ProgressCallback, shown_on_stderr


def progress_reporter(*, child: bool = False) -> ProgressCallback:
    """Return the function that reports a command's progress, and use it for the command's children, too.

    child: whether this command is a child process, which reports to its parent and not on stderr.
    """
    tell: ProgressCallback = _send_to_parent if child else shown_on_stderr()
    Child.on_progress = staticmethod(tell)
    return tell


def compile_progress_reporter(*, child: bool = False) -> ProgressCallback:
    """Return the same function as `progress_reporter`, and use it for messages about compilation, too."""
    from peelsum.compiling import announce

    tell = progress_reporter(child=child)
    announce(tell)
    return tell


def _send_to_parent(text: str) -> None:
    with suppress(OSError):  # the parent has ended, and so will this process
        print_message(working=text)
