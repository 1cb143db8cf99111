"""Errors of the allreduce, split by whose fault they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peelsum.allreduce.result import StepResult


class AllreduceError(Exception):
    """Base of the allreduce's errors. Messages name field, value and remedy in one line."""


class PlanMismatchError(AllreduceError):
    """The workers' tensors or settings differ. Every worker raises this in the same step."""


class InvalidRequestError(AllreduceError, ValueError):
    """The caller asked for something unsupported, e.g. an unknown form or dtype."""


#: Arguments of earlier versions, with what to write instead.
REMOVED = {
    "limbs": "leave it out: every block of elements has a scale of its own",
    "estimate": "leave it out: what peeling leaves is always summed exactly",
    "sparse": "leave it out: the first step of every tensor finds where its non-zeros are",
    "index": "leave it out: the index of every tensor is the cheapest",
    "predict": "leave it out: a step is done in one round where that takes less time",
    "graphs": "leave it out: launches are not captured",
}


class SummationStalledError(AllreduceError, TimeoutError):
    """Some workers did not contribute in time; the message names the oldest chunk and the workers."""


class DeviceMemoryError(AllreduceError, MemoryError):
    """A device had no memory left for a step.

    If `result` is set, the step's sums are complete, and only the device had no memory for them. The other
    workers have these sums, so use `result` here; further steps can follow.
    """

    result: StepResult | None = None
    """The step's result, with the `values` as torch tensors in the host's memory."""
