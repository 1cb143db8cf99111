"""Connect a worker by its seat: its job and its switch port, as a network describes them to its processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peelsum.transport.admission import job_config
from peelsum.transport.config import JobConfig
from peelsum.transport.udp import SwitchSummation
from peelsum.wire.datagrams import Address

#: The environment variable in which `peelsum exec` gives a host's commands its seat, as JSON.
SEAT = "PEELSUM_SEAT"


def plug_in(seat: Mapping[str, Any]) -> SwitchSummation:
    """Connect the worker of a seat: `admission`, `worker_id`, `switch_host`, `switch_port`, perhaps `wire`.

    `more_planes` of a seat are objects with the first, third and fourth of them, one for each further plane,
    `interfaces` this host's on the switches' wires. Raises TransportError.
    """
    job, switch = _place(seat)
    return SwitchSummation(
        job,
        seat["worker_id"],
        switch,
        wire=seat.get("wire", "udp-port"),
        more_planes=[_place(plane) for plane in seat.get("more_planes", ())],
        interfaces=seat.get("interfaces", ()),
    )


def _place(seat: Mapping[str, Any]) -> tuple[JobConfig, Address]:
    return job_config(seat["admission"]), (seat["switch_host"], seat["switch_port"])
