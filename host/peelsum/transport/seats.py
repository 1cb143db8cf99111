"""Connect a worker by its seat: its job and its switch port, as a network describes them to its processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peelsum.transport.admission import job_config
from peelsum.transport.udp import SwitchSummation

#: The environment variable in which `peelsum exec` gives a host's commands its seat, as JSON.
SEAT = "PEELSUM_SEAT"


def plug_in(seat: Mapping[str, Any]) -> SwitchSummation:
    """Connect the worker of a seat: `admission`, `worker_id`, `switch_host`, `switch_port`, perhaps `wire`.

    Raises TransportError.
    """
    return SwitchSummation(
        job_config(seat["admission"]),
        seat["worker_id"],
        (seat["switch_host"], seat["switch_port"]),
        wire=seat.get("wire", "udp-port"),
    )
