"""The settings of a communication hook, their validation, and the all-reduces that they describe.

Arguments are checked when the state is made, not in its first step: each of them, then their combinations.
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
from peelsum.allreduce.allreduce import Reducer
from peelsum.compress import CompressError, Compressor, Flexible, lossy_reducer
from peelsum.torch.backends import SWITCH
from peelsum.torch.errors import HookConfigError
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.stats import profile_range, set_span_attributes, step_spans
from peelsum.torch.switch_seat import OnLost

#: For a setting, a test of its value and the end of the error message; see `SwitchAllreduceState`.
_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "over": (
        lambda value: isinstance(value, str) or callable(getattr(value, "sum_words", None)),
        "is not a backend; use 'switch', one of torch.distributed such as 'gloo', or a Summation",
    ),
    "on_lost": (
        lambda value: value in ("error", "continue"),
        "is unknown; use 'error', or 'continue' to go on with the ranks that are left",
    ),
    "network": (
        lambda value: value == "measured" or isinstance(value, NetworkModel),
        "is not a network model; give a peelsum.allreduce.NetworkModel, or 'measured'",
    ),
    "compressor": (
        lambda value: isinstance(value, Compressor | None),
        "is not a compressor; give one of peelsum.compress such as TopK(0.01) or QSGD(4), or None",
    ),
    "strategy": (
        lambda value: isinstance(value, Flexible | None),
        "is not a strategy; give a peelsum.compress.Flexible, or None",
    ),
    "error_feedback": (
        lambda value: isinstance(value, bool | None),
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


@dataclass(frozen=True)
class HookSettings:
    """The settings of a `SwitchAllreduceState`, under the names of its arguments; see there."""

    over: str | Summation
    forms: RequestedForm | Mapping[str, RequestedForm]
    values: RequestedValues
    network: NetworkModel | Literal["measured"]
    """The network model by which forms are compared, or "measured" until ranks have connected."""
    compressor: Compressor | None
    strategy: Flexible | None
    error_feedback: bool | None
    implementation: Literal["cpu", "gpu"] | None
    """Where gradients are encoded and decoded; with a compressor or a strategy, always on the host.

    None until `for_device_of` knows their device.
    """
    timeout_s: float | None
    log_every: int
    on_lost: OnLost = "error"
    enters: bool = False

    def __post_init__(self) -> None:
        """Raise HookConfigError for values, and combinations of values, that are not allowed."""
        for field, (allowed, remedy) in _ALLOWED.items():
            value = getattr(self, field)
            if not allowed(value):
                raise HookConfigError(f"{field}: {value!r} {remedy}")
        if self.enters and self.on_lost == "error":
            raise HookConfigError("enters: needs on_lost='continue', as the run that it enters has")
        survives, reducer = self.on_lost == "continue", self.reducer()
        if survives and not (self.has_switch and self.owns_backend):
            raise HookConfigError(
                f"on_lost: 'continue' is for a switch, not for {self.over!r}; give over='switch://HOST:PORT'"
            )
        if survives and self.network == "measured":
            raise HookConfigError("network: on_lost='continue' needs a NetworkModel; leave 'measured' out")
        if survives and self.strategy is not None:
            raise HookConfigError(
                "strategy: measures times, and on_lost='continue' changes them; use one of both"
            )
        if reducer.on_host:
            object.__setattr__(self, "implementation", "cpu")

    def reducer(self) -> Reducer:
        """Return a new reducer, without residuals. Raises HookConfigError for values that do not fit."""
        with hook_errors():
            lossy = lossy_reducer(
                self.compressor,
                self.strategy,
                self.error_feedback,
                over=self.over,
                switch=self.has_switch,
                # A process group of torch fails when a rank is lost.
                group_gathers=self.owns_backend and self.on_lost == "error",
                span=profile_range,
                note=set_span_attributes,
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
    def owns_backend(self) -> bool:
        """Whether the hook makes its backend, and so closes it."""
        return isinstance(self.over, str)

    def for_device_of(self, gradients: torch.Tensor | None) -> HookSettings:
        """Return these settings with an `implementation` for the device of `gradients`.

        None, for gradients whose device is not known yet, takes "cpu".
        """
        if self.implementation is not None:
            return self
        on_device = gradients is not None and gradients.is_cuda and find_spec("triton") is not None
        return replace(self, implementation="gpu" if on_device else "cpu")

    def allreduce(self, names: Sequence[str], history: History, summation: Summation) -> Allreduce:
        """Return the all-reduce over `summation` of a bucket, whose parameters have these names."""
        forms = self.forms
        if not isinstance(forms, str):  # an Allreduce rejects the names of other buckets' parameters
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
            span=profile_range,
            note=set_span_attributes,
        )

    def check_forms(self, names: Collection[str]) -> None:
        """Raise HookConfigError for `forms` and `values` that the first step would reject.

        names: the names of all parameters, of which `forms` may name some; empty if not known.
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
def hook_errors() -> Iterator[None]:
    """Raise errors of compressors in the body as HookConfigError."""
    try:
        yield
    except CompressError as error:
        raise HookConfigError(str(error)) from error
