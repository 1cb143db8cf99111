"""Sum float tensors exactly over all workers, on any backend; and a training hook's buckets, by a `Reducer`.

Theory of operation. One call of `Allreduce.sum` is one step. First, workers check that they have the same
plan: they OR a digest of plan and step, and its complement. These words are an exchange of their own if the
tensors are new; otherwise they are sent with the words that follow. Then a protocol sums the tensors:
`peelsum.allreduce.two_rounds`, or, if all of them are known and the chooser estimates that it takes less
time, `peelsum.allreduce.one_round`.

All workers must make the same decisions: on agreement, scales, lengths, left-over and the next step's
choices. They do, because each decision depends only on sums, which are the same on every worker.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Never, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.choosing import DEFAULT_NETWORK, Chooser, RequestedForm, RequestedValues, require_names
from peelsum.allreduce.costs import NetworkModel
from peelsum.allreduce.errors import REMOVED, DeviceMemoryError, InvalidRequestError, PlanMismatchError
from peelsum.allreduce.history import History
from peelsum.allreduce.plan import (
    AGREEMENT_WORDS,
    SUPPORTED_DTYPES,
    Choice,
    Plan,
    PlanSettings,
    TensorPlan,
    agreed,
    agreement_words,
    digest_of,
    unsupported_dtype,
)
from peelsum.allreduce.protocol import Note, Recorder, Span
from peelsum.allreduce.result import StepResult
from peelsum.allreduce.step import StepExecutor
from peelsum.codec import BFloat16, CodecError, Implementation, SketchLayout, device
from peelsum.codec.segments import Segment, SegmentTable
from peelsum.summation import Part, PieceSummation, Summation

#: Capacities of the caches of plans and of tensors' names, and of that of agreed plans.
_PLANS, _AGREED_PLANS = 32, 1024
_UNCHOSEN = Choice("dense")

_Floats = NDArray[np.float32]
#: An array, or a torch tensor.
Tensor = _Floats | NDArray[np.float16] | BFloat16 | Any
Tensors = Mapping[str, Tensor] | Sequence[Tensor]
T = TypeVar("T")


class Allreduce:
    """An exact allreduce of float tensors over the workers of `summation`.

    Each worker has its own object, which only one thread may use.

    `forms`, `values` and `network` are those of `Chooser`. Every name in `forms` must be the name of a
    tensor; otherwise every worker raises InvalidRequestError in the first step. The known names are `names`,
    or, if that is empty, those of the first call of `sum`.

    - `history`: the statistics of earlier steps, from which forms are chosen. By default it is empty. Pass
      one that several objects share, or one that was restored, to continue a training run.
    - `seed`, `cells_per_candidate`: determine the layout of sketches. By default a sketch has 1.3 cells per
      candidate, and 60 more if there are fewer than 1,000.
    - `average`: divide results by the number of workers.
    - `implementation`: the implementation of the codec; "gpu" takes torch tensors.
    - `clock`: returns the time in seconds.
    - `span`: takes "encode", "exchange" or "decode" and returns a context manager, such as a profiler's. It
      is entered around the work of that phase, and with "step" around the whole step. If it returns None for
      "step", neither it nor `note` is called for the rest of the step.
    - `note`: is called inside a span with the `chunks` and `bytes` that this worker sent. At the end of an
      exchange these are the exchange's; at the end of a step all of them, with `step` and `worker`.

    All settings, and the tensors' names, shapes, dtypes and order, must be the same on every worker;
    otherwise every worker raises PlanMismatchError. The constructor raises InvalidRequestError or CodecError
    for an invalid setting.
    """

    def __init__(
        self,
        summation: Summation,
        *,
        forms: RequestedForm | Mapping[str, RequestedForm] = "auto",
        values: RequestedValues = "auto",
        names: Collection[str] = (),
        network: NetworkModel = DEFAULT_NETWORK,
        history: History | None = None,
        seed: int = 0,
        average: bool = False,
        cells_per_candidate: float | None = None,
        implementation: Implementation = "cpu",
        clock: Callable[[], float] = time.perf_counter,
        span: Span | None = None,
        note: Note | None = None,
        **removed: Never,
    ) -> None:
        for name in removed:
            if name not in REMOVED:
                raise TypeError(f"{name!r} is not an argument")
            raise InvalidRequestError(f"{name}: was removed; {REMOVED[name]}")
        self._summation = summation
        if not isinstance(average, bool):
            raise InvalidRequestError(f"average: {average!r} is not a bool; use True or False")
        require_names("names", names)
        self._names = tuple(names)
        self._chooser = Chooser(forms, values=values, network=network, history=history)
        self._settings = PlanSettings(seed, average, cells_per_candidate, str(self._chooser))
        # Report an invalid size here, not in a later step.
        SketchLayout.sized(0, 0, cells_per_candidate)
        direct = getattr(summation, "device", None) is not None
        self._device = device(implementation, direct=direct)
        self._recorder, self._unrecorded = Recorder(clock, span, note), Recorder(clock)
        #: Sequences of tensors' names that were checked in earlier calls.
        self._checked_names: set[tuple[str, ...]] = set()
        #: The requests of the plans that all workers have agreed on, oldest first.
        self._agreed: dict[int, None] = {}
        #: For each sequence of names, shapes and dtypes, the last plan, and the statistics from which it was
        #: made. The most recently used is the last.
        self._plans: dict[tuple[Any, ...], tuple[Plan, NDArray[np.float64]]] = {}
        #: Why an earlier call failed; empty if none did.
        self._failure = ""
        self._steps = 0

    @property
    def average(self) -> bool:
        """Whether results are divided by the number of workers."""
        return self._settings.average

    def sum(self, tensors: Tensors, *, in_place: bool = False, out: Tensors | None = None) -> StepResult:
        """Return the exact sum of each tensor over all workers.

        Every worker must call this with tensors of the same names, shapes and dtypes, in the same order.
        Blocks until every worker has contributed. If a tensor is not finite on some worker, its result is NaN
        on all.

        Tensors are float32 or float16 arrays, or BFloat16. They may be strided, read-only, empty or
        zero-dimensional, and are not modified unless `in_place`. With implementation="gpu" they are torch
        tensors on a device; the sums are on the same device, computed on the current stream. Workers with and
        without a GPU can take part in the same sum.

        `in_place` overwrites tensors that are writable float32 arrays in C order with the `values` of their
        results, which saves an array each. `out` holds arrays to which the `values` are written, by the names
        of their tensors, or in the order of the first tensors. They must be writable float32 arrays in C
        order, of the tensors' shapes, and share no memory with each other or with other tensors. The arrays
        of an earlier step's results can be passed. All other results are new.

        If a device lacks memory in a step, this worker goes through the rounds again on the host and ends the
        step there; other workers' sums do not change. It logs an error that names tensor, bytes and remedy.
        Sums that replace tensors, or go to `out`, are copied to the device. For others there may be no room:
        then DeviceMemoryError is raised, with the step's result, and the next step can follow.

        Raises InvalidRequestError for tensors or an `out` that cannot be used: nothing has been sent then,
        and the call can be repeated. Raises PlanMismatchError if the workers differ, InvalidRequestError if
        all pass an unsupported dtype, and the summation's error if it stalls. After these, the workers may be
        out of step: further calls raise InvalidRequestError, and a new summation is needed.
        """
        if self._failure:
            raise InvalidRequestError(
                f"sum: an earlier call failed ({self._failure}); start again with a new summation"
            )
        into: Mapping[str, Tensor] = {}
        named = self._named_as_is(tensors)
        if named is not None and not out:  # so all of them are writable
            if in_place:
                into = named
        else:
            named = self._validated_by_name(tensors)
            into = self._results_into(named, in_place, self._validated_by_name(out or {}))
        try:
            recorder = self._recorder
            span = None if recorder.span is None else recorder.span("step")
            if span is not None:
                with span:
                    result = self._sum(named, into, recorder)
            else:
                result = self._sum(named, into, recorder if recorder.span is None else self._unrecorded)
        except BaseException as error:
            if not isinstance(error, DeviceMemoryError) or error.result is None:
                self._failure = str(error) or type(error).__name__
            raise
        return result

    def _sum(self, named: Mapping[str, Tensor], into: Mapping[str, Tensor], recorder: Recorder) -> StepResult:
        """Execute a step of checked tensors; write the results to the tensors of `into`, by name."""
        self._steps += 1
        plan = self._plan(named)
        step = StepExecutor(self._summation, self._chooser, self._device, plan, self._steps, recorder)
        with step.exchanges:
            if plan.request not in self._agreed:
                # Exchange the digest alone: if plans differ, so may the lengths of what follows.
                step.exchanges.agree()
                for tensor in plan.tensors:
                    if tensor.dtype not in SUPPORTED_DTYPES:
                        raise unsupported_dtype(tensor.name, tensor.dtype)
                if not self._agreed:
                    self._chooser.check(self._names or plan.names)
                if len(self._agreed) == _AGREED_PLANS:  # all workers forget the same plan, and agree again
                    del self._agreed[next(iter(self._agreed))]
                self._agreed[plan.request] = None
            return step.sum(named, into)

    def _plan(self, named: Mapping[str, Tensor]) -> Plan:
        """Return the plan of a step: that of the last such step, unless the statistics have changed."""
        signature = tuple([(name, tensor.shape, tensor.dtype) for name, tensor in named.items()])
        plan, basis = self._plans.pop(signature, (None, np.empty(0)))
        if plan is None:
            dtype = self._device.dtype
            tensors = tuple(
                TensorPlan(name, tuple(tensor.shape), dtype(tensor), _UNCHOSEN)
                for name, tensor in named.items()
            )
        else:
            tensors = plan.tensors
        keys = tuple([tensor.key for tensor in tensors]) if plan is None else plan.keys
        current = self._chooser.history.basis(keys)
        if plan is None or current.tobytes() != basis.tobytes():
            chosen, one_round = self._chooser.choose(tensors, self._settings)
            if plan is None or (chosen, one_round) != (plan.tensors, plan.one_round):
                plan = Plan(chosen, self._summation.workers, self._summation.lanes, self._settings, one_round)
        if len(self._plans) == _PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[signature] = plan, current
        return plan

    def _named_as_is(self, tensors: Tensors) -> dict[str, Tensor] | None:
        """Return the tensors by name, if the device can use all as they are, without a call for each.

        It returns None for a mapping whose names have not passed an earlier call.
        """
        if type(tensors) is list and self._device.usable_as_is(tensors):
            return dict(zip(map(str, range(len(tensors))), tensors, strict=True))
        if not isinstance(tensors, dict) or tuple(tensors) not in self._checked_names:
            return None
        return tensors if self._device.usable_as_is(tensors.values()) else None

    def _validated_by_name(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return the tensors by name, those of a sequence by index, as the device's `validated` returns them.

        Raises InvalidRequestError.
        """
        pairs = tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors)
        named: dict[str, Tensor] = {}
        for name, tensor in ((str(key), tensor) for key, tensor in pairs):
            try:
                name.encode()
            except UnicodeEncodeError:
                raise InvalidRequestError(
                    f"tensors: {name!r} cannot be written in UTF-8; rename it"
                ) from None
            if isinstance(tensor, np.ma.MaskedArray):  # would be summed as if it had no mask
                raise InvalidRequestError(
                    f"tensors: {name!r} is a masked array; fill in its masked elements, e.g. with .filled(0)"
                )
            if name in named:
                raise InvalidRequestError(
                    f"tensors: {name!r} names two tensors; give every tensor its own name"
                )
            try:
                named[name] = self._device.validated(tensor)
            except CodecError as error:
                reason = str(error).removeprefix("tensor: ")
                raise InvalidRequestError(f"tensors: {name!r}: {reason}") from error
        if len(self._checked_names) == _PLANS:
            self._checked_names.clear()
        if isinstance(tensors, Mapping) and list(tensors) == list(named):
            self._checked_names.add(tuple(named))
        return named

    def _results_into(
        self, named: Mapping[str, Tensor], in_place: bool, out: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Return the tensors to which results are written, by name. Raises InvalidRequestError."""
        device = self._device
        into = {name: tensor for name, tensor in named.items() if in_place and device.overwritable(tensor)}
        for name, tensor in out.items():
            if name not in named:
                raise InvalidRequestError(f"out: {name!r} is not a tensor; leave it out")
            shape = tuple(named[name].shape)
            if not device.overwritable(tensor) or tuple(tensor.shape) != shape:
                raise InvalidRequestError(
                    f"out: {name!r} cannot take the sum; pass a writable float32 array in C order, of shape "
                    f"{shape}"
                )
            into[name] = tensor
        if not out:
            return into
        # An array of `out` may share memory with the tensor of its own name, but with no other.
        ranges = ((*device.memory_range(tensor), name) for name, tensor in out.items())
        spans = sorted((start, end, name) for start, end, name in ranges if start < end)
        shared = [(name, other) for (_, end, name), (start, _, other) in pairwise(spans) if start < end]
        for other, tensor in named.items():
            start, end = device.memory_range(tensor)
            if start < end and (before := bisect_left(spans, (end,))):
                out_start, out_end, name = spans[before - 1]
                if start < out_end and (name != other or (out_start, out_end) != (start, end)):
                    shared.append((name, other))
        if shared:
            name, other = shared[0]
            raise InvalidRequestError(f"out: {name!r} shares memory with {other!r}; pass an array of its own")
        return into


def reduce_scatter(
    summation: PieceSummation,
    values: _Floats,
    *,
    average: bool = False,
    implementation: Implementation = "cpu",
) -> _Floats:
    """Return this worker's piece of the sum over workers, float32[n], as `Allreduce` would compute it.

    In a first round, workers agree on the scales of blocks, by OR, and all quantize by them. In a second, the
    backend sends each piece's sum to its owner alone.

    values: float32[workers * n], the workers' pieces end to end, left unchanged. Every piece has scales of
    its own, in blocks of 32. If an element is not finite on some worker, its whole piece becomes NaN.
    average: divide by the number of workers, before the result is rounded.
    Raises InvalidRequestError for another dtype, shape or length, PlanMismatchError if workers' pieces differ
    in length, and what the backend raises.
    """
    workers, worker_id = summation.workers, summation.worker_id
    size, remainder = divmod(values.size, workers)
    if values.dtype != np.float32 or values.ndim != 1 or remainder:
        raise InvalidRequestError(
            f"values: {values.dtype}{list(values.shape)} has no piece of equal length for each of {workers} "
            "workers; pass float32 of one dimension, padded with zeros"
        )
    if not size:
        return np.empty(0, np.float32)
    segments, no_words = device(implementation).segments, np.empty(0, np.uint32)
    table = SegmentTable([Segment(size, sparse=False)] * workers)
    codec = segments(table, np.split(values, workers), [None] * workers, workers)
    agreement = agreement_words(digest_of(f"reduce-scatter {size}"))
    header = np.concatenate([agreement, np.zeros(table.scale_words, np.uint32)])
    codec.write_scales(header[AGREEMENT_WORDS:])
    (united,) = summation.sum_words([Part(header, "or")])
    if not agreed(united):
        raise PlanMismatchError(
            f"reduce_scatter: workers have pieces of other lengths than the {size} elements here"
        )
    codec.read_scales(united[AGREEMENT_WORDS:])
    count, _ = codec.set_candidates(no_words)
    if not count:
        return codec.decode(np.empty(0, np.int32), np.empty(0, np.int32), 1)[worker_id]
    written = np.empty(count, np.int32)
    codec.write_dense(written)
    numbers = np.zeros((workers, size), np.int32)
    numbers[codec.sent != 0] = written.reshape(-1, size)
    total = summation.reduce_scatter(numbers.view(np.uint32).reshape(-1)).view(np.int32)
    piece = segments(
        SegmentTable([Segment(size, sparse=False)]), [values[worker_id * size :][:size]], [None], workers
    )
    blocks = slice(*table.blocks[worker_id : worker_id + 2].tolist())
    piece.set_scales(codec.fields[worker_id : worker_id + 1], codec.scales[blocks])
    count, _ = piece.set_candidates(no_words)
    return piece.decode(total[:count], np.empty(0, np.int32), workers if average else 1)[0]


#: (tensors, shapes, step): returns the averages of a bucket's flat tensors, by their parameters' names, and
#: writes them to the tensors that are float32. The result has a `summary` and costs, as `StepResult` has.
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
    """How a training hook sums its buckets: every element, exactly, and nothing is kept for later steps.

    `peelsum.compress` has reducers that compress.
    """

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
