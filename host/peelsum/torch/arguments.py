"""What the hook's arguments may be, one by one: refused where the state is made, not in its first step.

It refuses to know what they come to together, and what the all-reduce itself says of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral, Real
from typing import Any

import torch
import torch.distributed as dist

from peelsum.allreduce import Network
from peelsum.torch.errors import HookConfigError
from peelsum.torch.sparsifiers import SCOPES

_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "process_group": (
        lambda value: value is None or isinstance(value, dist.ProcessGroup),
        "is no group that this rank is in; give one of torch.distributed, or None for all ranks",
    ),
    "over": (
        lambda value: isinstance(value, str) or callable(getattr(value, "sum_words", None)),
        "is no way to sum; use 'switch', a backend such as 'gloo', or a Summation",
    ),
    "seed": (
        lambda value: isinstance(value, Integral) and not isinstance(value, bool),
        "is no seed; give a whole number",
    ),
    "network": (
        lambda value: value is None or isinstance(value, Network),
        "says no costs; give a peelsum.allreduce.Network",
    ),
    "sparsifier": (
        lambda value: value is None or (not isinstance(value, type) and _chooses(value)),
        "chooses nothing; give a TopK, RandomK or Threshold, or None",
    ),
    "momentum": (lambda value: isinstance(value, Real), "is no number; give one from 0 to below 1"),
    "implementation": (lambda value: value in ("cpu", "gpu"), "is unknown; use 'cpu' or 'gpu'"),
    "log_every": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
        "is no number of steps; give a whole one, 0 for never",
    ),
    "timeout_s": (
        lambda value: value is None or (isinstance(value, Real) and 0 < float(value) < math.inf),
        "is no time to wait; give seconds above 0, or None for the job's",
    ),
}


def check_arguments(**arguments: Any) -> None:
    """Raise HookConfigError for the first that cannot be meant."""
    for field, value in arguments.items():
        allowed, remedy = _ALLOWED[field]
        if not allowed(value):
            raise HookConfigError(f"{field}: {value!r} {remedy}")


def checked_names(pairs: Iterable[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The pairs of a name and a parameter; a tensor, too, could be taken apart. Raises HookConfigError."""
    for pair in pairs:
        match pair:
            case (str() as name, torch.Tensor() as parameter):
                yield name, parameter
            case _:
                raise HookConfigError(
                    f"names: has a {type(pair).__name__} where a name and its parameter should be; "
                    "give model.named_parameters()"
                )


def _chooses(value: Any) -> bool:
    return callable(getattr(value, "choose", None)) and getattr(value, "per", None) in SCOPES
