"""The embedded target: a compiled P4 program (BMv2 JSON) run inside Python, with control over its state."""

from peelsum.target.errors import (
    BadProgram,
    DuplicateEntry,
    InvalidEntry,
    NoSuchEntry,
    TableFull,
    TargetError,
    UnsupportedConstruct,
)
from peelsum.target.frames import Frames
from peelsum.target.loader import load
from peelsum.target.program import Program
from peelsum.target.state import Counter, Groups, Register
from peelsum.target.switch import Switch
from peelsum.target.tables import Entry, Table

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
    "Switch",
    "Table",
    "TableFull",
    "TargetError",
    "UnsupportedConstruct",
    "load",
]
