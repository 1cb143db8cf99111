"""The softswitch: runs a compiled P4 program (BMv2 JSON) in Python and gives control over its state."""

from peelsum.softswitch.compiler.loading import load
from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.runtime.frames import Frames
from peelsum.softswitch.runtime.switch import Switch
from peelsum.softswitch.runtime.tables import Table

__all__ = ["Frames", "SoftswitchError", "Switch", "Table", "load"]
