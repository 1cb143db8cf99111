"""How a hook's buckets are summed: the interface, and exact sums. `peelsum.compress` has sums with loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from peelsum.allreduce import Allreduce, StepResult, Summation
from peelsum.allreduce.allreduce import Tensor
from peelsum.compress import CompressedResult, StrategyStats
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.sum_queue import QueuedSummation

#: sum(tensors, shapes, step): the averages of a bucket's flat tensors, by their parameters' names. Tensors
#: that are float32 become their averages.
BucketSum = Callable[[Mapping[str, Tensor], Sequence[tuple[int, ...]], int], StepResult | CompressedResult]
#: Returns the exact all-reduce of a bucket over a summation.
ExactSum = Callable[[Summation], Allreduce]


class Reducer(Protocol):
    """What a hook knows of the way in which its buckets are summed."""

    @property
    def argument(self) -> str:
        """The hook's argument that asks for it."""

    @property
    def on_host(self) -> bool:
        """Whether it takes arrays in host memory only."""

    @property
    def residuals(self) -> bool:
        """Whether it keeps what this rank has not sent, under the parameters' names."""

    @property
    def merges(self) -> bool:
        """Whether several buckets may be summed as one, with the same results."""

    def warm_up(self) -> None:
        """Compile what its sums need, besides the exact all-reduce."""

    def connect(self, summation: Summation, new_group: Callable[[], ProcessGroupSummation]) -> None:
        """Sum over `summation` from now on. new_group: makes a process group, for what it cannot add up."""

    def bucket(self, turns: QueuedSummation, exact: ExactSum) -> BucketSum:
        """Return the sum of a bucket, whose exchanges take turns."""

    def before(self, work: Callable[[], None], turns: QueuedSummation, step: int) -> Callable[[], None]:
        """Return `work`, a sum at `turns`, and what goes before it; called in the order of submission."""

    def stats(self) -> StrategyStats | None:
        """Return the decisions of a strategy; None without one."""

    def saved(self) -> dict[str, Any]:
        """Return what later steps depend on: plain values and arrays, by names; {} without `residuals`."""

    def restore(
        self, values: Mapping[str, Any], residuals: Sequence[Mapping[str, Mapping[str, NDArray[Any]]]]
    ) -> None:
        """Continue where `saved` returned `values`, with the sums of the residuals of several ranks."""


class ExactReducer:
    """Sums every element, exactly. Nothing is left for later steps."""

    argument = "values"
    on_host = residuals = False
    merges = True

    def warm_up(self) -> None:
        """See `Reducer.warm_up`."""

    def connect(self, summation: Summation, new_group: Callable[[], ProcessGroupSummation]) -> None:
        """See `Reducer.connect`."""

    def bucket(self, turns: QueuedSummation, exact: ExactSum) -> BucketSum:
        """See `Reducer.bucket`; tensors may be of any dtype and device that the all-reduce takes."""
        allreduce = exact(turns)
        return lambda tensors, shapes, step: allreduce.sum(tensors, in_place=True)

    def before(self, work: Callable[[], None], turns: QueuedSummation, step: int) -> Callable[[], None]:
        """See `Reducer.before`."""
        return work

    def stats(self) -> StrategyStats | None:
        """See `Reducer.stats`."""
        return None

    def saved(self) -> dict[str, Any]:
        """See `Reducer.saved`."""
        return {}

    def restore(
        self, values: Mapping[str, Any], residuals: Sequence[Mapping[str, Mapping[str, NDArray[Any]]]]
    ) -> None:
        """See `Reducer.restore`."""
