"""Validation of the hook's arguments, one by one, when the state is made rather than in its first step.

Combinations of arguments are checked by the state, the all-reduce's own arguments by the all-reduce.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist

from peelsum.allreduce import NetworkModel
from peelsum.compress import Compressor
from peelsum.flexible import Flexible
from peelsum.torch.errors import HookConfigError

_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "process_group": (
        lambda value: value is None or isinstance(value, dist.ProcessGroup),
        "is not a group that this rank is in; give one of torch.distributed, or None for all ranks",
    ),
    "over": (
        lambda value: isinstance(value, str) or callable(getattr(value, "sum_words", None)),
        "is not a backend; use 'switch', one of torch.distributed such as 'gloo', or a Summation",
    ),
    "network": (
        lambda value: value in (None, "measured") or isinstance(value, NetworkModel),
        "is not a network model; give a peelsum.allreduce.NetworkModel, or 'measured'",
    ),
    "compressor": (
        lambda value: value is None or isinstance(value, Compressor),
        "is not a compressor; give one of peelsum.compress such as TopK(0.01) or QSGD(4), or None",
    ),
    "strategy": (
        lambda value: value is None or isinstance(value, Flexible),
        "is not a strategy; give a peelsum.flexible.Flexible, or None",
    ),
    "error_feedback": (
        lambda value: value is None or isinstance(value, bool),
        "is not a choice; give True, False, or None for what the compressor needs",
    ),
    "implementation": (
        lambda value: value in ("cpu", "gpu", None),
        "is unknown; use 'cpu', 'gpu', or None for that of the gradients' device",
    ),
    "log_every": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
        "is not a number of steps; give an integer, 0 for never",
    ),
    "timeout_s": (
        lambda value: value is None or (isinstance(value, Real) and 0 < float(value) < math.inf),
        "is not a timeout; give seconds above 0, or None for the job's",
    ),
}


def check_arguments(**arguments: Any) -> None:
    """Raise HookConfigError for the first argument that is not allowed."""
    for field, value in arguments.items():
        allowed, remedy = _ALLOWED[field]
        if not allowed(value):
            raise HookConfigError(f"{field}: {value!r} {remedy}")


def checked_names(pairs: Iterable[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the (name, parameter) pairs. Raises HookConfigError for anything else, such as a tensor."""
    for pair in pairs:
        match pair:
            case (str() as name, torch.Tensor() as parameter):
                yield name, parameter
            case _:
                raise HookConfigError(
                    f"names: has a {type(pair).__name__} where a name and its parameter should be; "
                    "give model.named_parameters()"
                )
