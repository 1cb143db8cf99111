"""Sums with loss for a training hook: by one compressor here, by a strategy in `peelsum.compress.decisions`.

What a sum leaves out is kept by the reducer's memory, for later sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from peelsum.allreduce.allreduce import Tensor
from peelsum.allreduce.plan import SUPPORTED_DTYPES, unsupported_dtype
from peelsum.allreduce.reducer import BucketSum, ExactSum, Reducer, Turns
from peelsum.allreduce.rounds import Note, Span, unnoted
from peelsum.codec import BFloat16
from peelsum.codec.floats import widened
from peelsum.compress import loops
from peelsum.compress.arguments import CompressConfigError
from peelsum.compress.collectives import GroupSummation, Route, StepExchanges
from peelsum.compress.compressed_sum import CompressedSum, feedback_of
from peelsum.compress.compressor import Compressor
from peelsum.compress.costs import SwitchPath
from peelsum.compress.exchange import CompressedResult
from peelsum.compress.memory import Memory, Residual
from peelsum.compress.sparsifier import TopK


class LossyReducer(Reducer):
    """The base of reducers with loss, whose residuals `memory` keeps."""

    on_host = residuals = True
    #: False, as scales and shares may be a bucket's.
    merges = False

    def __init__(self, *, span: Span = nullcontext, note: Note = unnoted) -> None:
        self.memory = Memory()
        self._span, self._note = span, note

    def warm_up(self) -> None:
        loops.warm_up()

    def saved(self) -> dict[str, Any]:
        residuals = {name: dict(vars(one)) for name, one in self.memory.residuals.items()}
        kept = {name: arrays for name, arrays in self.memory.kept.items() if arrays}
        return {"residuals": residuals, **({"kept": kept} if kept else {})}

    def restore(
        self, values: Mapping[str, Any], residuals: Sequence[Mapping[str, Mapping[str, NDArray[Any]]]]
    ) -> None:
        """See `Reducer.restore`. Raises CompressConfigError for damaged residuals, TypeError for none."""
        self.memory.restore(*({name: Residual(**one) for name, one in rank.items()} for rank in residuals))
        self.memory.kept = dict(values.get("kept", {}))

    def _sum(
        self,
        compressor: Compressor,
        route: Route,
        exact: ExactSum,
        error_feedback: bool | None,
    ) -> CompressedSum:
        """Return a bucket's sum by a compressor."""
        return CompressedSum(
            route,
            compressor,
            self.memory,
            error_feedback=error_feedback,
            allreduce=exact(route),
            collectives=route,
            span=self._span,
            note=self._note,
        )


class CompressorReducer(LossyReducer):
    """Sums by one compressor. Raises CompressConfigError for momentum without error feedback.

    group_gathers: whether a backend that is not a process group gets one for gathered payloads.
    """

    argument = "compressor"

    def __init__(
        self, compressor: Compressor, error_feedback: bool | None, *, group_gathers: bool, **spans: Any
    ) -> None:
        super().__init__(**spans)
        feedback_of(compressor, error_feedback)
        self._compressor, self._error_feedback = compressor, error_feedback
        self._group_gathers = group_gathers
        self._group: GroupSummation | None = None
        # Each tensor is then compressed on its own, whichever bucket it is in.
        self.merges = compressor.kind == "indexed" and compressor.per == "tensor"

    def connect(self, turns: Turns, new_group: Callable[[], GroupSummation]) -> None:
        super().connect(turns, new_group)
        if isinstance(turns.backend, GroupSummation):
            self._group = turns.backend
        elif self._group_gathers and self._compressor.kind == "gather":
            self._group = new_group()

    def bucket(self, exact: ExactSum) -> BucketSum:
        """Return the sum of a bucket. Raises CompressConfigError for too many workers."""
        route = Route(self.turns, StepExchanges(), SwitchPath(), self._group)
        summing = self._sum(self._compressor, route, exact, self._error_feedback)
        return partial(summed_in_place, summing.sum)


def summed_in_place(
    total: Callable[[Mapping[str, NDArray[Any]], int], CompressedResult],
    tensors: Mapping[str, Tensor],
    shapes: Sequence[tuple[int, ...]],
    step: int,
) -> CompressedResult:
    """Return `total` of flat tensors as float32 in these shapes; those that are float32 become their sums.

    Raises InvalidRequestError for another dtype than the all-reduce's.
    """
    for name, tensor in tensors.items():
        if str(tensor.dtype) not in SUPPORTED_DTYPES:
            raise unsupported_dtype(name, str(tensor.dtype))
    arrays: Any = tensors
    wide = {
        name: widened(tensor).reshape(shape)
        for (name, tensor), shape in zip(arrays.items(), shapes, strict=True)
    }
    result = total(wide, step)
    for name, tensor in arrays.items():
        if tensor.dtype == "float32":
            tensor[:] = result[name].values.reshape(-1)
    size = sum((one.bits if isinstance(one, BFloat16) else one).nbytes for one in arrays.values())
    in_floats = sum(one.nbytes for one in wide.values())
    return replace(result, dense_bytes=result.dense_bytes * size // max(in_floats, 1))


def checked(compressor: Any, error_feedback: Any) -> Compressor | None:
    """Return the compressor that two arguments of a hook ask for; None for none.

    Error feedback alone sends all elements, and keeps what is rounded off. Raises CompressConfigError for
    values of other types.
    """
    if compressor is not None and not isinstance(compressor, Compressor):
        raise CompressConfigError(
            f"compressor: {compressor!r} is not a compressor; give one of peelsum.compress such as "
            "TopK(0.01) or QSGD(4), or None"
        )
    if not isinstance(error_feedback, bool | None):
        raise CompressConfigError(
            f"error_feedback: {error_feedback!r} is not a choice; give True, False, or None for what the "
            "compressor needs"
        )
    return TopK(1.0) if compressor is None and error_feedback else compressor
