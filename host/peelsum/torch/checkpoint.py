"""The hook's state as plain numbers and tensors, which `torch.load` accepts with `weights_only=True`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from peelsum.torch.error_feedback import ErrorFeedback, Residual
from peelsum.torch.errors import HookConfigError

_VERSION = 1


def saved(steps: int, feedback: ErrorFeedback | None) -> dict[str, Any]:
    """Return the number of steps and a copy of the residuals, if there are any."""
    values: dict[str, Any] = {"version": _VERSION, "steps": steps}
    if feedback is not None:
        values["residuals"] = {name: _written(one) for name, one in feedback.residuals.items()}
    return values


def loaded(values: Mapping[str, Any], feedback: ErrorFeedback | None) -> int:
    """Restore residuals and return the number of steps.

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
    if ("residuals" in values) != (feedback is not None):
        has, needs = ("residuals", "no") if feedback is None else ("no residuals", "a")
        raise HookConfigError(f"sparsifier: the checkpoint has {has}; make the state with {needs} sparsifier")
    try:
        steps = int(values["steps"])
        residuals = {name: _read(one) for name, one in values.get("residuals", {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise HookConfigError(
            f"values: are not a saved state ({type(error).__name__}: {error}); give what state_dict returned"
        ) from error
    if feedback is not None:
        feedback.restore(residuals)
    return steps


def _written(residual: Residual) -> dict[str, Any]:
    velocity = residual.velocity
    return {
        "numbers": torch.from_numpy(residual.numbers.copy()),
        "velocity": None if velocity is None else torch.from_numpy(velocity.copy()),
        "scale": residual.scale,
    }


def _read(values: Mapping[str, Any]) -> Residual:
    velocity = values["velocity"]
    return Residual(
        values["numbers"].numpy().copy(),
        None if velocity is None else velocity.numpy().copy(),
        values["scale"],
    )
