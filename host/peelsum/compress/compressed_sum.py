"""Sum tensors over workers, each worker sending only a compressed part of its own.

Theory of operation. For each tensor, a step does this:

1. Add the tensor's residual, what earlier steps did not send, to its gradient.
2. Let the compressor make a payload of the result.
3. Sum the payloads over workers, by an exchange that depends on the compressor's kind (see the table).
4. Keep as the new residual what this worker did not send.

The rounds of all tensors in a bucket are exchanged together:

    kind      exchange   op      words
    all       agreement  OR      a digest of all settings and shapes; only if the tensors are new
    additive  header     OR      the digest and the step; each worker's bound, and its merit for an election
              index      OR      of the worker that decides it; with the header if its turn is known before
              values     ADD     the payloads' words
    indexed   those of `peelsum.allreduce.Allreduce`
    gather    payloads   gather  the digest and the step; lengths and bytes

A bound is the largest magnitude that a worker may send. Where the workers elect one of them to decide the
index, the one with the largest merit wins. Both are float32 numbers. Each worker writes them to words of its
own, and leaves the others zero, so the OR holds the numbers of all workers. A tensor that is not finite has
an infinite bound, or an impossible length, which tells every worker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Allreduce
from peelsum.allreduce.rounds import Note, Span, unnoted
from peelsum.compress.arguments import CompressConfigError, CompressError
from peelsum.compress.collectives import Collectives, SummationCollectives, agreement
from peelsum.compress.compressor import Compressor, Floats, TensorState, digest_of, seed_of
from peelsum.compress.exchange import (
    CompressedResult,
    CompressedTensor,
    Unit,
    Wire,
    exchange_additive,
    exchange_gathered,
    exchange_indexed,
)
from peelsum.compress.memory import Exact, Memory, finite_of
from peelsum.summation import Part, Summation

#: Smaller sums of squares are computed in float64, because squares may have become zero in float32.
_LEAST_ENERGY = 2.0**-80
#: Requests of which it is kept that all workers have agreed on them.
_AGREED = 1024


class CompressedSum:
    """A compressed sum over the workers of `summation`, by `compressor`; each worker has its own object.

    - `memory`: keeps residuals between steps. By default a new one.
    - `error_feedback`: whether what is not sent is kept for later steps. By default, as the compressor needs.
    - `average`: divide results by the number of workers.
    - `allreduce`: sums indexed payloads; must have the same `average`. By default made from `summation`.
    - `collectives`: sum the other payloads. By default made from `summation`.
    - `clock`, `span`, `note`: see `Allreduce`.

    All settings must be the same on all workers; if they differ, every worker raises PlanMismatchError in its
    first step. The constructor raises CompressConfigError for a compressor of another type, and
    if the compressor cannot sum over so many workers.
    """

    def __init__(
        self,
        summation: Summation,
        compressor: Compressor,
        memory: Memory | None = None,
        *,
        error_feedback: bool | None = None,
        average: bool = True,
        allreduce: Allreduce | None = None,
        collectives: Collectives | None = None,
        clock: Callable[[], float] = time.perf_counter,
        span: Span = nullcontext,
        note: Note = unnoted,
    ) -> None:
        if not isinstance(compressor, Compressor):
            raise CompressConfigError(f"compressor: {compressor!r} is not a Compressor; give e.g. TopK(0.01)")
        compressor.check(summation.workers)
        if allreduce is not None and allreduce.average != average:
            raise CompressConfigError(
                f"allreduce: its average is {allreduce.average}; give one with {average}"
            )
        self._compressor, self._average = compressor, average
        self._memory = memory or Memory()
        self._feedback = feedback_of(compressor, error_feedback)
        #: Sums indexed payloads.
        self.allreduce = allreduce or Allreduce(summation, forms="sparse", average=average)
        self._collectives = collectives or SummationCollectives(summation)
        self._clock, self._span, self._note = clock, span, note
        self._workers, self._worker_id = summation.workers, summation.worker_id
        #: The last requests that all workers have agreed on.
        self._agreed: dict[int, None] = {}
        self._steps, self._failed = 0, False

    @property
    def memory(self) -> Memory:
        """This worker's residuals and other state between steps."""
        return self._memory

    def sum(self, tensors: Mapping[str, NDArray[np.float32]], step: int | None = None) -> CompressedResult:
        """Return, for each tensor, the sum of what the workers sent; block until all have contributed.

        Tensors are float32 of any shape, and are not modified. `step` is the step's number, from 0, which
        tells a step's buckets from the next step's; by default a new one. Raises PlanMismatchError if the
        workers differ, CompressConfigError for another dtype, and the summation's errors. After an error the
        workers may be out of step, and further calls raise CompressError.
        """
        if self._failed:
            raise CompressError("sum: an earlier call failed; start again with a new summation")
        for name, tensor in tensors.items():
            if not isinstance(name, str):
                raise CompressConfigError(f"tensors: {name!r} is not a text; give the tensor a name")
            if tensor.dtype != np.float32 or isinstance(tensor, np.ma.MaskedArray):
                kind = "masked" if tensor.dtype == np.float32 else tensor.dtype
                raise CompressConfigError(f"tensors: {name!r} is {kind}; give a float32 array without a mask")
        self._failed = True
        with self._span("step"):
            # Another sum may have ended the memory's last step.
            number = max(self._steps, self._memory.step + 1) if step is None else step
            result = self._sum(tensors, number)
            self._note({"step": self._steps, "worker": self._worker_id, "bytes": result.wire_bytes})
        self._failed = False
        self._steps += 1
        return result

    def _sum(self, tensors: Mapping[str, NDArray[np.float32]], step: int) -> CompressedResult:
        wire, feedback = Wire(self._collectives, self._clock, self._span), self._feedback
        request = self._requested(tensors, wire)
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        with wire.timed("encode"):
            flat = {name: np.ascontiguousarray(tensor).reshape(-1) for name, tensor in tensors.items()}
            clip = self._compressor.clip
            most = None if clip is None else clip / math.sqrt(self._workers)
            grown = self._memory.grown(flat, self._compressor.momentum, most) if feedback else None
            offered = flat if grown is None else flat | grown.offer()
            finite = set(finite_of(flat)) if grown is None else grown.keys()
            units = self._units(offered, shapes, finite, step)
        summed = self._exchanged(units, offered, shapes, wire, f"{request}/{step}")
        by_name = {one.name: one for one in summed}
        if grown is not None:
            self._memory.keep(grown, {name: one.sent for name, one in by_name.items()}, step)
        sent = {one.name: one.sent for one in summed if one.sent is not None}
        return replace(
            wire.result([by_name[name] for name in tensors]),
            offered_energy=_energy([offered[name] for name in sent]),
            sent_energy=Exact.joined(list(sent.values()), [0] * len(sent)).energy,
        )

    def _exchanged(
        self,
        units: Sequence[Unit],
        offered: Mapping[str, Floats],
        shapes: Mapping[str, tuple[int, ...]],
        wire: Wire,
        request: str,
    ) -> list[CompressedTensor]:
        """Return the tensors' sums, by the exchange of the compressor's kind."""
        one, feedback = self._compressor, self._feedback
        if one.kind == "indexed":
            return exchange_indexed(one, units, offered, shapes, wire, self.allreduce, feedback=feedback)
        if one.kind == "gather":
            exchange_gathered(one, units, wire, digest_of(request))
        else:
            exchange_additive(one, units, wire, lambda number: self._agreement(f"{request}/{number}"))
        divisor = self._workers if self._average else 1
        with wire.timed("decode"):
            return [
                tensor
                for unit in units
                for tensor in unit.results(shapes, one.kind, divisor, feedback=feedback)
            ]

    def _requested(self, tensors: Mapping[str, NDArray[np.float32]], wire: Wire) -> str:
        """Return, as text, all that the workers must have in common; the first time, check that they do."""
        shapes = [(name, tensor.shape) for name, tensor in tensors.items()]
        settings = (self._compressor, self._average, self._feedback, self._workers, shapes)
        request = repr(settings)
        if digest_of(request) not in self._agreed:
            wire.sum_words([self._agreement(request)])
            if len(self._agreed) == _AGREED:  # all workers forget the same one, and agree on it again
                del self._agreed[next(iter(self._agreed))]
            self._agreed[digest_of(request)] = None
        return request

    def _units(
        self,
        tensors: Mapping[str, Floats],
        shapes: Mapping[str, tuple[int, ...]],
        finite: Set[str],
        step: int,
    ) -> list[Unit]:
        if self._compressor.per == "tensor" or not tensors:
            return [
                self._unit(name, {name: one}, shapes[name], step, finite=name in finite)
                for name, one in tensors.items()
            ]
        if self._compressor.kind == "indexed":  # tensors that are not finite are left out of the choice
            tensors = {name: one for name, one in tensors.items() if name in finite}
        shape = (sum(one.size for one in tensors.values()),)
        label = f"bucket {digest_of(repr(list(tensors))):016x}"
        return [self._unit(label, tensors, shape, step, finite=tensors.keys() <= finite)]

    def _unit(
        self, label: str, tensors: Mapping[str, Floats], shape: tuple[int, ...], step: int, *, finite: bool
    ) -> Unit:
        parts = list(tensors.values())
        tensor = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.float32), *parts])
        kept = self._memory.kept.setdefault(label, {})
        state = TensorState(shape, seed_of(step, label), step, self._worker_id, self._workers, kept=kept)
        return Unit(list(tensors), [one.size for one in parts], tensor, state, finite)

    def _agreement(self, text: str) -> Part:
        def complaint() -> str:
            return (
                f"plan: not the same on every worker; worker {self._worker_id} has {self._compressor!r} "
                f"in step {self._steps}; pass the same compressor and tensors, in the same order, on every "
                "worker"
            )

        return agreement(text, complaint)


def feedback_of(compressor: Compressor, asked: bool | None) -> bool:
    """Return whether there is error feedback. Raises CompressConfigError for momentum without it."""
    feedback = compressor.needs_feedback if asked is None else asked
    for field in ("momentum", "clip"):
        if getattr(compressor, field) and not feedback:
            raise CompressConfigError(
                f"{field}: {getattr(compressor, field)} needs error feedback; leave out error_feedback=False"
            )
    return feedback


def _energy(several: Sequence[Floats]) -> float:
    """Return the sum of squares, in float64 of arrays for which float32's range is too small."""
    with np.errstate(over="ignore"):
        squares = [float(one.dot(one)) for one in several]
    for number, one in enumerate(several):
        if not _LEAST_ENERGY < squares[number] < math.inf:
            wide = one.astype(np.float64)
            squares[number] = float(wide.dot(wide))
    return sum(squares)
