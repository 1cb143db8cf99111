"""The settings of a communication hook, their validation, and the all-reduces that they ask for.

Arguments are checked when the state is made rather than in its first step: one by one, then together. The
all-reduce checks its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from numbers import Real
from typing import Any, Literal

import torch

from peelsum.allreduce import (
    Allreduce,
    History,
    LocalSummation,
    NetworkModel,
    RequestedForm,
    RequestedValues,
    Summation,
)
from peelsum.allreduce.reducer import Reducer
from peelsum.compress import CompressError, Compressor, Flexible, lossy_reducer
from peelsum.torch.backends import SWITCH
from peelsum.torch.errors import HookConfigError
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.profiling import noted, profiled, step_spans

#: Which values of a setting are allowed, and what else to give, as `SwitchAllreduceState` explains.
_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "over": (
        lambda value: isinstance(value, str) or callable(getattr(value, "sum_words", None)),
        "is not a backend; use 'switch', one of torch.distributed such as 'gloo', or a Summation",
    ),
    "network": (
        lambda value: value == "measured" or isinstance(value, NetworkModel),
        "is not a network model; give a peelsum.allreduce.NetworkModel, or 'measured'",
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


@dataclass(frozen=True)
class Settings:
    """The settings of a `SwitchAllreduceState`, under the names of its arguments; see there."""

    over: str | Summation
    """The backend: its name, or an object."""
    forms: RequestedForm | Mapping[str, RequestedForm]
    """The form of all tensors, or of each by name."""
    values: RequestedValues
    """How the non-zeros of sparse tensors are sent."""
    network: NetworkModel | Literal["measured"]
    """The network model by which forms are compared, or "measured" until ranks have connected."""
    compressor: Compressor | None
    """The method of compression; None has none."""
    strategy: Flexible | None
    """The strategy that chooses method and ratio in every step, or None."""
    error_feedback: bool | None
    """Whether what is not sent is kept; None asks the compressor."""
    implementation: Literal["cpu", "gpu"] | None
    """Where gradients are encoded and decoded; with a compressor or a strategy, always on the host.

    None until `beside` knows where they are.
    """
    timeout_s: float | None
    """Seconds that a sum waits for other ranks; None for the backend's."""
    log_every: int
    """Steps between two lines of statistics; 0 for none."""

    def __post_init__(self) -> None:
        """Raise HookConfigError for values, and combinations of values, that are not allowed."""
        for field, (allowed, remedy) in _ALLOWED.items():
            value = getattr(self, field)
            if not allowed(value):
                raise HookConfigError(f"{field}: {value!r} {remedy}")
        if self.reducer().on_host:
            object.__setattr__(self, "implementation", "cpu")

    def reducer(self) -> Reducer:
        """Return a new reducer, without residuals. Raises HookConfigError for values that do not fit."""
        with as_hooks():
            lossy = lossy_reducer(
                self.compressor,
                self.strategy,
                self.error_feedback,
                over=self.over,
                switch=self.has_switch,
                group_gathers=self.makes_backend,
                span=profiled,
                note=noted,
            )
        return lossy or Reducer()

    @property
    def has_switch(self) -> bool:
        """Whether the backend is a switch, or a `Summation` in its place."""
        if isinstance(self.over, str):
            return self.over.partition(":")[0] == SWITCH
        return not isinstance(self.over, ProcessGroupSummation)

    @property
    def model(self) -> NetworkModel:
        """The network model; the default one until it is measured."""
        return self.network if isinstance(self.network, NetworkModel) else NetworkModel()

    @property
    def makes_backend(self) -> bool:
        """Whether the hook makes its backend, and so closes it."""
        return isinstance(self.over, str)

    def beside(self, gradients: torch.Tensor | None) -> Settings:
        """Return the settings for gradients on this device, whose `implementation` is not None.

        None is for those of which it is not known where they will be.
        """
        if self.implementation is not None:
            return self
        on_device = gradients is not None and gradients.is_cuda and find_spec("triton") is not None
        return replace(self, implementation="gpu" if on_device else "cpu")

    def allreduce(self, names: Sequence[str], history: History, summation: Summation) -> Allreduce:
        """Return the all-reduce of a bucket over `summation`, where `names` are the bucket's parameters."""
        forms = self.forms
        if not isinstance(forms, str):  # an Allreduce rejects names of other buckets
            forms = {name: form for name, form in forms.items() if name in names}
        return Allreduce(
            summation,
            forms=forms,
            names=names,
            values=self.values,
            network=self.model,
            history=history,
            average=True,
            implementation=self.implementation or "cpu",
            span=profiled,
            note=noted,
        )

    def check_forms(self, names: Collection[str]) -> None:
        """Raise HookConfigError now for settings that the first step would reject.

        names: those of all parameters, outside of which `forms` may name none; empty if not known.
        """
        step_spans()
        try:
            Allreduce(LocalSummation.group(1)[0], forms=self.forms, values=self.values)
        except ValueError as error:
            raise HookConfigError(str(error)) from error
        unknown = set() if isinstance(self.forms, str) else set(self.forms) - set(names)
        if names and unknown:
            raise HookConfigError(
                f"forms: {min(unknown)!r} is not among `names`; correct it, or give the names of all modules"
            )


@contextmanager
def as_hooks() -> Iterator[None]:
    """Raise a compressor's error as the hook's."""
    try:
        yield
    except CompressError as error:
        raise HookConfigError(str(error)) from error
