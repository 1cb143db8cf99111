"""Sum tensors over workers, each of which sends only a compressed part of its tensors.

Theory of operation. For each tensor, a step does this:

1. Add the tensor's residual, which earlier steps did not send, to its gradient.
2. Let the compressor make a payload of the result.
3. Sum the payloads over workers, by an exchange that depends on the compressor's kind (see the table).
4. Store the values that this worker did not send as the new residual.

The rounds of all tensors in a bucket are exchanged together:

    kind      exchange   op      words
    all       agreement  OR      a digest of all settings and shapes; only if the tensors are new
    additive  header     OR      the digest and the step; each worker's bound, and its merit for an election
              index      OR      of the worker that decides it; with the header if its turn is known before
              values     ADD     the payloads' words
    indexed   those of `peelsum.allreduce.Allreduce`
    gather    payloads   gather  the digest and the step; lengths and bytes

A bound is the largest magnitude that a worker may send. If the workers elect one of them to decide the index,
it is the worker with the largest merit. Both are float32 numbers. There are words for each worker, of which a
worker writes its own and leaves the others zero, so the OR has the numbers of all workers. If a tensor is not
finite, its bound is infinite, or its length is an impossible number, so that every worker knows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Allreduce
from peelsum.allreduce.plan import agreement_part, digest_of
from peelsum.allreduce.protocol import Note, Span
from peelsum.compress.arguments import CompressConfigError, CompressError
from peelsum.compress.collectives import Collectives, SummationCollectives
from peelsum.compress.compressor import Compressor, Floats, TensorState
from peelsum.compress.exchange import CompressedResult, StepExchange, Unit
from peelsum.compress.memory import ExactValues, Memory, finite_names
from peelsum.summation import Part, Summation

#: Smaller sums of squares are computed in float64, because squares may have become zero in float32.
_MIN_FLOAT32_ENERGY = 2.0**-80
#: Capacity of the cache of requests on which all workers have agreed.
_AGREED = 1024


class CompressedSum:
    """Sums tensors that `compressor` compresses, over the workers of `summation`.

    Every worker makes an object of its own.

    - `memory`: keeps residuals between steps. By default a new memory.
    - `error_feedback`: whether values that are not sent are kept for later steps. By default, as the
      compressor needs it.
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
        note: Note | None = None,
    ) -> None:
        if not isinstance(compressor, Compressor):
            raise CompressConfigError(f"compressor: {compressor!r} is not a Compressor; give e.g. TopK(0.01)")
        compressor.check(summation.workers)
        if allreduce is not None and allreduce.average != average:
            raise CompressConfigError(
                f"allreduce: its average is {allreduce.average}; give one with {average}"
            )
        self._compressor, self._average = compressor, average
        #: This worker's residuals and other state between steps.
        self.memory = memory or Memory()
        self._feedback = uses_feedback(compressor, error_feedback)
        #: Sums indexed payloads.
        self.allreduce = allreduce or Allreduce(summation, forms="sparse", average=average)
        self._collectives = collectives or SummationCollectives(summation)
        self._clock, self._span, self._note = clock, span, note
        self._workers, self._worker_id = summation.workers, summation.worker_id
        #: The last requests that all workers have agreed on.
        self._agreed: dict[int, None] = {}
        self._steps, self._failure = 0, ""

    def sum(self, tensors: Mapping[str, NDArray[np.float32]], step: int | None = None) -> CompressedResult:
        """Return the sum of the values that workers sent for each tensor; block until all have contributed.

        Tensors are float32 of any shape, and are not modified. step: the step's number, from 0, which is the
        same for all buckets of a step; by default a new one. Raises PlanMismatchError if workers have other
        settings or tensors, CompressConfigError for another dtype, and the summation's errors. After an error
        workers may be in different steps, so further calls raise CompressError.
        """
        if self._failure:
            raise CompressError(
                f"sum: an earlier call failed ({self._failure}); start again with a new summation"
            )
        for name, tensor in tensors.items():
            if not isinstance(name, str):
                raise CompressConfigError(f"tensors: {name!r} is not a text; give the tensor a name")
            if tensor.dtype != np.float32 or isinstance(tensor, np.ma.MaskedArray):
                kind = "masked" if tensor.dtype == np.float32 else tensor.dtype
                raise CompressConfigError(f"tensors: {name!r} is {kind}; give a float32 array without a mask")
        try:
            with self._span("step") or nullcontext():
                # Another sum may have the same memory, and be in a later step.
                step = max(self._steps, self.memory.step + 1) if step is None else step
                result = self._sum(tensors, step)
                if self._note is not None:
                    self._note({"step": self._steps, "worker": self._worker_id, "bytes": result.wire_bytes})
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            raise
        self._steps += 1
        return result

    def _sum(self, tensors: Mapping[str, NDArray[np.float32]], step: int) -> CompressedResult:
        """Return the sums of a step, and update the residuals."""
        compressor, feedback = self._compressor, self._feedback
        exchange = StepExchange(compressor, self._collectives, self._clock, self._span)
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        #: All settings and shapes. Workers check once that they are the same.
        request = repr((compressor, self._average, feedback, self._workers, list(shapes.items())))
        if digest_of(request) not in self._agreed:
            exchange.sum_words([self._agreement(request)])
            if len(self._agreed) == _AGREED:  # all workers drop the same request, the oldest
                del self._agreed[next(iter(self._agreed))]
            self._agreed[digest_of(request)] = None
        with exchange.timed("encode"):
            flat = {name: np.ascontiguousarray(tensor).reshape(-1) for name, tensor in tensors.items()}
            max_norm = None if compressor.clip is None else compressor.clip / math.sqrt(self._workers)
            residuals, offered = None, flat
            if feedback:
                residuals = self.memory.add_gradients(flat, compressor.momentum, max_norm)
                offered = flat | residuals.to_floats()
            finite = set(finite_names(flat)) if residuals is None else residuals.keys()
            exchange.units = self._make_units(offered, shapes, finite, step)
        request = f"{request}/{step}"
        if compressor.kind == "indexed":
            summed = exchange.indexed(offered, shapes, self.allreduce, feedback=feedback)
        else:
            if compressor.kind == "gather":
                exchange.gathered(digest_of(request))
            else:
                rounds = range(compressor.rounds)
                exchange.additive(self._agreement(f"{request}/{number}") for number in rounds)
            divisor = self._workers if self._average else 1
            with exchange.timed("decode"):
                results = (
                    unit.results(shapes, compressor.kind, divisor, feedback=feedback)
                    for unit in exchange.units
                )
                summed = list(chain.from_iterable(results))
        by_name = {tensor.name: tensor for tensor in summed}
        if residuals is not None:
            self.memory.store(residuals, {tensor.name: tensor.sent for tensor in summed}, step)
        sent = {tensor.name: tensor.sent for tensor in summed if tensor.sent is not None}
        return replace(
            exchange.result([by_name[name] for name in tensors]),
            offered_energy=_energy([offered[name] for name in sent]),
            sent_energy=ExactValues.concatenate(list(sent.values()), [0] * len(sent)).energy,
        )

    def _make_units(
        self,
        tensors: Mapping[str, Floats],
        shapes: Mapping[str, tuple[int, ...]],
        finite: Set[str],
        step: int,
    ) -> list[Unit]:
        """Return the units that are compressed as one: each tensor, or all tensors of the bucket.

        finite: the names of the tensors that are finite on this worker. A unit's seed, and the arrays that
        are kept for it, depend on its label.
        """
        labeled = [(name, {name: tensor}, shapes[name]) for name, tensor in tensors.items()]
        if self._compressor.per == "bucket" and tensors:
            if self._compressor.kind == "indexed":  # elements are chosen from finite tensors only
                tensors = {name: tensor for name, tensor in tensors.items() if name in finite}
            label = f"bucket {digest_of(repr(list(tensors))):016x}"
            labeled = [(label, dict(tensors), (sum(tensor.size for tensor in tensors.values()),))]
        units = []
        for label, members, shape in labeled:
            parts = list(members.values())
            tensor = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.float32), *parts])
            kept = self.memory.kept.setdefault(label, {})
            seed = digest_of(f"{step}/{label}")
            state = TensorState(shape, seed, step, self._worker_id, self._workers, kept=kept)
            lengths = {name: part.size for name, part in members.items()}
            units.append(Unit(lengths, tensor, state, finite=members.keys() <= finite))
        return units

    def _agreement(self, text: str) -> Part:
        """Return a part whose sum raises PlanMismatchError unless all workers have the same text."""
        return agreement_part(
            digest_of(text),
            lambda: (
                f"plan: not the same on every worker; worker {self._worker_id} has {self._compressor!r} "
                f"in step {self._steps}; pass the same compressor and tensors, in the same order, on every "
                "worker"
            ),
        )


def uses_feedback(compressor: Compressor, error_feedback: bool | None) -> bool:
    """Return whether to use error feedback. Raises CompressConfigError for momentum or clip without it."""
    feedback = compressor.needs_feedback if error_feedback is None else error_feedback
    for field in ("momentum", "clip"):
        if getattr(compressor, field) and not feedback:
            raise CompressConfigError(
                f"{field}: {getattr(compressor, field)} needs error feedback; leave out error_feedback=False"
            )
    return feedback


def _energy(arrays: Sequence[Floats]) -> float:
    """Return the sum of squares of all arrays; in float64 where the range of float32 is too small."""
    total = 0.0
    for array in arrays:
        with np.errstate(over="ignore"):
            energy = float(array.dot(array))
        if not _MIN_FLOAT32_ENERGY < energy < math.inf:
            wide = array.astype(np.float64)
            energy = float(wide.dot(wide))
        total += energy
    return total
