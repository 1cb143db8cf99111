"""The control plane: job descriptions, and a controller that admits jobs to a switch over P4Runtime."""

from peelsum.control.controller import Admission, AdmittedJob, Controller, SwitchStatus
from peelsum.control.description import JobDescription
from peelsum.control.errors import ControlError, DescriptionError, SwitchError

__all__ = [
    "Admission",
    "AdmittedJob",
    "ControlError",
    "Controller",
    "DescriptionError",
    "JobDescription",
    "SwitchError",
    "SwitchStatus",
]
