"""Configure and connect a worker by JSON: its job's admission, which a controller prints, and its seat.

`job_config` checks the types, and that the job fits the switch; `JobConfig` checks the other ranges. A seat
is a job and a switch port, as a network describes them to its processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from peelsum.transport.config import SEAT as SEAT
from peelsum.transport.config import JobConfig, Timers
from peelsum.transport.errors import TransportConfigError
from peelsum.transport.udp import SwitchSummation
from peelsum.wire import DROP_PORT
from peelsum.wire.datagrams import Address

_REMEDY = "give what `peelsum job admit --json` printed"


def job_config(admission: Mapping[str, Any]) -> JobConfig:
    """Return the configuration of an admitted job.

    `timeout_s` in the admission becomes the timer `stall`, in seconds. If the admission has `slots`, the
    window must fit them; if it has ports, there must be one for each worker. Other members are ignored.
    Raises TransportConfigError, which names the missing or wrong field.
    """
    if not isinstance(admission, Mapping):
        raise TransportConfigError(f"admission: {admission!r} is not a JSON object; {_REMEDY}")
    if "timers" in admission:
        raise TransportConfigError(f"admission: timers: belong to each host, not to the job; {_REMEDY}")
    values: dict[str, Any] = {}
    for field in fields(JobConfig):
        if field.name == "secret":
            values["secret"] = _text("secret", admission.get("secret", ""))
        elif field.name in admission:
            whole = _whole_numbers if isinstance(field.default, tuple) else _whole_number
            values[field.name] = whole(field.name, admission[field.name])
        elif field.default is MISSING and field.default_factory is MISSING:
            raise TransportConfigError(f"admission: {field.name} is missing; {_REMEDY}")
    job = JobConfig(**values, timers=Timers(stall=_seconds("timeout_s", admission.get("timeout_s"))))
    _check_switch(admission, job)
    return job


def plug_in(seat: Mapping[str, Any]) -> SwitchSummation:
    """Connect a worker to its switches; return its summation. Raises TransportError.

    seat: has `admission`, `worker_id`, `switch_host`, `switch_port`, and perhaps `wire`. It may have
    `more_planes`: for each further switch, `admission`, `switch_host` and `switch_port`; and `interfaces`,
    this host's on the switches' wires, one for each plane.
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
    if "admission" not in seat:
        raise TransportConfigError(
            "seat: has no admission; use a seat of a job that runs peelsum's program, not one of its own"
        )
    return job_config(seat["admission"]), (seat["switch_host"], seat["switch_port"])


def _check_switch(admission: Mapping[str, Any], job: JobConfig) -> None:
    """Raise TransportConfigError unless the job fits the switch that the admission describes."""
    if "slots" in admission:
        slots = _whole_number("slots", admission["slots"])
        if 2 * job.window > slots:
            raise TransportConfigError(
                f"admission: window: {job.window} is more than half of the switch's {slots} slots; {_REMEDY}"
            )
    ports = _whole_numbers("worker_ports", admission.get("worker_ports", ()))
    if "worker_ports" in admission and len(ports) != job.workers:
        raise TransportConfigError(
            f"admission: worker_ports: {len(ports)} ports for {job.workers} workers; {_REMEDY}"
        )
    if "server_port" in admission:
        ports = (*ports, _whole_number("server_port", admission["server_port"]))
    for port in ports:
        if not 0 <= port < DROP_PORT:
            raise TransportConfigError(f"admission: port {port} is not a switch port; {_REMEDY}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TransportConfigError(f"admission: {name}: {value!r} is not a string; {_REMEDY}")
    return value


def _whole_number(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TransportConfigError(f"admission: {name}: {value!r} is not an integer; {_REMEDY}")
    return value


def _whole_numbers(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise TransportConfigError(f"admission: {name}: {value!r} is not a list of integers; {_REMEDY}")
    return tuple(_whole_number(f"{name}[{i}]", item) for i, item in enumerate(value))


def _seconds(name: str, value: Any) -> float:
    if value is None:
        raise TransportConfigError(f"admission: {name} is missing; {_REMEDY}")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise TransportConfigError(f"admission: {name}: {value!r} is not a number of seconds; {_REMEDY}")
    return value
