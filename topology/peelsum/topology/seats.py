"""From a seat at a star to what a worker or a server of the transport needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from peelsum.transport import JobConfig, SwitchSummation, Timers


def job_config(admission: Mapping[str, Any]) -> JobConfig:
    """The job as the transport wants it, from what the controller said at admission."""
    known = {field.name for field in fields(JobConfig)} & admission.keys()
    timers = Timers(stall=admission["timeout_s"])
    return JobConfig(**{name: admission[name] for name in known}, timers=timers)


def plug_in(seat: Mapping[str, Any]) -> SwitchSummation:
    """A worker's way to sum, from its `Seat` as a mapping. Raises TransportError."""
    admission = seat["admission"]
    return SwitchSummation(
        job_config(admission),
        seat["worker_id"],
        (seat["switch_host"], seat["switch_port"]),
        timeout_s=admission["timeout_s"],
        wire=seat.get("wire", "udp-port"),
    )
