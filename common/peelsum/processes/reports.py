"""Where a command reports progress: on stderr, or to its parent process."""

from __future__ import annotations

from contextlib import suppress

from peelsum.processes import Child, say
from peelsum.processes.progress import Tell, shown_on_stderr


def told(*, child: bool = False) -> Tell:
    """Return the function that reports a command's progress, and use it for its children's, too.

    child: the parent process is told.
    """
    tell: Tell = _to_parent if child else shown_on_stderr()
    Child.on_work = staticmethod(tell)
    return tell


def told_of_compiling(*, child: bool = False) -> Tell:
    """Do as `told`, and report compilation, too."""
    from peelsum.compiling import announce

    tell = told(child=child)
    announce(tell)
    return tell


def _to_parent(text: str) -> None:
    with suppress(OSError):  # the parent has ended, and so will this process
        say(working=text)
