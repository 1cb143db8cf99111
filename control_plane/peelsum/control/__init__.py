"""The control plane: job descriptions, and controllers that admit jobs to switches over P4Runtime."""

from peelsum.control.controller import Controller
from peelsum.control.description import JobDescription, PortsSection, RacksDescription, read_description
from peelsum.control.errors import ControlError, HeldError, SwitchError
from peelsum.control.sections import MAX_JOB_ID
from peelsum.control.status import AdmittedJob, SwitchStatus

__all__ = [
    "MAX_JOB_ID",
    "AdmittedJob",
    "ControlError",
    "Controller",
    "HeldError",
    "JobDescription",
    "PortsSection",
    "RacksDescription",
    "SwitchError",
    "SwitchStatus",
    "read_description",
]
