"""Ranges in the traces of torch's profiler, and OpenTelemetry's spans if the environment asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch

from peelsum.telemetry import StepSpans, TelemetryError
from peelsum.torch.errors import HookConfigError


def profile_range(phase: str) -> AbstractContextManager[object] | None:
    """Return a context that appears in the traces of torch's profiler as `peelsum::` and the phase.

    If the environment asks for spans, it is a span, too. Without profiler and spans it is None, because torch
    takes 5 us to enter and leave a range.
    """
    spans, is_profiled = step_spans(), torch.autograd.profiler._is_profiler_enabled
    if spans is None:
        return torch.profiler.record_function(f"peelsum::{phase}") if is_profiled else None
    return _span_and_range(spans, phase)


def set_span_attributes(values: Mapping[str, int]) -> None:
    """Set attributes of the current span, if the environment asks for spans."""
    spans = step_spans()
    if spans is not None:
        spans.note(values)


@cache
def step_spans() -> StepSpans | None:
    """Return the maker of spans; None if the environment does not ask for them. Raises HookConfigError."""
    try:
        return StepSpans.of_environment()
    except TelemetryError as error:
        raise HookConfigError(str(error)) from None


@contextmanager
def _span_and_range(spans: StepSpans, phase: str) -> Iterator[None]:
    is_profiled = torch.autograd.profiler._is_profiler_enabled
    with (
        spans.span(phase),
        torch.profiler.record_function(f"peelsum::{phase}") if is_profiled else nullcontext(),
    ):
        yield
