"""Records one worker's gradients, bucket by bucket, into a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from peelsum.traces.supports import encode
from peelsum.traces.trace import NO_EXPONENT, Trace


@dataclass
class _Tensor:
    bucket: int
    exponent: int
    count: int
    form: int
    support: NDArray[np.uint8]
    values: NDArray[np.float32]


@dataclass
class _Step:
    ready_s: list[float] = field(default_factory=list)
    tensors: dict[int, _Tensor] = field(default_factory=dict)


class Recorder:
    """A trace that grows: `add` takes a bucket, `end_step` ends a step, `trace` returns the trace so far."""

    def __init__(self, name: str, worker: int, workers: int, *, values: bool = False) -> None:
        """values: whether to record values, 4 bytes for each non-zero."""
        self._name, self._worker, self._workers, self._keep = name, worker, workers, values
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._steps: list[_Step] = []
        self._now = _Step()

    @property
    def steps(self) -> int:
        """Number of steps that have ended."""
        return len(self._steps)

    def add(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        gradients: Sequence[NDArray[np.float32]],
        ready_s: float,
    ) -> None:
        """Add the next bucket of a step: flat gradients, `ready_s` seconds after the step's begin."""
        bucket = len(self._now.ready_s)
        self._now.ready_s.append(ready_s)
        for name, shape, gradient in zip(names, shapes, gradients, strict=True):
            self._shapes.setdefault(name, tuple(shape))
            number = list(self._shapes).index(name)
            self._now.tensors[number] = self._tensor(bucket, gradient.reshape(-1))

    def end_step(self) -> None:
        """End a step."""
        self._steps.append(self._now)
        self._now = _Step()

    def trace(self) -> Trace:
        """Return the trace of all steps that have ended."""
        shape = (len(self._steps), len(self._shapes))
        bucket, form = np.full(shape, -1, np.int32), np.ones(shape, np.uint8)
        exponent, count, size = (
            np.zeros(shape, np.uint8),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
        )
        buckets = max((len(step.ready_s) for step in self._steps), default=0)
        ready_s = np.full((shape[0], buckets), np.nan)
        found: list[_Tensor] = []
        for number, step in enumerate(self._steps):
            ready_s[number, : len(step.ready_s)] = step.ready_s
            for tensor, one in sorted(step.tensors.items()):
                at = number, tensor
                bucket[at], exponent[at], count[at] = one.bucket, one.exponent, one.count
                form[at], size[at] = one.form, one.support.size
                found.append(one)
        supports = np.concatenate([np.empty(0, np.uint8), *(one.support for one in found)])
        values = np.concatenate([np.empty(0, np.float32), *(one.values for one in found)])
        return Trace(
            self._name,
            self._worker,
            self._workers,
            tuple(self._shapes),
            tuple(self._shapes.values()),
            bucket,
            ready_s,
            exponent,
            count,
            form,
            size,
            supports,
            values if self._keep else None,
        )

    def _tensor(self, bucket: int, gradient: NDArray[np.float32]) -> _Tensor:
        positions = np.flatnonzero(gradient)
        values = gradient[positions]
        form, support = encode(positions, gradient.size)
        magnitudes = np.abs(values).view(np.int32)
        exponent = int(magnitudes.max()) >> 23 if magnitudes.size else NO_EXPONENT
        kept = values.copy() if self._keep else np.empty(0, np.float32)
        return _Tensor(bucket, exponent, int(positions.size), form, support, kept)
