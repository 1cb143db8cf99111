"""Structured logs: one line per event on stderr, as JSON or for the eye, with job, generation and worker.

All parts log to the standard library's logger `peelsum` and its children. `configure` formats what they say,
by structlog, which nothing here imports before.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TextIO

from peelsum.extras import missing

__all__ = [
    "LogsError",
    "configure",
    "log_event",
]

LogFormat = Literal["json", "console"]
#: The formats that `configure` knows.
FORMATS: tuple[LogFormat, ...] = ("json", "console")
#: Names of events' fields in logs; numbers and texts keep theirs.
_NAMES = {"job_id": "job", "worker_id": "worker"}
_PLAIN = (bool, int, float, str, type(None))


class LogsError(Exception):
    """Logs cannot be written as asked."""


def configure(
    log_format: str, part: str, known: Mapping[str, object] | None = None, *, out: TextIO | None = None
) -> None:
    """Write the logs of peelsum's parts from now on to `out`, by default stderr, from level INFO on.

    log_format: `json`, one object a line, or `console`. part: `switch`, `server`, `controller` or `worker`.
    known: fields of every line, e.g. {"job": 1}; those that are None are left out.
    Raises LogsError for another format, or if structlog is not installed.
    """
    if log_format not in FORMATS:
        raise LogsError(f"log format: {log_format!r} is unknown; use {' or '.join(FORMATS)}")
    try:
        import structlog
    except ModuleNotFoundError:
        raise LogsError(missing("structlog", "ops")) from None
    out = sys.stderr if out is None else out
    always = {"part": part, **{name: value for name, value in (known or {}).items() if value is not None}}

    def add(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {**always, **line}

    processors = structlog.stdlib.ProcessorFormatter
    render = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=out.isatty())
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        processors(
            foreign_pre_chain=[
                structlog.stdlib.ExtraAdder(),
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                add,
            ],
            processors=[processors.remove_processors_meta, render],
        )
    )
    logger = logging.getLogger("peelsum")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


def log_event(event: object, **known: object) -> None:
    """Log an event or error: its sentence, and its fields that are numbers or texts. Errors are warnings."""
    failed = isinstance(event, Exception) or getattr(event, "kind", "") in ("error", "ended")
    found = {"kind": type(event).__name__, **known}
    for name, value in _values(event).items():
        if isinstance(value, _PLAIN) and value is not None and name != "text":
            found[_NAMES.get(name, name)] = value
        elif isinstance(value, tuple) and value and all(isinstance(one, _PLAIN) for one in value):
            found[name] = list(value)
    level = logging.WARNING if failed else logging.INFO
    logging.getLogger("peelsum.events").log(level, "%s", event, extra=found)


def _values(event: object) -> dict[str, Any]:
    if not is_dataclass(event):
        return {}
    return {field.name: getattr(event, field.name) for field in fields(event)}
