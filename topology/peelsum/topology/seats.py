"""From a seat at a star to what a worker or a server of the transport needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from peelsum.transport import JobConfig, Timers


def job_config(admission: Mapping[str, Any]) -> JobConfig:
    """The job as the transport wants it, from what the controller said at admission."""
    known = {field.name for field in fields(JobConfig)} & admission.keys()
    timers = Timers(stall=admission["timeout_s"]) if "timeout_s" in admission else Timers()
    return JobConfig(**{name: admission[name] for name in known}, timers=timers)
