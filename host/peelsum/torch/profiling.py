"""Ranges in the traces of torch's profiler."""

from __future__ import annotations

import torch


def profiled(phase: str) -> torch.profiler.record_function:
    """Return a context that appears in the profiler's traces as `peelsum::` and the phase."""
    return torch.profiler.record_function(f"peelsum::{phase}")
