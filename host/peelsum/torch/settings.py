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
from peelsum.compress import Collectives, CompressedSum, CompressError, Compressor, Memory, TopK
from peelsum.compress.compressed_sum import feedback_of
from peelsum.flexible import METHODS, Flexible, carrier_of
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
        if self.strategy is not None:
            self._check_strategy(self.strategy)
        elif self.method is not None:
            with _as_hooks():
                feedback_of(self.method, self.error_feedback)
        if not self.lossless:
            object.__setattr__(self, "implementation", "cpu")

    def _check_strategy(self, strategy: Flexible) -> None:
        """Raise HookConfigError for what a strategy decides itself, or cannot have."""
        if self.compressor is not None:
            raise HookConfigError(
                f"compressor: {self.compressor!r} does not go with a strategy, which chooses what to send; "
                "use one of both"
            )
        if self.error_feedback is False:
            raise HookConfigError(
                "error_feedback: False does not go with a strategy, whose residuals it is; use None"
            )
        through = [one for one in strategy.methods or () if carrier_of(one) == "switch"]
        if through and not self.has_switch:
            raise HookConfigError(
                f"strategy: method {through[0]!r} needs a switch, but over is {self.over!r}; "
                "use over='switch', or leave the method out"
            )

    @property
    def has_switch(self) -> bool:
        """Whether the backend is a switch, or a `Summation` in its place."""
        if isinstance(self.over, str):
            return self.over.partition(":")[0] == SWITCH
        return not isinstance(self.over, ProcessGroupSummation)

    @property
    def needs_group(self) -> bool:
        """Whether a process group is needed as well, if the backend is a switch."""
        if self.strategy is not None:
            return any(carrier_of(one) == "group" for one in self.strategy.methods or METHODS)
        return self.makes_backend and self.method is not None and self.method.kind == "gather"

    @property
    def lossless(self) -> bool:
        """Whether every element is summed, so that nothing is kept."""
        return self.method is None and self.strategy is None

    @property
    def buckets_wait(self) -> bool:
        """Whether buckets may be summed together: words of their sums are known, and no scale or share is
        that of a bucket.
        """
        if self.strategy is not None:
            return False
        return self.method is None or (self.method.kind == "indexed" and self.method.per == "tensor")

    @property
    def method(self) -> Compressor | None:
        """The compressor, or None. Error feedback alone sends all elements, and keeps what is rounded off."""
        alone = self.compressor is None and self.strategy is None
        return TopK(1.0) if alone and self.error_feedback else self.compressor

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

    def compressed(
        self,
        collectives: Collectives,
        compressor: Compressor,
        names: Sequence[str],
        memory: Memory,
        history: History,
        summation: Summation | None = None,
    ) -> CompressedSum:
        """Return the compressed sum of a bucket; indexed payloads go over `summation`, or `collectives` too.

        Raises HookConfigError if the compressor cannot sum over so many workers.
        """
        summation = summation or collectives
        with _as_hooks():
            return CompressedSum(
                summation,
                compressor,
                memory,
                error_feedback=self.error_feedback if self.strategy is None else True,
                allreduce=self.allreduce(summation, names, history),
                collectives=collectives,
                span=profiled,
                note=noted,
            )

    def allreduce(self, summation: Summation, names: Sequence[str], history: History) -> Allreduce:
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
def _as_hooks() -> Iterator[None]:
    """Raise a compressor's error as the hook's."""
    try:
        yield
    except CompressError as error:
        raise HookConfigError(str(error)) from error
