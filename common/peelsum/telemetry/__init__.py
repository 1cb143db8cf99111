"""OpenTelemetry spans of a step and its phases, for `Allreduce` and `CompressedSum`.

Only this module imports opentelemetry, and only when a `StepSpans` is created.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

from peelsum.extras import missing_extra_message

__all__ = [
    "StepSpans",
    "TelemetryError",
]

#: The environment variable that, set to 1, makes the hook create spans with the global tracer provider.
SPANS = "PEELSUM_SPANS"


class TelemetryError(Exception):
    """PEELSUM_SPANS has an unknown value, or opentelemetry is not installed."""


class StepSpans:
    """Creates the spans `peelsum.step`, and within it `peelsum.encode`, `peelsum.exchange`, `peelsum.decode`.

    >>> spans = StepSpans()                                   # doctest: +SKIP
    >>> Allreduce(summation, span=spans.span, note=spans.note)  # doctest: +SKIP
    """

    def __init__(self, provider: Any = None, **attributes: str | int) -> None:
        """provider: a TracerProvider, by default the global one. attributes: of every span, e.g. job=1.

        Raises TelemetryError if opentelemetry is not installed.
        """
        try:
            from opentelemetry import trace
        except ModuleNotFoundError:
            raise TelemetryError(missing_extra_message("opentelemetry", "otel")) from None
        self._trace = trace
        self._tracer = trace.get_tracer("peelsum", tracer_provider=provider)
        self._attributes = {f"peelsum.{name}": value for name, value in attributes.items()}

    @classmethod
    def of_environment(cls) -> Self | None:
        """Return an instance if PEELSUM_SPANS is 1, else None. Raises TelemetryError."""
        setting = os.environ.get(SPANS, "0")
        if setting not in ("0", "1", ""):
            raise TelemetryError(f"{SPANS}: {setting!r}: is not known; use 1 for spans, 0 for none")
        return cls() if setting == "1" else None

    def span(self, phase: str) -> AbstractContextManager[object]:
        """Return a context manager that runs its body in the span of a phase, a child of the current span.

        An exception in the body is recorded in the span.
        """
        span: AbstractContextManager[object] = self._tracer.start_as_current_span(
            f"peelsum.{phase}", attributes=self._attributes
        )
        return span

    def note(self, values: Mapping[str, int]) -> None:
        """Set attributes of the current span, such as `bytes` and `chunks`."""
        self._trace.get_current_span().set_attributes(
            {f"peelsum.{name}": value for name, value in values.items()}
        )
