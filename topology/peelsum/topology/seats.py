"""From a seat at a network to a worker's way to sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peelsum.transport import SwitchSummation, job_config


def plug_in(seat: Mapping[str, Any]) -> SwitchSummation:
    """A worker's way to sum, from its `Seat` as a mapping. Raises TransportError."""
    return SwitchSummation(
        job_config(seat["admission"]),
        seat["worker_id"],
        (seat["switch_host"], seat["switch_port"]),
        wire=seat.get("wire", "udp-port"),
    )
