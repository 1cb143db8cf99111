"""Sum float tensors exactly over all workers, on any backend.

Theory of operation. One call of `Allreduce.sum` is one step, and a step consists of these rounds. In each
round, the words of all tensors are sent back to back, in one exchange, so that chunks are full. A tensor
skips the rounds that it does not need.

    round        op   words                                          when
    agreement    OR   a digest d of plan and step, and ~d            always; alone if the tensors are new
    header       OR   exponent, scales, index or sample of density   with the agreement, else after it
                 ADD  dense values or sketch, at a predicted scale   with the header, if there is a prediction
    refinement   OR   an index of the candidates                     while too many may be false positives
    values       ADD  dense, compact or sketch                       unless sent already, zero or not finite
    left-over    ADD  values that peeling did not recover            if there are any

After a wrong prediction, the "values" round sends the tensor again, at the agreed scale.

All workers must make the same decisions: on agreement, scale, lengths, left-over and the next step's choices.
They do, because each decision depends only on sums, which are the same on every worker.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Never, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.bundle import bundled, ordered
from peelsum.allreduce.costs import NetworkModel
from peelsum.allreduce.errors import (
    DeviceMemoryError,
    InvalidRequestError,
    PlanMismatchError,
    refuse_arguments,
)
from peelsum.allreduce.exchange import Setting, TensorExchange
from peelsum.allreduce.finishing import finished
from peelsum.allreduce.forms import (
    DEFAULT_NETWORK,
    FormChooser,
    RequestedForm,
    RequestedIndex,
    require_names,
)
from peelsum.allreduce.group import Group
from peelsum.allreduce.host_bundle import HostBundle, Layout
from peelsum.allreduce.plan import (
    Plan,
    Settings,
    TensorPlan,
    agreed,
    agreement_words,
    labeled,
    unsupported,
    unsupported_dtype,
)
from peelsum.allreduce.result import StepResult, TensorResult
from peelsum.allreduce.rounds import Note, Span, Step, unnoted
from peelsum.allreduce.together import Together
from peelsum.codec import (
    BFloat16,
    HostMemory,
    Implementation,
    Kernels,
    Memory,
    SketchLayout,
    fixed_point,
    kernels,
    memory,
)
from peelsum.summation import NotBegunError, Part, Summation, Words
from peelsum.wire import packet_bytes

if TYPE_CHECKING:
    from peelsum.allreduce.device_bundle import DeviceBundle
    from peelsum.allreduce.finishing import Joined
    from peelsum.codec.gpu_memory import DeviceMemory

_log = logging.getLogger("peelsum")
#: Plans of earlier steps that are kept, and plans of which it is kept that all workers have agreed on them.
_REMEMBERED, _AGREED = 32, 1024


class DeviceTensor(Protocol):
    """The part of `torch.Tensor` that the allreduce uses."""

    @property
    def shape(self) -> tuple[int, ...]:
        """See `torch.Tensor.shape`."""

    def cpu(self) -> Any:
        """See `torch.Tensor.cpu`."""


Tensor = NDArray[np.float32] | NDArray[np.float16] | BFloat16 | DeviceTensor
Tensors = Mapping[str, Tensor] | Sequence[Tensor]


class Codec(NamedTuple):
    """An implementation of the codec, with the memory in which its arrays lie."""

    ops: Kernels
    memory: Memory


class Allreduce:
    """An exact allreduce of float tensors over the workers of `summation`.

    Each worker has its own object, which only one thread may use.

    `forms`, `sparse`, `index`, `predict` and `network` are those of `FormChooser`. Every name in `forms` and
    `sparse` must be the name of a tensor; otherwise every worker raises InvalidRequestError in the first
    step. The known names are `names`, or, if that is empty, those of the first call of `sum`.

    - `seed`, `cells_per_candidate`: determine the layout of sketches. By default a sketch has 1.4 cells per
      candidate, or 1.3 if it is sent after its union and that has 1,000 candidates or more.
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
        sparse: Collection[str] = (),
        names: Collection[str] = (),
        index: RequestedIndex = "auto",
        predict: bool = False,
        network: NetworkModel = DEFAULT_NETWORK,
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
        flags = {"average": average, "predict": predict}
        for option, flag in flags.items():
            if not isinstance(flag, bool):
                raise InvalidRequestError(f"{option}: {flag!r} is not a bool; use True or False")
        require_names("names", names)
        self._names = tuple(names)
        self._chooser = FormChooser(forms, sparse, index=index, predict=predict, network=network)
        self._settings = Settings(seed, average, cells_per_candidate, str(self._chooser))
        # Report an invalid size here, not in a later step.
        SketchLayout.sized(0, 1, 0, self._settings.cells(0, ahead=True))
        fixed_point(0, summation.workers)
        direct = getattr(summation, "device", None) is not None
        self._codec = Codec(kernels(implementation), memory(implementation, direct=direct))
        self._clock, self._span, self._note = clock, span, note
        #: The plans that all workers have agreed on, by their requests, oldest first.
        self._agreed: dict[int, None] = {}
        #: The plans of the last steps, latest first, with their digests: choices often alternate.
        self._plans: deque[Plan] = deque(maxlen=_REMEMBERED)
        #: Each tensor's last plan, ahead of groups.
        self._tensor_plans: dict[str, TensorPlan] = {}
        #: The layouts of plans' bundles, by the plans' digests.
        self._layouts: dict[int, Layout] = {}
        self._failed = False
        self._steps = 0

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
        into = self._into(named, in_place, self._named({} if out is None else out))
        self._failed = True
        try:
            with self._span("step"):
                result = self._sum(named, into)
        except DeviceMemoryError as error:
            self._failed = error.result is None
            raise
        self._failed = False
        return result

    def _sum(self, named: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> StepResult:
        self._steps += 1
        memory = self._codec.memory
        on_device = not isinstance(memory, HostMemory)
        step = Step(self._summation, memory, self._clock, self._span, self._note, keeping=on_device)
        plan = self._plan(named)
        known = plan.request in self._agreed
        if not known:
            self._agree(plan, step)
        ahead = [self._agreement(plan)] if known else []
        done: dict[str, TensorResult] = {}
        try:
            return self._summed(self._codec, plan, named, into, ahead, step, done)
        except RuntimeError as error:
            lacked = self._lacked(error, step) if on_device else None
            if lacked is None:
                raise
        # The traceback is gone here, and with it what the step had on the device.
        _log.error("%s. The host computes this step.", lacked)
        try:
            return self._on_host(plan, named, into, ahead, step, done)
        except RuntimeError as error:  # over NCCL, words need memory of the device
            lacked = self._lacked(error, step)
            if lacked is None:
                raise
        raise DeviceMemoryError(f"{lacked}. Start again with a new summation.")

    def _summed(
        self,
        codec: Codec,
        plan: Plan,
        named: Mapping[str, Tensor],
        into: Mapping[str, Tensor],
        ahead: Sequence[Part],
        step: Step,
        done: dict[str, TensorResult],
    ) -> StepResult:
        """Run the rounds and decode their sums; `done` gets each result that is on the device for good."""
        with step.timed("encode"):
            joined, alone = self._exchanges(codec, plan, named, into, step)
        step.run([*joined, *alone.values()], ahead)
        return self._finish(joined, alone, plan, step, done)

    def _lacked(self, error: RuntimeError, step: Step) -> str | None:
        """Return a message if a device had no room; None if the error says something else.

        Raises DeviceMemoryError if the backend had begun a sum, which cannot go on.
        """
        memory = cast("DeviceMemory", self._codec.memory)
        asked = memory.lacked(error)
        if asked is None:
            return None
        message = (
            f"memory: worker {self._summation.worker_id} has no room for {asked} on the device, in step "
            f"{self._steps} for {step.label}; free memory there, sum fewer tensors in one step (with DDP, a "
            "smaller bucket_cap_mb), or pass in_place=True"
        )
        if step.summing and not isinstance(error, NotBegunError):
            raise DeviceMemoryError(f"{message}. Start again with a new summation.") from error
        step.summing = False
        memory.settle()  # for copies to memory of the host that is freed next
        return message

    def _on_host(
        self,
        plan: Plan,
        named: Mapping[str, Any],
        into: Mapping[str, Any],
        ahead: Sequence[Part],
        step: Step,
        done: Mapping[str, TensorResult],
    ) -> StepResult:
        """Go through a step's rounds again on the host, and end it there. Results that are `done` stay."""
        memory, codec = cast("DeviceMemory", self._codec.memory), Codec(kernels("cpu"), HostMemory())
        near: dict[str, Tensor] = {name: memory.near(tensor) for name, tensor in named.items()}
        if memory.direct:
            step.carrying = True
        else:
            step.memory = codec.memory
        found = self._summed(codec, plan, near, {}, ahead, step, {})
        results, lacked = {result.name: result for result in found.tensors} | dict(done), None
        for name in results.keys() - done.keys():
            step.label, values = repr(name), results[name].values
            try:
                there = memory.placed_in(values, named[name], into.get(name))
            except RuntimeError as error:
                lacked = self._lacked(error, step)
                if lacked is None:
                    raise
                there = memory.left_on_host(values)
            results[name] = replace(results[name], values=cast(Any, there))
        ended = replace(found, tensors=[results[tensor.name] for tensor in plan.tensors])
        if lacked is not None:
            failed = DeviceMemoryError(f"{lacked}. The error's `result` has the sums, on the host.")
            failed.result = ended
            raise failed
        return ended

    def _plan(self, named: Mapping[str, Tensor]) -> Plan:
        each = [self._tensor_plan(name, tensor) for name, tensor in named.items()]
        tensors = tuple(self._chooser.grouped(each, self._settings))
        for at, plan in enumerate(self._plans):
            if plan.tensors == tensors:
                del self._plans[at]
                break
        else:
            plan = Plan(tensors, self._summation.workers, self._summation.lanes, self._settings)
        self._plans.appendleft(plan)
        return plan

    def _tensor_plan(self, name: str, tensor: Tensor) -> TensorPlan:
        """Return a tensor's plan, as the object of its last step if it is the same: plans compare faster."""
        shape, dtype = tuple(tensor.shape), self._codec.memory.dtype(tensor)
        choice = self._chooser.choose(name, math.prod(shape), self._settings)
        last = self._tensor_plans.get(name)
        if last is not None and last.choice is choice and (last.shape, last.dtype) == (shape, dtype):
            return last
        self._tensor_plans[name] = plan = TensorPlan(name, shape, dtype, choice)
        return plan

    def _named(self, tensors: Tensors) -> dict[str, Tensor]:
        pairs = tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors)
        named: dict[str, Tensor] = {}
        for name, tensor in pairs:
            _check(str(name), tensor)
            if str(name) in named:
                raise InvalidRequestError(
                    f"tensors: {str(name)!r} names two tensors; give every tensor its own name"
                )
            named[str(name)] = self._codec.memory.accepted(tensor)
        return named

    def _into(
        self, named: Mapping[str, Tensor], in_place: bool, out: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the tensors to which results are written, by name."""
        memory = self._codec.memory
        into = {name: one for name, one in named.items() if in_place and memory.overwritable(one)}
        for name, tensor in out.items():
            if name not in named:
                raise InvalidRequestError(f"out: {name!r} is not a tensor; leave it out")
            if not memory.overwritable(tensor) or tuple(tensor.shape) != tuple(named[name].shape):
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
        memory = self._codec.memory
        places = ((*memory.span(tensor), name) for name, tensor in out.items())
        spans = sorted(one for one in places if one[0] < one[1])
        shared = [(one, other) for (_, end, one), (start, _, other) in pairwise(spans) if start < end]
        for other, tensor in named.items():
            start, end = memory.span(tensor)
            if start < end and (before := bisect_left(spans, (end,))):
                *place, one = spans[before - 1]
                if start < place[1] and (one != other or place != [start, end]):
                    shared.append((one, other))
        if shared:
            one, other = shared[0]
            raise InvalidRequestError(f"out: {one!r} shares memory with {other!r}; pass an array of its own")

    def _agree(self, plan: Plan, step: Step) -> None:
        """Exchange a new plan's digest alone: if plans differ, so may the lengths of what follows."""
        step.sum_words([self._agreement(plan)])
        refused = unsupported(plan.tensors)
        if refused is not None:
            raise unsupported_dtype(refused.name, refused.dtype)
        if not self._agreed:
            self._chooser.check(self._names or [tensor.name for tensor in plan.tensors])
        if len(self._agreed) == _AGREED:  # all workers forget the same one, and agree on it again
            del self._agreed[next(iter(self._agreed))]
        self._agreed[plan.request] = None

    def _agreement(self, plan: Plan) -> Part:
        def check(words: Words) -> None:
            if not agreed(words):
                raise PlanMismatchError(
                    f"plan: not the same on every worker; worker {self._summation.worker_id} has {plan} "
                    f"in step {self._steps}; pass the same names, shapes, dtypes and settings, in the same "
                    "order, and the same version of peelsum, on every worker, and make a new Allreduce on "
                    "all of them or on none"
                )

        # The step seeds the sketches, so a worker whose step differs would add values to the wrong cells.
        return Part(agreement_words(plan.digest_at(self._steps)), "or", check)

    def _exchanges(
        self,
        codec: Codec,
        plan: Plan,
        named: Mapping[str, Tensor],
        into: Mapping[str, Tensor],
        step: Step,
    ) -> tuple[list[Joined], dict[str, TensorExchange]]:
        """Return the exchanges of a step in the order in which all workers send them, joined ones first."""
        step.label, memory = labeled(list(named)), codec.memory
        values = {name: memory.widened(tensor) for name, tensor in named.items()}
        # Of a tensor that is overwritten, these are the values themselves.
        out = {
            name: values[name] if tensor is named[name] else memory.widened(tensor)
            for name, tensor in into.items()
        }
        joined: list[Joined] = []
        if group := [tensor for tensor in plan.tensors if tensor.choice.grouped]:
            joined.append(self._group(codec, group, {one.name: values.pop(one.name) for one in group}, out))
        if codec.ops is kernels("cpu"):
            if values:
                joined.append(self._host_bundle(codec, plan, values, out))
            return joined, {}
        first = dict.fromkeys(bundled(plan))
        if first:
            own = self._device_bundle(codec, {name: values[name] for name in first}, out)
            if own:
                joined.append(own)
                values = {name: one for name, one in values.items() if name not in first}
        alone = {
            tensor.name: self._exchange(codec, tensor, values[tensor.name], out.get(tensor.name))
            for tensor in ordered(plan)
            if tensor.name in values
        }
        places = [*{memory.beside(one) for one in values.values()}]
        if isinstance(memory, HostMemory) or len(places) != 1:
            return joined, alone
        return [*joined, Together(alone, cast("DeviceMemory", places[0]))], {}

    def _host_bundle(
        self,
        codec: Codec,
        plan: Plan,
        values: Mapping[str, NDArray[np.float32]],
        out: Mapping[str, NDArray[np.float32]],
    ) -> HostBundle:
        layout = self._layouts.get(plan.digest)
        if layout is None:
            if len(self._layouts) == _REMEMBERED:
                del self._layouts[next(iter(self._layouts))]
            tensors = [tensor for tensor in ordered(plan) if tensor.name in values]
            layout = self._layouts[plan.digest] = Layout.of(tensors, self._chooser.wants)
        arrays = [values[name] for name in layout.names]

        def make(m: int) -> TensorExchange:
            return self._exchange(codec, layout.tensors[m], arrays[m], out.get(layout.names[m]))

        return HostBundle(
            layout,
            arrays,
            out,
            self._summation.workers,
            make=make,
            seed=lambda name: _tensor_seed(self._settings.seed, self._steps, name),
            refinement=self._chooser.refinement,
        )

    def _device_bundle(
        self,
        codec: Codec,
        values: Mapping[str, NDArray[np.float32]],
        out: Mapping[str, NDArray[np.float32]],
    ) -> DeviceBundle | None:
        """Return the bundle of tensors on a device; None if they are not on one."""
        places = {codec.memory.beside(one) for one in values.values()}
        if isinstance(codec.memory, HostMemory) or len(places) > 1:
            return None
        from peelsum.allreduce.device_bundle import DeviceBundle

        into = {name: one for name, one in out.items() if name in values}
        return DeviceBundle(values, into, self._summation.workers, cast("DeviceMemory", codec.memory))

    def _group(
        self,
        codec: Codec,
        tensors: Sequence[TensorPlan],
        values: Mapping[str, NDArray[np.float32]],
        out: Mapping[str, NDArray[np.float32]],
    ) -> Group:
        seed = _tensor_seed(self._settings.seed, self._steps, tensors[0].name)
        setting = Setting(
            codec.ops if isinstance(codec.memory, HostMemory) else kernels("cpu"),
            self._summation.workers,
            self._summation.lanes,
            self._settings,
            seed,
            refinement=self._chooser.refinement_of(tensors),
        )
        return Group(tensors[0].choice, values, out, setting, codec.memory)

    def _exchange(
        self, codec: Codec, plan: TensorPlan, values: NDArray[np.float32], out: NDArray[np.float32] | None
    ) -> TensorExchange:
        summation, seeded = self._summation, plan.choice.index or plan.choice.sampled
        seed = _tensor_seed(self._settings.seed, self._steps, plan.name) if seeded else 0
        setting = Setting(
            codec.ops,
            summation.workers,
            summation.lanes,
            self._settings,
            seed,
            codec.memory,
            self._chooser.refinement(plan.name),
            not isinstance(codec.memory, HostMemory) and self._chooser.wants(plan.name),
        )
        exchange = TensorExchange(plan.choice, values, setting, out=out)
        exchange.label = repr(plan.name)
        return exchange

    def _finish(
        self,
        joined: Sequence[Joined],
        alone: Mapping[str, TensorExchange],
        plan: Plan,
        step: Step,
        complete: dict[str, TensorResult],
    ) -> StepResult:
        with step.timed("decode"):
            done = finished(plan, joined, alone, self._chooser.wants, step, complete)
            for one in done.learned:
                self._chooser.learn(one.name, one.elements, one.seen, one.words_sent)
        lanes = self._summation.lanes
        wire_bytes = step.chunks * packet_bytes(lanes)
        numbers = {"step": self._steps, "worker": self._summation.worker_id}
        self._note({**numbers, "chunks": step.chunks, "bytes": wire_bytes})
        return StepResult(
            tensors=done.results,
            tally=done.tally,
            digest=plan.digest,
            wire_bytes=wire_bytes,
            dense_bytes=-(-done.tally.elements // lanes) * packet_bytes(lanes),
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


def _tensor_seed(seed: int, step: int, name: str) -> int:
    """Return a seed that changes with each step, so that a support with an unlucky layout gets another."""
    digest = hashlib.blake2b(f"{seed}/{step}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest)
