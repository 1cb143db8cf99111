"""How a training hook sums its buckets: exactly, here. `peelsum.compress` extends it by sums with loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from peelsum.allreduce.allreduce import Allreduce, Tensor
from peelsum.summation import Summation

T = TypeVar("T")
#: sum(tensors, shapes, step): the averages of a bucket's flat tensors, by their parameters' names. Tensors
#: that are float32 become their averages. The result has a `tally` and costs, as `StepResult` has.
BucketSum = Callable[[Mapping[str, Tensor], Sequence[tuple[int, ...]], int], Any]
#: Returns the exact all-reduce of a bucket over a summation.
ExactSum = Callable[[Summation], Allreduce]


class Turns(Summation, Protocol):
    """A `Summation` for one of several sums, whose exchanges with workers take turns."""

    @property
    def backend(self) -> Summation:
        """The summation for which they take turns."""

    def in_turn(self, work: Callable[[], T]) -> T:
        """Return what `work`, an exchange, returns when it is this sum's turn."""


class Reducer:
    """Sums every element, exactly, and keeps nothing for later steps."""

    #: The hook's argument that asks for it.
    argument = "values"
    #: Whether it takes arrays in host memory only.
    on_host = False
    #: Whether it keeps what this rank has not sent, under the parameters' names.
    residuals = False

    @property
    def merges(self) -> bool:
        """Whether several buckets may be summed as one, with the same results."""
        return True

    def warm_up(self) -> None:
        """Compile what its sums need, besides the exact all-reduce."""

    def connect(self, summation: Summation, new_group: Callable[[], Any]) -> None:
        """Sum over `summation` from now on; new_group: makes a process group, for what it cannot add up."""

    def bucket(self, turns: Turns, exact: ExactSum) -> BucketSum:
        """Return the sum of a bucket, whose exchanges take turns."""
        allreduce = exact(turns)
        return lambda tensors, shapes, step: allreduce.sum(tensors, in_place=True)

    def before(self, work: Callable[[], None], turns: Turns, step: int) -> Callable[[], None]:
        """Return `work`, a sum at `turns`, and what goes before it; called in the order of submission."""
        return work

    def stats(self) -> Any:
        """Return the decisions of a strategy; None without one."""
        return None

    def saved(self) -> dict[str, Any]:
        """Return what later steps depend on: plain values and arrays, by names; {} without `residuals`."""
        return {}

    def restore(
        self, values: Mapping[str, Any], residuals: Sequence[Mapping[str, Mapping[str, NDArray[Any]]]]
    ) -> None:
        """Continue where `saved` returned `values`, with the sums of the residuals of several ranks."""
