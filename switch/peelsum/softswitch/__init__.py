"""The softswitch: runs a compiled P4 program (BMv2 JSON) in Python and gives control over its state."""

from peelsum.softswitch.compiler.loading import load
from peelsum.softswitch.errors import (
    BadProgram,
    DuplicateEntry,
    InvalidEntry,
    NoSuchEntry,
    SoftswitchError,
    TableFull,
    UnsupportedConstruct,
)
from peelsum.softswitch.program.model import Program
from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.state import Counter, Groups, Register
from peelsum.softswitch.runtime.switch import Switch
from peelsum.softswitch.runtime.tables import Entry, Table

__all__ = [
    "BadProgram",
    "Counter",
    "DuplicateEntry",
    "Entry",
    "Frames",
    "Groups",
    "InvalidEntry",
    "NoSuchEntry",
    "Program",
    "Register",
    "SoftswitchError",
    "Switch",
    "Table",
    "TableFull",
    "UnsupportedConstruct",
    "load",
]
