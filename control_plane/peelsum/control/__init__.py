"""The control plane: job descriptions, and controllers that admit jobs to switches over P4Runtime."""

from peelsum.control.controller import Controller
from peelsum.control.description import JobDescription
from peelsum.control.errors import ControlError, DescriptionError, NotPrimaryError, SwitchError
from peelsum.control.fabric import Fabric
from peelsum.control.racks import RacksDescription, parse_description, read_description
from peelsum.control.responses import Admission, AdmittedJob, SwitchStatus
from peelsum.control.watch import SwitchLost, SwitchRegained, Watch

__all__ = [
    "Admission",
    "AdmittedJob",
    "ControlError",
    "Controller",
    "DescriptionError",
    "Fabric",
    "JobDescription",
    "NotPrimaryError",
    "RacksDescription",
    "SwitchError",
    "SwitchLost",
    "SwitchRegained",
    "SwitchStatus",
    "Watch",
    "parse_description",
    "read_description",
]
