"""The control plane: job descriptions, and controllers that admit jobs to switches over P4Runtime."""

from peelsum.control.controller import Controller
from peelsum.control.description import JobDescription
from peelsum.control.errors import ControlError, SwitchError
from peelsum.control.fabric import Fabric
from peelsum.control.racks import RacksDescription, read_description
from peelsum.control.responses import AdmittedJob, SwitchStatus
from peelsum.control.watch import SwitchLost, SwitchRegained, Watch

__all__ = [
    "AdmittedJob",
    "ControlError",
    "Controller",
    "Fabric",
    "JobDescription",
    "RacksDescription",
    "SwitchError",
    "SwitchLost",
    "SwitchRegained",
    "SwitchStatus",
    "Watch",
    "read_description",
]
