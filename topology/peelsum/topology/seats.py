"""Connects a worker to its seat in a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peelsum.transport import SwitchSummation, job_config


def plug_in(seat: Mapping[str, Any]) -> SwitchSummation:
    """Connect a worker to its seat, a `Seat` as a mapping. Raises TransportError."""
    return SwitchSummation(
        job_config(seat["admission"]),
        seat["worker_id"],
        (seat["switch_host"], seat["switch_port"]),
        wire=seat.get("wire", "udp-port"),
    )
