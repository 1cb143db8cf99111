"""Ranges in the traces of torch's profiler, and OpenTelemetry's spans if the environment asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch

from peelsum.telemetry import StepSpans, TelemetryError
from peelsum.torch.errors import HookConfigError

_NOTHING = nullcontext()


def profiled(phase: str) -> AbstractContextManager[object]:
    """Return a context that appears in the profiler's traces as `peelsum::` and the phase.

    While no profiler runs, it does nothing: entering and leaving a range takes torch 5 us. With spans, it is
    a span, too.
    """
    spans = step_spans()
    if spans is None and not torch.autograd.profiler._is_profiler_enabled:
        return _NOTHING
    return _range(phase) if spans is None else _both(spans, phase)


def noted(values: Mapping[str, int]) -> None:
    """Set attributes of the current span, if spans are asked for."""
    spans = step_spans()
    if spans is not None:
        spans.note(values)


@cache
def step_spans() -> StepSpans | None:
    """Return what makes spans; None if the environment does not ask for them. Raises HookConfigError."""
    try:
        return StepSpans.of_environment()
    except TelemetryError as error:
        raise HookConfigError(str(error)) from None


def _range(phase: str) -> AbstractContextManager[object]:
    if not torch.autograd.profiler._is_profiler_enabled:
        return _NOTHING
    return torch.profiler.record_function(f"peelsum::{phase}")


@contextmanager
def _both(spans: StepSpans, phase: str) -> Iterator[None]:
    with spans.span(phase), _range(phase):
        yield
