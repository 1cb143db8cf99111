"""Choose where a command reports its progress: on stderr, or to its parent process."""

from __future__ import annotations

from contextlib import suppress

from peelsum.processes import Child, say
from peelsum.processes.progress import Tell, shown_on_stderr


def told(*, child: bool = False) -> Tell:
    """Return the function that reports a command's progress, and use it for the command's children, too.

    child: whether this command is a child process, which reports to its parent and not on stderr.
    """
    tell: Tell = _send_to_parent if child else shown_on_stderr()
    Child.on_work = staticmethod(tell)
    return tell


def told_of_compiling(*, child: bool = False) -> Tell:
    """Return the same function as `told`, and use it for messages about compilation, too."""
    from peelsum.compiling import announce

    tell = told(child=child)
    announce(tell)
    return tell


def _send_to_parent(text: str) -> None:
    with suppress(OSError):  # the parent has ended, and so will this process
        say(working=text)
