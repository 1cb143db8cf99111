"""Structured logs: one line per event on stderr, as JSON or in colours, with job, generation and worker.

All components log to the standard library's logger `peelsum` and its children. `configure` formats their
records with structlog, and only then imports it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from time import monotonic
from typing import Any, Literal, TextIO

from peelsum.extras import missing_extra_message

__all__ = [
    "LogsError",
    "RateLimit",
    "configure",
    "log_event",
]

LogFormat = Literal["json", "console"]
#: The formats that `configure` knows.
FORMATS: tuple[LogFormat, ...] = ("json", "console")
#: Fields of events that have another name in logs.
_LOG_NAMES = {"job_id": "job", "worker_id": "worker"}
#: Most lines per interval of seconds, so that packets or clients cannot fill the disk.
MOST_RECORDS, INTERVAL_S = 20, 60.0
_LOGGABLE = (bool, int, float, str, type(None))


class LogsError(Exception):
    """The log format is unknown, or structlog is not installed."""


class RateLimit(logging.Filter):
    """Passes at most `MOST_RECORDS` lines in `INTERVAL_S` seconds; the next one says how many were lost."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._interval_start, self._count, self._suppressed = clock(), 0, 0

    def admit(self) -> str | None:
        """Count a line; return None if it is not to be logged, else what to append to it, mostly nothing."""
        now, suffix = self._clock(), ""
        if now - self._interval_start >= INTERVAL_S:
            if self._suppressed:
                suffix = f" (before it, {self._suppressed} lines were not logged)"
            self._interval_start, self._count, self._suppressed = now, 0, 0
        self._count += 1
        if self._count > MOST_RECORDS:
            self._suppressed += 1
            return None
        return suffix

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        suffix = self.admit()
        if suffix:
            record.msg, record.args = f"{record.getMessage()}{suffix}", None
        return suffix is not None


def configure(
    log_format: str, part: str, known: Mapping[str, object] | None = None, *, out: TextIO | None = None
) -> None:
    """Write peelsum's log records of level INFO and higher to `out`, by default to stderr.

    log_format: `json`, with one object per line, or `console`.
    part: the component that logs: `switch`, `server`, `controller` or `worker`.
    known: fields of every line, e.g. {"job": 1}; fields that are None are omitted.
    Raises LogsError for another format, or if structlog is not installed.
    """
    if log_format not in FORMATS:
        raise LogsError(f"log format: {log_format!r} is unknown; use {' or '.join(FORMATS)}")
    try:
        import structlog
    except ModuleNotFoundError:
        raise LogsError(missing_extra_message("structlog", "ops")) from None
    out = sys.stderr if out is None else out
    constant_fields = {"part": part, **{name: v for name, v in (known or {}).items() if v is not None}}

    def add_constant_fields(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {**constant_fields, **line}

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
                add_constant_fields,
            ],
            processors=[processors.remove_processors_meta, render],
        )
    )
    logger = logging.getLogger("peelsum")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


def log_event(event: object, **known: object) -> None:
    """Log an event or an exception: its text, and those of its fields that are numbers or texts.

    Errors are logged at level WARNING, other events at INFO. known: further fields.
    """
    is_error = isinstance(event, Exception) or getattr(event, "kind", "") in ("error", "ended")
    fields = {"kind": type(event).__name__, **known}
    for name in [field.name for field in dataclass_fields(event)] if is_dataclass(event) else ():
        value = getattr(event, name)
        if isinstance(value, _LOGGABLE) and value is not None and name != "text":
            fields[_LOG_NAMES.get(name, name)] = value
        elif isinstance(value, tuple) and value and all(isinstance(item, _LOGGABLE) for item in value):
            fields[name] = list(value)
    level = logging.WARNING if is_error else logging.INFO
    logging.getLogger("peelsum.events").log(level, "%s", event, extra=fields)
