"""How a command tells what takes it long: on stderr, to the process that started it, or not at all."""

from __future__ import annotations

from contextlib import suppress

from peelsum.topology import Child, say
from peelsum.topology.progress import Tell, shown_on_stderr


def told(*, json: bool = False, child: bool = False) -> Tell:
    """What a command tells its progress, and that of its children, with.

    json: programs read what the command prints; they are told nothing. child: its parent is told.
    """
    tell: Tell = _to_parent if child else _to_nobody if json else shown_on_stderr()
    Child.on_work = staticmethod(tell)
    return tell


def told_of_compiling(*, json: bool = False, child: bool = False) -> Tell:
    """As `told`, for a command that compiles: what it compiles is told, too."""
    from peelsum.transport.compiling import announce

    tell = told(json=json, child=child)
    announce(tell)
    return tell


def _to_parent(text: str) -> None:
    with suppress(OSError):  # it has ended, and so will this process
        say(working=text)


def _to_nobody(text: str) -> None:
    pass
