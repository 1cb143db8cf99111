"""The control plane: job descriptions, and controllers that admit jobs to switches over P4Runtime."""

from peelsum.control.admission import evict
from peelsum.control.description import JobDescription, PortsSection, RacksDescription, read_description
from peelsum.control.drivers import open_session
from peelsum.control.errors import ControlError, LeaseHeldError, SwitchError
from peelsum.control.sections import MAX_JOB_ID
from peelsum.control.tables import AdmittedJob, SwitchStatus, read_status

__all__ = [
    "MAX_JOB_ID",
    "AdmittedJob",
    "ControlError",
    "JobDescription",
    "LeaseHeldError",
    "PortsSection",
    "RacksDescription",
    "SwitchError",
    "SwitchStatus",
    "evict",
    "open_session",
    "read_description",
    "read_status",
]
