"""What can go wrong in the embedded target, split by whose fault it is."""

# ruff: noqa: N818 - the names say what happened, as the events of this project do

from __future__ import annotations


class TargetError(Exception):
    """Base of everything the embedded target raises on purpose. One line: what, which value, what to do."""


class BadProgram(TargetError):
    """The file is no BMv2 JSON that hangs together: something is missing or refers to nothing."""


class UnsupportedConstruct(TargetError):
    """The program is valid but uses something this target does not run; the message names it."""


class InvalidEntry(TargetError):
    """A table entry, register index or group that the program's declarations do not allow."""


class DuplicateEntry(TargetError):
    """An entry with the same match is in the table already."""


class NoSuchEntry(TargetError):
    """Nothing with that match or number is there to be changed or removed."""


class TableFull(TargetError):
    """The table holds as many entries as its declared size allows."""
