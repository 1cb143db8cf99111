"""From a seat at a network to a worker's way to sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peelsum.transport import SwitchSummation, job_config


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
