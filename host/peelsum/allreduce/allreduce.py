"""Sum float tensors exactly over all workers, on any backend.

Theory of operation. One call of `Allreduce.sum` is one step. First, workers agree that they have the same
plan: they OR a digest of plan and step, and its complement. It travels alone if the tensors are new, and else
with the words that follow. Then a protocol sums the tensors: `peelsum.allreduce.two_rounds`, or, if all of
them are known and the chooser expects it to take less time, `peelsum.allreduce.one_round`.

All workers must make the same decisions: on agreement, scales, lengths, left-over and the next step's
choices. They do, because each decision depends only on sums, which are the same on every worker.
"""

from __future__ import annotations

import hashlib
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Never, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.choosing import DEFAULT_NETWORK, Chooser, RequestedForm, RequestedValues, require_names
from peelsum.allreduce.costs import NetworkModel
from peelsum.allreduce.errors import (
    DeviceMemoryError,
    InvalidRequestError,
    PlanMismatchError,
    refuse_arguments,
)
from peelsum.allreduce.history import History
from peelsum.allreduce.one_round import Expected, OneRound
from peelsum.allreduce.outcome import Outcome
from peelsum.allreduce.plan import (
    Choice,
    Plan,
    Settings,
    TensorPlan,
    agreed,
    agreement_words,
    unsupported,
    unsupported_dtype,
)
from peelsum.allreduce.protocol import SumProtocol
from peelsum.allreduce.result import StepResult
from peelsum.allreduce.rounds import Note, Span, Step, unnoted
from peelsum.allreduce.two_rounds import TwoRounds
from peelsum.codec import (
    HOST,
    BFloat16,
    CodecError,
    Device,
    Implementation,
    SketchLayout,
    device,
)
from peelsum.summation import NotBegunError, Part, Summation, Words
from peelsum.wire import packet_bytes

if TYPE_CHECKING:
    from peelsum.codec.gpu_memory import DeviceMemory

_log = logging.getLogger("peelsum")
#: Plans of earlier steps that are kept, and plans of which it is kept that all workers have agreed on them.
_REMEMBERED, _AGREED = 32, 1024
_UNCHOSEN = Choice("dense")


class DeviceTensor(Protocol):
    """The part of `torch.Tensor` that the allreduce uses."""

    @property
    def shape(self) -> tuple[int, ...]:
        """See `torch.Tensor.shape`."""

    @property
    def dtype(self) -> Any:
        """See `torch.Tensor.dtype`."""

    def cpu(self) -> Any:
        """See `torch.Tensor.cpu`."""


Tensor = NDArray[np.float32] | NDArray[np.float16] | BFloat16 | DeviceTensor
Tensors = Mapping[str, Tensor] | Sequence[Tensor]


class Allreduce:
    """An exact allreduce of float tensors over the workers of `summation`.

    Each worker has its own object, which only one thread may use.

    `forms`, `values` and `network` are those of `Chooser`. Every name in `forms` must be the name of a
    tensor; otherwise every worker raises InvalidRequestError in the first step. The known names are `names`,
    or, if that is empty, those of the first call of `sum`.

    - `history`: what is known of tensors from earlier steps, from which forms are chosen. By default it is
      new; one that several objects share, or that was restored, makes their steps those of one training.
    - `seed`, `cells_per_candidate`: determine the layout of sketches. By default a sketch has 1.3 cells per
      candidate, and 60 more if there are fewer than 1,000.
    - `average`: divide results by the number of workers.
    - `implementation`: the implementation of the codec; "gpu" takes torch tensors.
    - `clock`: returns the time in seconds.
    - `span`: takes "encode", "exchange" or "decode" and returns a context manager, such as a profiler's. It
      is entered around the work of that phase, and with "step" around the whole step.
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
        span: Span = nullcontext,
        note: Note = unnoted,
        **removed: Never,
    ) -> None:
        refuse_arguments(removed)
        self._summation = summation
        if not isinstance(average, bool):
            raise InvalidRequestError(f"average: {average!r} is not a bool; use True or False")
        require_names("names", names)
        self._names = tuple(names)
        self._chooser = Chooser(forms, values=values, network=network, history=history)
        self._settings = Settings(seed, average, cells_per_candidate, str(self._chooser))
        # Report an invalid size here, not in a later step.
        SketchLayout.sized(0, 0, self._settings.cells(0))
        direct = getattr(summation, "device", None) is not None
        self._device = device(implementation, direct=direct)
        self._clock, self._span, self._note = clock, span, note
        #: Names of tensors that were checked in earlier calls.
        self._named_before: set[tuple[str, ...]] = set()
        #: The plans that all workers have agreed on, by their requests, oldest first.
        self._agreed: dict[int, None] = {}
        #: The last plan of each sequence of names, shapes and dtypes, and for which unions it was chosen; the
        #: one used last at the end.
        self._plans: dict[tuple[Any, ...], tuple[Plan, NDArray[np.float64]]] = {}
        self._failed = False
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
        if self._failed:
            raise InvalidRequestError("sum: an earlier call failed; start again with a new summation")
        named = self._named(tensors)
        plain = named is tensors and out is None  # as they are, and writable
        into = named if plain and in_place else self._into(named, in_place, self._named(out or {}))
        self._failed = True
        try:
            with self._span("step"), self._begun() as step:
                result = self._sum(named, into, step)
        except DeviceMemoryError as error:
            self._failed = error.result is None
            raise
        self._failed = False
        return result

    def _begun(self) -> Step:
        self._steps += 1
        keeping = not self._device.is_host
        return Step(self._summation, self._device, self._clock, self._span, self._note, keeping=keeping)

    def _sum(self, named: Mapping[str, Tensor], into: Mapping[str, Tensor], step: Step) -> StepResult:
        plan = self._plan(named)
        expected, known = self._expected(plan), plan.request in self._agreed
        if not known:
            self._agree(plan, expected, step)
        ahead = [self._agreement(plan, expected)] if known else []
        try:
            return self._summed(self._device, plan, expected, named, into, ahead, step)
        except RuntimeError as error:
            lacked = None if self._device.is_host else self._lacked(error, plan, step)
            if lacked is None:
                raise
        # The traceback is gone here, and with it what the step had on the device.
        _log.error("%s. The host computes this step.", lacked)
        try:
            return self._on_host(plan, expected, named, into, ahead, step)
        except RuntimeError as error:  # over NCCL, words need memory of the device
            lacked = self._lacked(error, plan, step)
            if lacked is None:
                raise
        raise DeviceMemoryError(f"{lacked}. Start again with a new summation.")

    def _summed(
        self,
        device: Device,
        plan: Plan,
        expected: Expected | None,
        named: Mapping[str, Tensor],
        into: Mapping[str, Tensor],
        ahead: Sequence[Part],
        step: Step,
    ) -> StepResult:
        """Run the rounds, and decode their sums."""
        layout, outcome = plan.layout, Outcome(plan, device)
        if layout.order:
            tensors = list(named.values())
            with device.beside(tensors[layout.order[0]]):
                step.enter("encode")
                values, out = device.flat(tensors, [into.get(name) for name in named])
                chosen = [values[m] for m in layout.order], [out[m] for m in layout.order]
                codec = device.segments(layout.table, *chosen, plan.workers)
                protocol: SumProtocol
                if expected:
                    protocol = OneRound(plan, self._chooser, device, codec, expected)
                else:
                    protocol = TwoRounds(plan, self._chooser, device, codec, self._seed(plan))
                step.run(protocol.rounds(), ahead, device)
                outcome.take(protocol)
        elif ahead:
            step.run(None, ahead, device)
        return self._finish(outcome, plan, step)

    def _seed(self, plan: Plan) -> int:
        """Return a seed that changes with each step: a support with an unlucky layout gets another."""
        if not plan.layout.parts:
            return 0
        text = f"{self._settings.seed}/{self._steps}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())

    def _expected(self, plan: Plan) -> Expected | None:
        """Return what is expected of a step that goes ahead."""
        if not plan.ahead or not plan.layout.order:
            return None
        return Expected.of(plan, self._chooser.history, self._seed(plan))

    def _lacked(self, error: RuntimeError, plan: Plan, step: Step) -> str | None:
        """Return a message if a device had no room; None if the error says something else.

        Raises DeviceMemoryError if the backend had begun a sum, which cannot go on.
        """
        device = cast("DeviceMemory", self._device)
        asked = device.lacked(error)
        if asked is None:
            return None
        message = (
            f"memory: worker {self._summation.worker_id} has no room for {asked} on the device, in step "
            f"{self._steps} for {plan.label}; free memory there, sum fewer tensors in one step (with DDP, a "
            "smaller bucket_cap_mb), or pass in_place=True"
        )
        if step.summing and not isinstance(error, NotBegunError):
            raise DeviceMemoryError(f"{message}. Start again with a new summation.") from error
        step.summing = False
        device.settle()  # for copies to memory of the host that is freed next
        return message

    def _on_host(
        self,
        plan: Plan,
        expected: Expected | None,
        named: Mapping[str, Any],
        into: Mapping[str, Any],
        ahead: Sequence[Part],
        step: Step,
    ) -> StepResult:
        """Go through a step's rounds again on the host, and end it there."""
        device = cast("DeviceMemory", self._device)
        near: dict[str, Tensor] = {name: device.near(tensor) for name, tensor in named.items()}
        found = self._summed(HOST, plan, expected, near, {}, ahead, step)
        results, lacked = [], None
        for result in found.tensors:
            try:
                there = device.placed_in(result.values, named[result.name], into.get(result.name))
            except RuntimeError as error:
                lacked = self._lacked(error, plan, step)
                if lacked is None:
                    raise
                there = device.left_on_host(result.values)
            results.append(replace(result, values=cast(Any, there)))
        ended = replace(found, tensors=results)
        if lacked is not None:
            failed = DeviceMemoryError(f"{lacked}. The error's `result` has the sums, on the host.")
            failed.result = ended
            raise failed
        return ended

    def _plan(self, named: Mapping[str, Tensor]) -> Plan:
        asked = tuple([(name, tensor.shape, tensor.dtype) for name, tensor in named.items()])
        plan, basis = self._plans.pop(asked, (None, np.empty(0)))
        if plan is None or self._chooser.history.changed(plan.keys, basis):
            if plan is None:
                dtype = self._device.dtype
                tensors = tuple(
                    TensorPlan(name, tuple(one.shape), dtype(one), _UNCHOSEN) for name, one in named.items()
                )
            else:
                tensors = plan.tensors
            chosen, ahead = self._chooser.choose(tensors, self._settings)
            if plan is None or (chosen, ahead) != (plan.tensors, plan.ahead):
                plan = Plan(chosen, self._summation.workers, self._summation.lanes, self._settings, ahead)
            basis = self._chooser.history.basis(plan.keys)
        if len(self._plans) == _REMEMBERED:
            del self._plans[next(iter(self._plans))]
        self._plans[asked] = plan, basis
        return plan

    def _named(self, tensors: Tensors) -> dict[str, Tensor]:
        if (
            isinstance(tensors, dict)
            and tuple(tensors) in self._named_before
            and self._device.plain(tensors.values())
        ):
            return tensors
        pairs = tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors)
        named: dict[str, Tensor] = {}
        for name, tensor in pairs:
            _check(str(name), tensor)
            if str(name) in named:
                raise InvalidRequestError(
                    f"tensors: {str(name)!r} names two tensors; give every tensor its own name"
                )
            try:
                named[str(name)] = self._device.accepted(tensor)
            except CodecError as error:
                reason = str(error).removeprefix("tensor: ")
                raise InvalidRequestError(f"tensors: {str(name)!r}: {reason}") from error
        if len(self._named_before) == _REMEMBERED:
            self._named_before.clear()
        if isinstance(tensors, Mapping) and list(tensors) == list(named):
            self._named_before.add(tuple(named))
        return named

    def _into(
        self, named: Mapping[str, Tensor], in_place: bool, out: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Return the tensors to which results are written, by name."""
        device = self._device
        into = {name: one for name, one in named.items() if in_place and device.overwritable(one)}
        for name, tensor in out.items():
            if name not in named:
                raise InvalidRequestError(f"out: {name!r} is not a tensor; leave it out")
            if not device.overwritable(tensor) or tuple(tensor.shape) != tuple(named[name].shape):
                shape = tuple(named[name].shape)
                raise InvalidRequestError(
                    f"out: {name!r} cannot take the sum; pass a writable float32 array in C order, of shape "
                    f"{shape}"
                )
            into[name] = tensor
        self._require_apart(named, out)
        return into

    def _require_apart(self, named: Mapping[str, Tensor], out: Mapping[str, Tensor]) -> None:
        """Raise InvalidRequestError if an array of `out` shares memory with another, or with a tensor."""
        if not out:
            return
        device = self._device
        places = ((*device.span(tensor), name) for name, tensor in out.items())
        spans = sorted(one for one in places if one[0] < one[1])
        shared = [(one, other) for (_, end, one), (start, _, other) in pairwise(spans) if start < end]
        for other, tensor in named.items():
            start, end = device.span(tensor)
            if start < end and (before := bisect_left(spans, (end,))):
                *place, one = spans[before - 1]
                if start < place[1] and (one != other or place != [start, end]):
                    shared.append((one, other))
        if shared:
            one, other = shared[0]
            raise InvalidRequestError(f"out: {one!r} shares memory with {other!r}; pass an array of its own")

    def _agree(self, plan: Plan, expected: Expected | None, step: Step) -> None:
        """Exchange a new plan's digest alone: if plans differ, so may the lengths of what follows."""
        step.sum_words([self._agreement(plan, expected)])
        refused = unsupported(plan.tensors)
        if refused is not None:
            raise unsupported_dtype(refused.name, refused.dtype)
        if not self._agreed:
            self._chooser.check(self._names or [tensor.name for tensor in plan.tensors])
        if len(self._agreed) == _AGREED:  # all workers forget the same one, and agree on it again
            del self._agreed[next(iter(self._agreed))]
        self._agreed[plan.request] = None

    def _agreement(self, plan: Plan, expected: Expected | None) -> Part:
        def check(words: Words) -> None:
            if not agreed(words):
                raise PlanMismatchError(
                    f"plan: not the same on every worker; worker {self._summation.worker_id} has {plan} "
                    f"in step {self._steps}; pass the same names, shapes, dtypes and settings, in the same "
                    "order, and the same version of peelsum, on every worker, and make a new Allreduce, or "
                    "restore the history of the same step, on all of them or on none"
                )

        # The step seeds the sketches, so a worker whose step differs would add values to the wrong cells.
        # One with another history would send numbers by other scales.
        agreed_on = None if expected is None else expected.agreed
        return Part(agreement_words(plan.digest_at(self._steps, agreed_on)), "or", check)

    def _finish(self, outcome: Outcome, plan: Plan, step: Step) -> StepResult:
        step.enter(None)
        lanes, tally = self._summation.lanes, outcome.tally
        wire_bytes = step.chunks * packet_bytes(lanes)
        numbers = {"step": self._steps, "worker": self._summation.worker_id}
        self._note({**numbers, "chunks": step.chunks, "bytes": wire_bytes})
        return StepResult(
            tensors=outcome.results,
            tally=tally,
            contributions=outcome.contributions,
            digest=plan.digest,
            ahead=plan.ahead,
            exchanges=step.exchanges,
            wire_bytes=wire_bytes,
            dense_bytes=plan.dense_bytes,
            encode_s=step.seconds["encode"],
            network_s=step.seconds["exchange"],
            decode_s=step.seconds["decode"],
        )


def _check(name: str, tensor: Tensor) -> None:
    """Raise InvalidRequestError for input that would fail later or would be summed as something else."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"tensors: {name!r} cannot be written in UTF-8; rename it") from None
    if isinstance(tensor, np.ma.MaskedArray):
        raise InvalidRequestError(
            f"tensors: {name!r} is a masked array; fill in its masked elements, e.g. with .filled(0)"
        )
