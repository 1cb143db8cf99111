"""The all-reduce: tensors in, exact sums out, over any way to sum.

Theory of operation. One call of `Allreduce.sum` is one step, of these exchanges:

    exchange     op   words                                       when
    agreement    OR   a digest d of plan and step, and ~d         always; alone if the plan is new
    header       OR   per tensor: exponent, index if it has one   with the agreement, else after it
    values       ADD  per tensor: dense, compact or sketch        unless all is zero or not finite
    left-over    ADD  values that peeling did not recover         if there are any

All tensors of a step share each exchange, back to back, so that chunks are full and pipelined. Every
decision (agreed or not, scale, lengths, left-over) follows from sums, which are the same on every worker.
This module refuses to know what adds the words up.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.errors import InvalidRequestError, PlanMismatchError
from peelsum.allreduce.exchange import CompactExchange, DenseExchange, SketchExchange
from peelsum.allreduce.forms import FormChooser, RequestedForm
from peelsum.allreduce.plan import SUPPORTED_DTYPE, Plan, TensorPlan, agreed, agreement_words, unsupported
from peelsum.allreduce.result import StepResult
from peelsum.allreduce.summation import Op, Part, Summation, Words
from peelsum.codec import CELLS_PER_CANDIDATE, Implementation, SketchLayout, kernels
from peelsum.wire import packet_bytes

Tensors = Mapping[str, NDArray[np.float32]] | Sequence[NDArray[np.float32]]


class Allreduce:
    """Sums float32 tensors over the workers of `summation`, exactly. One object per worker, for one thread.

    `forms` and `sparse` are explained at FormChooser. `seed` and `cells_per_candidate` lay out sketches.
    `average` divides results by the number of workers. All of these, and the tensors' names, shapes, types
    and order, must be the same on every worker: otherwise every worker raises PlanMismatchError.
    `clock` returns seconds.
    """

    def __init__(
        self,
        summation: Summation,
        *,
        forms: RequestedForm | Mapping[str, RequestedForm] = "auto",
        sparse: Collection[str] = (),
        seed: int = 0,
        average: bool = False,
        cells_per_candidate: float = CELLS_PER_CANDIDATE,
        implementation: Implementation = "cpu",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._summation = summation
        self._chooser = FormChooser(forms, sparse)
        self._seed, self._average = seed, average
        self._cells_per_candidate = cells_per_candidate
        self._layout(0, 1)  # a size that is none is the caller's mistake, not that of a later step
        self._ops = kernels(implementation)
        self._clock = clock
        self._agreed: set[int] = set()
        self._failed = False
        self._steps = 0

    def sum(self, tensors: Tensors) -> StepResult:
        """The exact sum of each tensor over all workers, who must all call this with like tensors.

        Blocks until every worker has contributed. Arrays may be strided, read-only, empty or without
        dimensions, and are not modified. A tensor that is not finite on some worker becomes NaN on all.
        Raises PlanMismatchError if the workers differ, InvalidRequestError if all pass a type other than
        float32, and what the summation raises when it stalls. After any of these the workers may be out of
        step: further calls raise InvalidRequestError, and a new summation is needed.
        """
        if self._failed:
            raise InvalidRequestError("sum: an earlier call failed; start again with a new summation")
        self._failed = True
        result = self._sum(tensors)
        self._failed = False
        return result

    def _sum(self, tensors: Tensors) -> StepResult:
        named = _named(tensors)
        self._steps += 1
        step = _Step(self._summation, self._clock)
        plan = self._plan(named)
        known = plan.digest in self._agreed
        if not known:
            self._agree(plan, step)
        exchanges = [self._exchange(tensor, named[tensor.name]) for tensor in plan.tensors]
        headers = [_Piece(x.header_words, x.write_header, x.read_header) for x in exchanges]
        step.exchange("or", headers, ahead=[self._agreement(plan)] if known else [])
        step.exchange("add", [_Piece(x.value_words, x.write_values, x.read_values) for x in exchanges])
        step.exchange(
            "add", [_Piece(x.left_over_words, x.write_left_over, x.read_left_over) for x in exchanges]
        )
        return self._finish(exchanges, plan, step)

    def _plan(self, named: Mapping[str, NDArray[np.float32]]) -> Plan:
        tensors = tuple(
            TensorPlan(name, array.shape, str(array.dtype), self._chooser.choose(name))
            for name, array in named.items()
        )
        return Plan(
            tensors,
            self._summation.workers,
            self._summation.lanes,
            self._seed,
            self._cells_per_candidate,
            self._average,
        )

    def _agree(self, plan: Plan, step: _Step) -> None:
        """Exchange a new plan's digest alone: workers that differ would not know each other's lengths."""
        step.sum([self._agreement(plan)])
        refused = unsupported(plan.tensors)
        if refused is not None:
            raise InvalidRequestError(
                f"dtype: {refused.name!r} is {refused.dtype}; convert it to {SUPPORTED_DTYPE} on every worker"
            )
        self._agreed.add(plan.digest)

    def _agreement(self, plan: Plan) -> Part:
        def check(words: Words) -> None:
            if not agreed(words):
                raise PlanMismatchError(
                    f"plan: not the same on every worker; worker {self._summation.worker_id} has {plan} "
                    f"in step {self._steps}; pass the same names, shapes, dtypes and settings, in the same "
                    "order, on every worker, and make a new Allreduce on all of them or on none"
                )

        # With the step: it seeds the sketches, and a worker that starts to count anew would sum nonsense.
        return Part(agreement_words(plan.digest_at(self._steps)), "or", check)

    def _exchange(self, tensor: TensorPlan, array: NDArray[np.float32]) -> DenseExchange:
        common = (tensor.name, array, self._ops, self._summation.workers)
        if tensor.form == "dense":
            return DenseExchange(*common)
        if tensor.form == "compact":
            return CompactExchange(*common)
        seed = _sketch_seed(self._seed, self._steps, tensor.name)
        return SketchExchange(*common, partial(self._layout, seed))

    def _layout(self, seed: int, candidates: int) -> SketchLayout:
        return SketchLayout.sized(candidates, self._summation.lanes, seed, self._cells_per_candidate)

    def _finish(self, exchanges: Sequence[DenseExchange], plan: Plan, step: _Step) -> StepResult:
        started = self._clock()
        divisor = self._summation.workers if self._average else 1
        results = tuple(exchange.result(divisor) for exchange in exchanges)
        for result in results:
            if self._chooser.wants_density(result.name) and result.finite:
                self._chooser.learn(result.name, result.density)
        step.decode_s += self._clock() - started
        lanes = self._summation.lanes
        dense_chunks = -(-sum(result.elements for result in results) // lanes)
        return StepResult(
            tensors=results,
            digest=plan.digest,
            wire_bytes=step.chunks * packet_bytes(lanes),
            dense_bytes=dense_chunks * packet_bytes(lanes),
            encode_s=step.encode_s,
            network_s=step.network_s,
            decode_s=step.decode_s,
        )


class _Piece(NamedTuple):
    """One tensor's stretch of an exchange: how many words, who writes them, and who reads their sum."""

    length: int
    write: Callable[[Words], None]
    read: Callable[[Words], None]


class _Step:
    """The exchanges of one step over a summation, with what they cost."""

    def __init__(self, summation: Summation, clock: Callable[[], float]) -> None:
        self._summation, self._clock = summation, clock
        self.chunks = 0
        self.encode_s = self.network_s = self.decode_s = 0.0

    def sum(self, parts: Sequence[Part]) -> list[Words]:
        """`Summation.sum`, timed and counted; checks run even if the summation leaves that to its caller."""
        started = self._clock()
        results = self._summation.sum(parts)
        self.network_s += self._clock() - started
        self.chunks += sum(-(-part.words.size // self._summation.lanes) for part in parts)
        for part, result in zip(parts, results, strict=True):
            if part.check is not None:
                part.check(result)
        return results

    def exchange(self, op: Op, pieces: Sequence[_Piece], ahead: Sequence[Part] = ()) -> None:
        """Write pieces back to back, sum them over workers, read each.

        Nothing is sent, and no reader called, if all pieces are empty and nothing goes ahead of them.
        """
        started = self._clock()
        ends = list(accumulate(piece.length for piece in pieces))
        spans = [slice(end - piece.length, end) for end, piece in zip(ends, pieces, strict=True)]
        words = np.empty(ends[-1] if ends else 0, np.uint32)
        for span, piece in zip(spans, pieces, strict=True):
            piece.write(words[span])
        self.encode_s += self._clock() - started
        if not words.size and not ahead:
            return
        total = self.sum([*ahead, Part(words, op)])[-1]
        started = self._clock()
        for span, piece in zip(spans, pieces, strict=True):
            piece.read(total[span])
        self.decode_s += self._clock() - started


def _named(tensors: Tensors) -> dict[str, NDArray[np.float32]]:
    pairs = tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors)
    named: dict[str, NDArray[np.float32]] = {}
    for name, tensor in pairs:
        if str(name) in named:
            raise InvalidRequestError(f"tensors: {str(name)!r} names two of them; give every tensor its own")
        named[str(name)] = np.asarray(tensor)
    return named


def _sketch_seed(seed: int, step: int, name: str) -> int:
    """A new layout for each tensor and step, so that no support is unlucky twice."""
    digest = hashlib.blake2b(f"{seed}/{step}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest)
