"""The control plane: job descriptions, and controllers that admit jobs to switches over P4Runtime."""

from peelsum.control.controller import Controller
from peelsum.control.description import JobDescription, PortsSection, RacksDescription, read_description
from peelsum.control.errors import ControlError, HeldError, SwitchError
from peelsum.control.fabric import Fabric
from peelsum.control.sections import MAX_JOB_ID
from peelsum.control.status import AdmittedJob, SwitchStatus
from peelsum.control.watch import SwitchLost, SwitchRegained, Watch

__all__ = [
    "MAX_JOB_ID",
    "AdmittedJob",
    "ControlError",
    "Controller",
    "Fabric",
    "HeldError",
    "JobDescription",
    "PortsSection",
    "RacksDescription",
    "SwitchError",
    "SwitchLost",
    "SwitchRegained",
    "SwitchStatus",
    "Watch",
    "read_description",
]
