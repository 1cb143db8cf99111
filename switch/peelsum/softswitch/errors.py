"""What can go wrong in the embedded target, split by whose fault it is."""

# ruff: noqa: N818 - the names say what happened, as the events of this project do

from __future__ import annotations


class SoftswitchError(Exception):
    """Base of everything the embedded target raises on purpose. One line: what, which value, what to do."""


class BadProgram(SoftswitchError):
    """The file is no BMv2 JSON that hangs together: something is missing or refers to nothing."""


class UnsupportedConstruct(SoftswitchError):
    """The program is valid but uses something this target does not run; the message names it."""


class InvalidEntry(SoftswitchError):
    """A table entry, register index or group that the program's declarations do not allow."""


class DuplicateEntry(SoftswitchError):
    """An entry with the same match is in the table already."""


class NoSuchEntry(SoftswitchError):
    """Nothing with that match or number is there to be changed or removed."""


class TableFull(SoftswitchError):
    """The table holds as many entries as its declared size allows."""
