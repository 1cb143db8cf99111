"""The hook's state as plain numbers and tensors, which `torch.load` accepts with `weights_only=True`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from peelsum.allreduce import History
from peelsum.compress import CompressError, Memory, Residual
from peelsum.torch.decisions import Decisions
from peelsum.torch.errors import HookConfigError

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
    if values.get("version") != _VERSION:
        raise HookConfigError(
            f"version: {values.get('version')!r} is not supported; give a checkpoint of version {_VERSION}"
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
        seen = {kind: _arrays(one) for kind, one in values.get("seen", {}).items()}
    # torch raises RuntimeError, a number of steps that is infinite OverflowError.
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise HookConfigError(
            f"values: are not a saved state ({type(error).__name__}: {error}); give what state_dict returned"
        ) from error
    decided = values.get("strategy", {})
    if not isinstance(decided, Mapping) or (decided and not decided.keys() >= {"of", "known", "estimates"}):
        raise HookConfigError("strategy: is not that of a saved state; give what state_dict returned")
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


def _written(residual: Residual) -> dict[str, torch.Tensor | None]:
    arrays: dict[str, NDArray[Any]] = {"numbers": residual.numbers, "scales": residual.scales}
    if residual.velocity is not None:
        arrays["velocity"] = residual.velocity
    return {"velocity": None, **_tensors(arrays)}


def _read(values: Mapping[str, torch.Tensor | None]) -> Residual:
    """Return the residual that `_written` wrote."""
    arrays = _arrays({name: one for name, one in values.items() if one is not None})
    return Residual(arrays["numbers"], arrays["scales"], arrays.get("velocity"))
