"""Reducers with loss for a training hook: their base class, and the reducer with a fixed compressor.

The reducer's memory keeps values that are not sent as residuals for later sums.
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
from peelsum.allreduce.reducer import BucketSum, ExactSum, Reducer, SumScheduler
from peelsum.allreduce.rounds import Note, Span, ignore_costs
from peelsum.codec import BFloat16
from peelsum.codec.arrays import to_float32
from peelsum.compress import loops
from peelsum.compress.arguments import CompressConfigError
from peelsum.compress.collectives import GroupSummation, Route, StepExchanges
from peelsum.compress.compressed_sum import CompressedSum, uses_feedback
from peelsum.compress.compressor import Compressor
from peelsum.compress.costs import SwitchPath
from peelsum.compress.exchange import CompressedResult
from peelsum.compress.memory import Memory, Residual
from peelsum.compress.sparsifier import TopK


class LossyReducer(Reducer):
    """The base class of reducers with loss. Residuals are in `memory`."""

    on_host = keeps_residuals = True
    #: False, because scales and shares may be those of a bucket.
    can_merge_buckets = False

    def __init__(self, *, span: Span = nullcontext, note: Note = ignore_costs) -> None:
        self.memory = Memory()
        self._span, self._note = span, note

    def warm_up(self) -> None:
        loops.warm_up()

    def saved(self) -> dict[str, Any]:
        """Return the residuals, and the arrays that compressors keep; see `Reducer.saved`."""
        residuals = {name: dict(vars(residual)) for name, residual in self.memory.residuals.items()}
        kept = {name: arrays for name, arrays in self.memory.kept.items() if arrays}
        return {"residuals": residuals, **({"kept": kept} if kept else {})}

    def restore(
        self, values: Mapping[str, Any], residuals: Sequence[Mapping[str, Mapping[str, NDArray[Any]]]]
    ) -> None:
        """See `Reducer.restore`. Raises CompressConfigError for damaged residuals, TypeError for none."""
        memories = ({name: Residual(**arrays) for name, arrays in rank.items()} for rank in residuals)
        self.memory.restore(*memories)
        self.memory.kept = dict(values.get("kept", {}))

    def _new_sum(
        self,
        compressor: Compressor,
        route: Route,
        exact: ExactSum,
        error_feedback: bool | None,
    ) -> CompressedSum:
        """Return the compressed sum of a bucket over a route; `exact` sums indexed payloads."""
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
    """Sums by a compressor. Raises CompressConfigError for momentum without error feedback.

    group_gathers: whether to make a process group for gathered payloads, if the backend is not one.
    """

    argument = "compressor"

    def __init__(
        self, compressor: Compressor, error_feedback: bool | None, *, group_gathers: bool, **spans: Any
    ) -> None:
        super().__init__(**spans)
        uses_feedback(compressor, error_feedback)
        self._compressor, self._error_feedback = compressor, error_feedback
        self._group_gathers = group_gathers
        self._group: GroupSummation | None = None
        # If each tensor is compressed by itself, buckets do not matter.
        self.can_merge_buckets = compressor.kind == "indexed" and compressor.per == "tensor"

    def connect(self, turns: SumScheduler, new_group: Callable[[], GroupSummation]) -> None:
        """Sum at `turns` from now on; make a process group for gathered payloads if one is needed."""
        super().connect(turns, new_group)
        if isinstance(turns.backend, GroupSummation):
            self._group = turns.backend
        elif self._group_gathers and self._compressor.kind == "gather":
            self._group = new_group()

    def bucket(self, exact: ExactSum) -> BucketSum:
        """Return a function that sums a bucket. Raises CompressConfigError for too many workers."""
        route = Route(self.turns, StepExchanges(), SwitchPath(), self._group)
        compressed_sum = self._new_sum(self._compressor, route, exact, self._error_feedback)
        return partial(sum_in_place, compressed_sum.sum)


def sum_in_place(
    sum_tensors: Callable[[Mapping[str, NDArray[Any]], int], CompressedResult],
    tensors: Mapping[str, Tensor],
    shapes: Sequence[tuple[int, ...]],
    step: int,
) -> CompressedResult:
    """Call `sum_tensors` with flat tensors, converted to float32 and to these shapes; return its result.

    Tensors that are float32 are replaced by their sums. Raises InvalidRequestError for a dtype that the
    all-reduce does not take.
    """
    for name, tensor in tensors.items():
        if str(tensor.dtype) not in SUPPORTED_DTYPES:
            raise unsupported_dtype(name, str(tensor.dtype))
    arrays: Any = tensors
    wide = {
        name: to_float32(tensor).reshape(shape)
        for (name, tensor), shape in zip(arrays.items(), shapes, strict=True)
    }
    result = sum_tensors(wide, step)
    for name, tensor in arrays.items():
        if tensor.dtype == "float32":
            tensor[:] = result[name].values.reshape(-1)
    size = sum((array.bits if isinstance(array, BFloat16) else array).nbytes for array in arrays.values())
    float32_size = sum(array.nbytes for array in wide.values())
    return replace(result, dense_bytes=result.dense_bytes * size // max(float32_size, 1))


def check_compressor(compressor: Any, error_feedback: Any) -> Compressor | None:
    """Return the compressor for these arguments of a hook; None for exact sums.

    Error feedback without a compressor sends all elements, and keeps the rounding errors. Raises
    CompressConfigError for values of other types.
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
