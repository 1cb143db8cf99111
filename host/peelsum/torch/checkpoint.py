"""The hook's state as plain numbers and tensors, which `torch.load` accepts with `weights_only=True`."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from peelsum.allreduce import History
from peelsum.compress import CompressError, Memory, Residual
from peelsum.torch.decisions import Decisions, check_saved
from peelsum.torch.errors import HookConfigError

#: Residuals of version 1 have one scale for all elements.
_VERSION = 2


def saved(steps: int, history: History, memory: Memory | None, decisions: Decisions | None) -> dict[str, Any]:
    """Return the number of steps, with copies of history, memory and decisions."""
    values: dict[str, Any] = {"version": _VERSION, "steps": steps}
    values["seen"] = {kind: _tensors(kept) for kind, kept in history.saved().items()}
    if memory is not None:
        values["residuals"] = {name: _written(one) for name, one in memory.residuals.items()}
        kept = {name: _tensors(one) for name, one in memory.kept.items() if one}
        values |= {"kept": kept} if kept else {}
    if decisions is not None:
        values["strategy"] = decisions.saved()
    return values


def loaded(
    values: Mapping[str, Any], history: History, memory: Memory | None, decisions: Decisions | None
) -> int:
    """Restore what `saved` returned; return the number of steps.

    Residuals serve any compressor or strategy, but only a strategy continues its decisions.
    Raises HookConfigError if `values` do not fit this state.
    """
    if not isinstance(values, Mapping):
        raise HookConfigError(
            f"values: a {type(values).__name__} is not a state; give what state_dict returned"
        )
    if values.get("version") not in (1, _VERSION):
        raise HookConfigError(
            f"version: {values.get('version')!r} is not supported; "
            f"give a checkpoint of version 1 or {_VERSION}"
        )
    if ("residuals" in values) != (memory is not None):
        has, needs = ("residuals", "no") if memory is None else ("no residuals", "a")
        raise HookConfigError(
            f"compressor: the checkpoint has {has}; make the state with {needs} compressor or strategy"
        )
    try:
        steps = int(values["steps"])
        residuals = {name: _read(one) for name, one in values.get("residuals", {}).items()}
        kept = {name: _arrays(one) for name, one in values.get("kept", {}).items()}
        seen = values.get("seen", {})
        # Earlier, it had tensors of other counts by name: the history then starts empty.
        earlier = any(isinstance(one, torch.Tensor) for one in seen.values())
        seen = {} if earlier else {kind: _arrays(one) for kind, one in seen.items()}
    # torch raises RuntimeError, a scale or step that is out of range OverflowError.
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise HookConfigError(
            f"values: are not a saved state ({type(error).__name__}: {error}); give what state_dict returned"
        ) from error
    decided = values.get("strategy", {})
    check_saved(decided)
    try:
        history.restore(seen)
    except ValueError as error:
        raise HookConfigError(f"seen: {error}; give what state_dict returned") from error
    if memory is not None:
        try:
            memory.restore(residuals)
        except CompressError as error:
            raise HookConfigError(str(error)) from error
        memory.kept = kept
    if decisions is not None:
        decisions.restore(decided)
    return steps


def _tensors(kept: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(one.copy()) for name, one in kept.items()}


def _arrays(kept: Mapping[str, torch.Tensor]) -> dict[str, NDArray[Any]]:
    return {name: one.numpy().copy() for name, one in kept.items()}


def _written(residual: Residual) -> dict[str, Any]:
    velocity = residual.velocity
    return {
        "numbers": torch.from_numpy(residual.numbers.copy()),
        "scales": torch.from_numpy(residual.scales.copy()),
        "velocity": None if velocity is None else torch.from_numpy(velocity.copy()),
    }


def _read(values: Mapping[str, Any]) -> Residual:
    """Return the residual that `_written` wrote, in this version or in version 1."""
    numbers, velocity = values["numbers"].numpy().copy(), values["velocity"]
    if "scale" in values:
        scales = np.full(numbers.size, index(values["scale"] or 0), np.int16)
    else:
        scales = values["scales"].numpy().copy()
    return Residual(numbers, scales, None if velocity is None else velocity.numpy().copy())
