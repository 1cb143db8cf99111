"""How a training hook sums its buckets: exactly. `peelsum.compress` has reducers that compress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from peelsum.allreduce.allreduce import Allreduce, Tensor
from peelsum.summation import Summation

T = TypeVar("T")
#: (tensors, shapes, step): returns the averages of a bucket's flat tensors, by their parameters' names, and
#: writes them to the tensors that are float32. The result has a `tally` and costs, as `StepResult` has.
BucketSum = Callable[[Mapping[str, Tensor], Sequence[tuple[int, ...]], int], Any]
#: Returns the exact all-reduce of a bucket over a summation.
ExactSum = Callable[[Summation], Allreduce]


class SumScheduler(Summation, Protocol):
    """A `Summation` for several sums at once, whose exchanges with other workers take turns."""

    @property
    def backend(self) -> Summation:
        """The backend that sums the words of one sum at a time."""

    def in_turn(self, exchange: Callable[[], T]) -> T:
        """Call `exchange` when it is the turn of the sum that runs in this thread; return its result."""


class Reducer:
    """Sums every element, exactly, and keeps nothing for later steps."""

    #: The hook's argument that selects this reducer.
    argument = "values"
    #: Whether it takes arrays in host memory only.
    on_host = False
    #: Whether it keeps residuals, by the parameters' names: what this rank has not sent yet.
    keeps_residuals = False
    #: Whether several buckets may be merged into one sum with the same results.
    can_merge_buckets = True
    #: The summation at which its sums take turns, once it is connected.
    turns: SumScheduler

    def warm_up(self) -> None:
        """Compile what its sums need in addition to the exact all-reduce."""

    def connect(self, turns: SumScheduler, new_group: Callable[[], Any]) -> None:
        """Sum at `turns` from now on. new_group: makes a process group, for other collectives than sums."""
        self.turns = turns

    def bucket(self, exact: ExactSum) -> BucketSum:
        """Return the function that sums a bucket."""
        allreduce = exact(self.turns)
        return lambda tensors, shapes, step: allreduce.sum(tensors, in_place=True)

    def before(self, work: Callable[[], None], step: int) -> Callable[[], None]:
        """Return a function that does what must precede a sum, then `work`, the sum.

        It is called in the order in which sums are submitted.
        """
        return work

    def stats(self) -> Any:
        """Return the decisions of a strategy; None without a strategy."""
        return None

    def saved(self) -> dict[str, Any]:
        """Return what later steps depend on: plain values and arrays, by names; {} without residuals."""
        return {}

    def restore(
        self, values: Mapping[str, Any], residuals: Sequence[Mapping[str, Mapping[str, NDArray[Any]]]]
    ) -> None:
        """Restore the state that `saved` returned, with the sums of several ranks' residuals."""
