"""Records one worker's gradients, bucket by bucket, into a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.traces.trace import Trace, encode


@dataclass
class _Tensor:
    bucket: int
    exponent: int
    count: int
    support: NDArray[np.uint8]
    values: NDArray[np.float32]


class Recorder:
    """A trace that grows: `add` takes a bucket, `end_step` ends a step, `trace` returns the trace so far."""

    def __init__(self, name: str, worker: int, workers: int, *, values: bool = False) -> None:
        """values: whether to record values, 4 bytes for each non-zero."""
        self._name, self._worker, self._workers, self._keep = name, worker, workers, values
        self._shapes: dict[str, tuple[int, ...]] = {}
        #: Of each step, when its buckets were ready, and its tensors by number; the last has not ended.
        self._steps: list[tuple[list[float], dict[int, _Tensor]]] = [([], {})]

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
        """Add the next bucket of a step: flat gradients, `ready_s` seconds after the step's begin."""
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
        found: list[_Tensor] = []
        for number, (ready, tensors) in enumerate(steps):
            ready_s[number, : len(ready)] = ready
            for tensor, one in sorted(tensors.items()):
                at = number, tensor
                bucket[at], exponent[at], count[at] = one.bucket, one.exponent, one.count
                found.append(one)
        supports = np.concatenate([np.empty(0, np.uint8), *(one.support for one in found)])
        values = np.concatenate([np.empty(0, np.float32), *(one.values for one in found)])
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
            values=values if self._keep else None,
        )

    def _tensor(self, bucket: int, gradient: NDArray[np.float32]) -> _Tensor:
        positions = np.flatnonzero(gradient)
        values = gradient[positions]
        # As an int32, a float's bits are its exponent field and its fraction.
        exponent = int(np.abs(values).view(np.int32).max(initial=0)) >> 23
        support = encode(positions, gradient.size)
        kept = values if self._keep else np.empty(0, np.float32)
        return _Tensor(bucket, exponent, positions.size, support, kept)
