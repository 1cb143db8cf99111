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
    """A `Summation` for several sums at once, whose exchanges with workers take turns."""

    @property
    def backend(self) -> Summation:
        """What sums the words when it is their turn."""

    def in_turn(self, exchange: Callable[[], T]) -> T:
        """Return what another exchange returns when it is the turn of the sum that runs here."""


class Reducer:
    """Sums every element, exactly, and keeps nothing for later steps."""

    #: The hook's argument that asks for it.
    argument = "values"
    #: Whether it takes arrays in host memory only.
    on_host = False
    #: Whether it keeps what this rank has not sent, under the parameters' names.
    residuals = False

    #: Whether several buckets may be summed as one, with the same results.
    merges = True
    #: Where its sums take turns, once it is connected.
    turns: Turns

    def warm_up(self) -> None:
        """Compile what its sums need, besides the exact all-reduce."""

    def connect(self, turns: Turns, new_group: Callable[[], Any]) -> None:
        """Sum at `turns` from now on; new_group: makes a process group, for what it cannot add up."""
        self.turns = turns

    def bucket(self, exact: ExactSum) -> BucketSum:
        """Return the sum of a bucket."""
        allreduce = exact(self.turns)
        return lambda tensors, shapes, step: allreduce.sum(tensors, in_place=True)

    def before(self, work: Callable[[], None], step: int) -> Callable[[], None]:
        """Return `work`, a sum, and what goes before it; called in the order of submission."""
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
