"""The softswitch's errors, split by their cause: the program, a control request, or a limit."""

# ruff: noqa: N818 - the names say what happened; they do not end in Error

from __future__ import annotations


class SoftswitchError(Exception):
    """Base of the softswitch's errors. The message is one line: the field, its value and the remedy."""


class BadProgram(SoftswitchError):
    """The file is not consistent BMv2 JSON: something is missing or refers to an undeclared name."""


class UnsupportedConstruct(SoftswitchError):
    """The program is valid but uses something that the softswitch does not support; the message names it."""


class NotCompilable(UnsupportedConstruct):
    """Machine code for 64-bit numbers cannot do what the program does; interpreted code can."""


class InvalidEntry(SoftswitchError):
    """The program's declarations do not allow this table entry, register index or group."""


class DuplicateEntry(SoftswitchError):
    """The table already has an entry with the same match."""


class NoSuchEntry(SoftswitchError):
    """There is no entry or group with that match or number to read, change or remove."""


class TableFull(SoftswitchError):
    """The table holds as many entries as its declared size allows."""


class EntryInUse(SoftswitchError):
    """A member or group of an action profile cannot be removed while something refers to it."""
