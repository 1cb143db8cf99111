"""From what the controller says of a job at its admission, which travels as JSON, to the job's configuration.

Checks types, as JSON has no others than it has; ranges are JobConfig's affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from peelsum.transport.config import JobConfig, Timers
from peelsum.transport.errors import TransportConfigError

_REMEDY = "give what `peelsum job admit --json` printed"


def job_config(admission: Mapping[str, Any]) -> JobConfig:
    """The job of an `admission`, whose `timeout_s` is how long a stall may last, in seconds.

    What is in it for other readers is left alone. Raises TransportConfigError naming what is missing or
    wrong.
    """
    if "timers" in admission:
        raise TransportConfigError(f"admission: timers: are each host's own, not the job's; {_REMEDY}")
    values: dict[str, Any] = {}
    for field in fields(JobConfig):
        if field.name in admission:
            whole = _whole_numbers if isinstance(field.default, tuple) else _whole_number
            values[field.name] = whole(field.name, admission[field.name])
        elif field.default is MISSING and field.default_factory is MISSING:
            raise TransportConfigError(f"admission: {field.name} is missing; {_REMEDY}")
    return JobConfig(**values, timers=Timers(stall=_seconds("timeout_s", admission.get("timeout_s"))))


def _whole_number(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TransportConfigError(f"admission: {name}: {value!r} is no whole number; {_REMEDY}")
    return value


def _whole_numbers(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise TransportConfigError(f"admission: {name}: {value!r} is no list of whole numbers; {_REMEDY}")
    return tuple(_whole_number(f"{name}[{i}]", item) for i, item in enumerate(value))


def _seconds(name: str, value: Any) -> float:
    if value is None:
        raise TransportConfigError(f"admission: {name} is missing; {_REMEDY}")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise TransportConfigError(f"admission: {name}: {value!r} is no number of seconds; {_REMEDY}")
    return value
