"""Record a worker's gradients, bucket by bucket, into a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.traces.trace import Trace, encode


@dataclass
class _RecordedTensor:
    """A tensor's gradient in one step."""

    bucket: int
    exponent: int
    count: int
    support: NDArray[np.uint8]
    values: NDArray[np.float32]


class TraceRecorder:
    """Records a trace: `add` records a bucket, `end_step` ends a step, `trace` returns the trace so far.

    values: whether to record values, 4 bytes for each non-zero.
    """

    def __init__(self, name: str, worker: int, workers: int, *, values: bool = False) -> None:
        self._name, self._worker, self._workers, self._keep_values = name, worker, workers, values
        self._shapes: dict[str, tuple[int, ...]] = {}
        #: For each step, the times at which its buckets were ready, and its tensors by number. The last step
        #: has not ended.
        self._steps: list[tuple[list[float], dict[int, _RecordedTensor]]] = [([], {})]

    @property
    def steps(self) -> int:
        """Number of steps that have ended."""
        return len(self._steps) - 1

    def add(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        gradients: Sequence[NDArray[np.float32]],
        ready_s: float,
    ) -> None:
        """Record the next bucket of a step. ready_s: seconds from the step's begin until it was ready."""
        ready, tensors = self._steps[-1]
        for name, shape, gradient in zip(names, shapes, gradients, strict=True):
            self._shapes.setdefault(name, tuple(shape))
            number = list(self._shapes).index(name)
            tensors[number] = self._tensor(len(ready), gradient.reshape(-1))
        ready.append(ready_s)

    def end_step(self) -> None:
        """End a step."""
        self._steps.append(([], {}))

    def trace(self) -> Trace:
        """Return the trace of all steps that have ended."""
        shape, steps = (self.steps, len(self._shapes)), self._steps[:-1]
        bucket, exponent = np.full(shape, -1, np.int32), np.zeros(shape, np.uint8)
        count = np.zeros(shape, np.int64)
        ready_s = np.full((shape[0], max((len(ready) for ready, _ in steps), default=0)), np.nan)
        recorded: list[_RecordedTensor] = []
        for step, (ready, tensors) in enumerate(steps):
            ready_s[step, : len(ready)] = ready
            for number, tensor in sorted(tensors.items()):
                at = step, number
                bucket[at], exponent[at], count[at] = tensor.bucket, tensor.exponent, tensor.count
                recorded.append(tensor)
        supports = np.concatenate([np.empty(0, np.uint8), *(tensor.support for tensor in recorded)])
        values = np.concatenate([np.empty(0, np.float32), *(tensor.values for tensor in recorded)])
        return Trace(
            name=self._name,
            worker=self._worker,
            workers=self._workers,
            names=tuple(self._shapes),
            shapes=tuple(self._shapes.values()),
            bucket=bucket,
            ready_s=ready_s,
            exponent=exponent,
            count=count,
            supports=supports,
            values=values if self._keep_values else None,
        )

    def _tensor(self, bucket: int, gradient: NDArray[np.float32]) -> _RecordedTensor:
        """Return what is recorded of a flat gradient."""
        positions = np.flatnonzero(gradient)
        values = gradient[positions]
        # As an int32, a float's bits are its exponent field and its fraction.
        exponent = int(np.abs(values).view(np.int32).max(initial=0)) >> 23
        support = encode(positions, gradient.size)
        kept_values = values if self._keep_values else np.empty(0, np.float32)
        return _RecordedTensor(bucket, exponent, positions.size, support, kept_values)
