"""The settings of a communication hook, and the all-reduces that they ask for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from peelsum.allreduce import Allreduce, LocalSummation, Network, RequestedForm, RequestedIndex, Summation
from peelsum.compress import Chooser, CompressedSum, CompressError, Compressor, Indexed, Memory
from peelsum.torch.arguments import check_arguments
from peelsum.torch.collectives import collectives_of
from peelsum.torch.errors import HookConfigError
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.profiling import profiled
from peelsum.torch.sum_queue import QueuedSummation


@dataclass(frozen=True)
class Settings:
    """The settings of a `SwitchAllreduceState`, under the names of its arguments; see there."""

    over: str | Summation
    forms: RequestedForm | Mapping[str, RequestedForm]
    index: RequestedIndex
    predict: bool
    limbs: int
    seed: int
    network: Network
    sparsifier: Chooser | None
    compressor: Compressor | None
    error_feedback: bool | None
    momentum: float
    implementation: Literal["cpu", "gpu"]
    timeout_s: float | None
    log_every: int

    def __post_init__(self) -> None:
        """Raise HookConfigError for values, and combinations of values, that are not allowed."""
        check_arguments(
            over=self.over,
            seed=self.seed,
            sparsifier=self.sparsifier,
            compressor=self.compressor,
            error_feedback=self.error_feedback,
            momentum=self.momentum,
            implementation=self.implementation,
            timeout_s=self.timeout_s,
            log_every=self.log_every,
        )
        if self.sparsifier is not None and self.compressor is not None:
            raise HookConfigError("compressor: does not go with a sparsifier; use Combined for both")
        if self.method is None:
            self._check_lossless()
        elif self.implementation == "gpu":
            raise HookConfigError("implementation: 'gpu' has no error feedback; use 'cpu' with a sparsifier")
        elif self.method.kind != "indexed" and self.limbs != 1:
            raise HookConfigError(f"limbs: {self.limbs} is for sparsifiers; use 1 with {self.method!r}")
        self.memory()

    def _check_lossless(self) -> None:
        if self.momentum:
            raise HookConfigError(
                f"momentum: {self.momentum} is for what a sparsifier keeps; give it to the optimizer instead"
            )
        if self.error_feedback is not None:
            raise HookConfigError(
                f"error_feedback: {self.error_feedback} is for compressors; use None without one"
            )

    @property
    def method(self) -> Compressor | None:
        """The compressor, or that of the sparsifier; None sums every element."""
        if self.sparsifier is not None:
            return Indexed(self.sparsifier)
        return self.compressor

    @property
    def makes_backend(self) -> bool:
        """Whether the hook makes its backend, and so closes it."""
        return isinstance(self.over, str)

    def without_connection(self) -> Settings:
        """Return settings that can be pickled: a `Summation` in `over` becomes "switch"."""
        return self if self.makes_backend else replace(self, over="switch")

    def memory(self) -> Memory | None:
        """Return a new memory for the compressor, or None without one.

        Raises HookConfigError for a momentum that it cannot have.
        """
        if self.method is None:
            return None
        feedback = self.method.needs_feedback if self.error_feedback is None else self.error_feedback
        try:
            return Memory(feedback=feedback, momentum=self.momentum)
        except CompressError as error:
            raise HookConfigError(str(error)) from error

    def compressed(
        self,
        summation: QueuedSummation,
        names: Sequence[str],
        memory: Memory,
        group: ProcessGroupSummation | None,
    ) -> CompressedSum:
        """Return the compressed sum of a bucket; `group` gathers, and broadcasts if it is the backend.

        Raises HookConfigError if the compressor cannot sum over so many workers.
        """
        assert self.method is not None
        try:
            return CompressedSum(
                summation,
                self.method,
                memory,
                seed=self.seed,
                allreduce=self.allreduce(summation, names),
                collectives=collectives_of(summation, group),
                span=profiled,
            )
        except CompressError as error:
            raise HookConfigError(str(error)) from error

    def allreduce(self, summation: Summation, names: Sequence[str]) -> Allreduce:
        """Return the all-reduce of a bucket over `summation`, where `names` are the bucket's parameters."""
        forms = self.forms
        if not isinstance(forms, str):  # an Allreduce rejects names of other buckets
            forms = {name: form for name, form in forms.items() if name in names}
        return self._allreduce(summation, forms, names, self.implementation)

    def check_forms(self, names: Collection[str]) -> None:
        """Raise HookConfigError now for settings that the first step would reject.

        names: those of all parameters, outside of which `forms` may name none; empty if not known.
        """
        try:
            self._allreduce(LocalSummation.group(1)[0], self.forms, (), "cpu")
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
        implementation: Literal["cpu", "gpu"],
    ) -> Allreduce:
        return Allreduce(
            summation,
            forms=forms,
            sparse=() if self.method is None else names,
            index=self.index,
            predict=self.predict,
            limbs=self.limbs,
            seed=self.seed,
            network=self.network,
            average=True,
            implementation=implementation,
            span=profiled,
        )
