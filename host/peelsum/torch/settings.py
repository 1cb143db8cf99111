"""The settings of a communication hook, and the all-reduces that they ask for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from peelsum.allreduce import (
    Allreduce,
    LocalSummation,
    NetworkModel,
    RequestedForm,
    RequestedValues,
    Summation,
)
from peelsum.allreduce.rounds import unnoted
from peelsum.compress import (
    Chooser,
    Collectives,
    CompressedSum,
    CompressError,
    Compressor,
    Indexed,
    Memory,
)
from peelsum.compress.indexed import JOINED
from peelsum.flexible import METHODS, Flexible, carrier_of
from peelsum.torch.arguments import check_arguments
from peelsum.torch.backends import SWITCH
from peelsum.torch.errors import HookConfigError
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.profiling import noted, profiled, step_spans


@dataclass(frozen=True)
class Settings:
    """The settings of a `SwitchAllreduceState`, under the names of its arguments; see there."""

    over: str | Summation
    """The backend: its name, or an object."""
    forms: RequestedForm | Mapping[str, RequestedForm]
    """The form of all tensors, or of each by name."""
    values: RequestedValues
    """How the non-zeros of sparse tensors are sent."""
    seed: int
    """Seed of sketches, Bloom filters and random choices."""
    network: NetworkModel
    """The network model by which forms are compared."""
    compressor: Compressor | Chooser | None
    """The method of compression; None has none."""
    strategy: Flexible | None
    """The strategy that chooses method and ratio in every step, or None."""
    error_feedback: bool | None
    """Whether what is not sent is kept; None asks the compressor."""
    momentum: float
    """Factor of momentum correction, 0 to below 1; 0 has none."""
    implementation: Literal["cpu", "gpu"]
    """Where gradients are encoded and decoded."""
    timeout_s: float | None
    """Seconds that a sum waits for other ranks; None for the backend's."""
    log_every: int
    """Steps between two lines of statistics; 0 for none."""
    joined: bool = False
    """Whether the chosen elements of a bucket are summed as one tensor."""

    def __post_init__(self) -> None:
        """Raise HookConfigError for values, and combinations of values, that are not allowed."""
        check_arguments(
            over=self.over,
            seed=self.seed,
            compressor=self.compressor,
            strategy=self.strategy,
            error_feedback=self.error_feedback,
            momentum=self.momentum,
            implementation=self.implementation,
            timeout_s=self.timeout_s,
            log_every=self.log_every,
            joined=self.joined,
        )
        if self.joined and (self.method is None or self.method.kind != "indexed"):
            raise HookConfigError(
                "joined: True is for chosen elements; use it with an indexed compressor such as TopK"
            )
        if self.joined and not isinstance(self.forms, str):
            raise HookConfigError("joined: True takes one form for all; use joined=False with forms by name")
        if self.strategy is not None:
            self._check_strategy(self.strategy)
        elif self.method is None:
            self._check_lossless()
        elif self.implementation == "gpu":
            raise HookConfigError("implementation: 'gpu' has no error feedback; use 'cpu' with a compressor")
        self.memory()

    def _check_lossless(self) -> None:
        if self.momentum:
            raise HookConfigError(
                f"momentum: {self.momentum} is for what a compressor keeps; give it to the optimizer instead"
            )
        if self.error_feedback is not None:
            raise HookConfigError(
                f"error_feedback: {self.error_feedback} is for compressors; use None without one"
            )

    def _check_strategy(self, strategy: Flexible) -> None:
        """Raise HookConfigError for what a strategy decides itself, or cannot have."""
        beside: dict[str, tuple[object, object, str]] = {
            "compressor": (self.compressor, None, "which chooses what to send; use one of both"),
            "momentum": (self.momentum, 0, "whose dense steps would clear it; give it to the optimizer"),
            "error_feedback": (self.error_feedback is False, False, "whose residuals it is; use None"),
            "implementation": (self.implementation, "cpu", "which runs on the host; use 'cpu'"),
        }
        for field, (value, wanted, reason) in beside.items():
            if value != wanted:
                raise HookConfigError(
                    f"{field}: {getattr(self, field)!r} does not go with a strategy, {reason}"
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
        """The compressor, or None. An object that only chooses elements becomes an `Indexed` one."""
        chosen = self.compressor
        return chosen if chosen is None or isinstance(chosen, Compressor) else Indexed(chosen)

    @property
    def makes_backend(self) -> bool:
        """Whether the hook makes its backend, and so closes it."""
        return isinstance(self.over, str)

    def without_connection(self) -> Settings:
        """Return settings that can be pickled: a `Summation` in `over` becomes "switch"."""
        return self if self.makes_backend else replace(self, over="switch")

    def memory(self) -> Memory | None:
        """Return a new memory for compressor or strategy, or None without one.

        Raises HookConfigError for a momentum that it cannot have.
        """
        if self.lossless:
            return None
        if self.method is None or self.error_feedback is not None:
            feedback = self.error_feedback is not False
        else:
            feedback = self.method.needs_feedback
        try:
            return Memory(feedback=feedback, momentum=self.momentum)
        except CompressError as error:
            raise HookConfigError(str(error)) from error

    def compressed(
        self,
        collectives: Collectives,
        compressor: Compressor,
        names: Sequence[str],
        memory: Memory,
        summation: Summation | None = None,
    ) -> CompressedSum:
        """Return the compressed sum of a bucket; indexed payloads go over `summation`, or `collectives` too.

        Raises HookConfigError if the compressor cannot sum over so many workers.
        """
        summation = summation or collectives
        try:
            return CompressedSum(
                summation,
                compressor,
                memory,
                seed=self.seed,
                allreduce=self.allreduce(summation, (JOINED, *names) if self.joined else names),
                joined=self.joined,
                collectives=collectives,
                span=profiled,
                note=noted,
            )
        except CompressError as error:
            raise HookConfigError(str(error)) from error

    def allreduce(self, summation: Summation, names: Sequence[str]) -> Allreduce:
        """Return the all-reduce of a bucket over `summation`, where `names` are the bucket's parameters."""
        forms = self.forms
        if not isinstance(forms, str):  # an Allreduce rejects names of other buckets
            forms = {name: form for name, form in forms.items() if name in names}
        return self._allreduce(summation, forms, names)

    def check_forms(self, names: Collection[str]) -> None:
        """Raise HookConfigError now for settings that the first step would reject.

        names: those of all parameters, outside of which `forms` may name none; empty if not known.
        """
        try:
            replace(self, implementation="cpu")._allreduce(LocalSummation.group(1)[0], self.forms, ())
        except ValueError as error:
            raise HookConfigError(str(error)) from error
        unknown = set() if isinstance(self.forms, str) else set(self.forms) - set(names)
        if names and unknown:
            raise HookConfigError(
                f"forms: {min(unknown)!r} is not among `names`; correct it, or give the names of all modules"
            )

    def _allreduce(
        self,
        summation: Summation,
        forms: RequestedForm | Mapping[str, RequestedForm],
        names: Sequence[str],
    ) -> Allreduce:
        return Allreduce(
            summation,
            forms=forms,
            names=names,
            values=self.values,
            seed=self.seed,
            network=self.network,
            average=True,
            implementation=self.implementation,
            span=profiled,
            note=unnoted if step_spans() is None else noted,
        )
