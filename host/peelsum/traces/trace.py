"""A worker's trace in memory: its recorder, and the encoding of supports.

A support is the positions of a gradient's non-zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


class TraceError(ValueError):
    """A trace that cannot be read or written. The message names file, fault and remedy in one line."""


def encode(positions: NDArray[np.int64], elements: int) -> NDArray[np.uint8]:
    """Encode the positions of a tensor's non-zeros, int64[k], ascending, as bytes.

    The bytes are a bitmap or, where that is shorter, differences of uint32. There are none if no element or
    every element is non-zero.
    """
    if positions.size in (0, elements):
        return np.empty(0, np.uint8)
    if 32 * positions.size < elements:
        return np.diff(positions, prepend=0).astype("<u4").view(np.uint8)
    bits = np.zeros(elements, bool)
    bits[positions] = True
    return np.packbits(bits)


def decode(data: NDArray[np.uint8], count: int, elements: int) -> NDArray[np.int64]:
    """Return the positions that `encode` has encoded, int64[count]. Raises TraceError for wrong bytes."""
    if count in (0, elements):
        return np.arange(count)
    if 32 * count < elements:
        positions = np.cumsum(data.copy().view("<u4"), dtype=np.int64)
    else:
        positions = np.flatnonzero(np.unpackbits(data))
    if positions.size != count or not (np.diff(positions) > 0).all() or positions[-1] >= elements:
        raise _wrong_support(count, elements)
    return positions


def union_count(traces: Sequence[Trace], step: int, tensor: int) -> int:
    """Return how many elements of a tensor are non-zero on any worker in a step. Raises TraceError.

    It takes memory for the supports' bytes, not for the tensor's elements.
    """
    elements = traces[0].elements[tensor]
    counts = [int(trace.count[step, tensor]) for trace in traces]
    if elements in counts:
        return elements
    if 32 * max(counts) < elements:  # no bitmap among them
        return int(np.unique(np.concatenate([trace.positions(step, tensor) for trace in traces])).size)
    bits = np.zeros(-(-elements // 8), np.uint8)
    for trace, count in zip(traces, counts, strict=True):
        if 32 * count < elements:
            positions = trace.positions(step, tensor)
            np.bitwise_or.at(bits, positions // 8, (128 >> positions % 8).astype(np.uint8))
        else:
            bitmap = trace.support(step, tensor)
            if int(np.bitwise_count(bitmap).sum(dtype=np.int64)) != count:
                raise _wrong_support(count, elements)
            bits |= bitmap
    if bits[-1] & (0xFF >> (elements % 8 or 8)):
        raise _wrong_support(max(counts), elements)
    return int(np.bitwise_count(bits).sum(dtype=np.int64))


def _wrong_support(count: int, elements: int) -> TraceError:
    """Return the error for bytes that do not encode so many positions."""
    return TraceError(f"support: is not of {count} among {elements} elements; record the trace again")


@dataclass(frozen=True, eq=False)
class Trace:
    """The gradients that one worker summed in some steps.

    `steps`, `tensors` and `buckets` are the sizes of its arrays.
    """

    name: str
    """The name of the trained model or script."""
    worker: int
    """The worker's number."""
    workers: int
    """Number of workers of the run."""
    names: tuple[str, ...]
    """The tensors' names."""
    shapes: tuple[tuple[int, ...], ...]
    """The tensors' shapes."""
    bucket: NDArray[np.int32]
    """int32[steps, tensors]: the bucket in which a tensor was summed, counted in the order of the sums.

    -1 if the tensor was not summed in that step.
    """
    ready_s: NDArray[np.float64]
    """float64[steps, buckets]: seconds of computing before a bucket was ready, since the step's begin.

    A step begins when the sums of the previous one are complete. NaN where a step has fewer buckets.
    """
    exponent: NDArray[np.uint8]
    """uint8[steps, tensors]: the exponent field of the largest magnitude, as in a float32; 0 for zeros."""
    count: NDArray[np.int64]
    """int64[steps, tensors]: the non-zero elements."""
    supports: NDArray[np.uint8]
    """All supports' bytes, step by step, tensor by tensor; see `docs/reference/traces.md`."""
    values: NDArray[np.float32] | None
    """All non-zero values in the order of the supports; None if they were not recorded."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.bucket)

    @property
    def elements(self) -> list[int]:
        """The tensors' numbers of elements."""
        return [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """int64[steps, tensors]: bytes of the encoded supports."""
        elements = np.array(self.elements, np.int64)
        sizes = np.where(32 * self.count < elements, 4 * self.count, -(-elements // 8))
        return np.where(self.count == elements, 0, sizes)

    def positions(self, step: int, tensor: int) -> NDArray[np.int64]:
        """Return the non-zero elements of a tensor in a step, ascending, int64[k]. Raises TraceError."""
        count = int(self.count[step, tensor])
        return decode(self.support(step, tensor), count, self.elements[tensor])

    def support(self, step: int, tensor: int) -> NDArray[np.uint8]:
        """Return the bytes of a tensor's support in a step, as `encode` returns them."""
        begin = self._before(self.sizes, step, tensor)
        return self.supports[begin : begin + int(self.sizes[step, tensor])]

    def gradient(self, step: int, *, seed: int = 0) -> NDArray[np.float32]:
        """Return a step's gradient, all tensors one after the other, float32[sum of elements].

        Values that were not recorded are drawn: normally distributed, cut at four deviations, and scaled to
        the largest power of two below the tensor's recorded maximum; never zero. Raises TraceError.
        """
        parts = [np.empty(0, np.float32)]
        for tensor, elements in enumerate(self.elements):
            dense, at = np.zeros(elements, np.float32), self.positions(step, tensor)
            parts.append(dense)
            if self.values is not None:
                begin = self._before(self.count, step, tensor)
                dense[at] = self.values[begin : begin + at.size]
            elif at.size:
                random = np.random.default_rng([seed, self.worker, step % self.steps, tensor])
                drawn = np.clip(random.standard_normal(at.size, np.float32) / 4, -1, 1)
                drawn[drawn == 0] = 1
                drawn[0] = 1
                # As an int32, a float's bits are its exponent field and its fraction.
                largest = np.array([int(self.exponent[step, tensor]) << 23], np.int32).view(np.float32)[0]
                dense[at] = drawn * np.maximum(largest, np.float32(2.0**-100))
        return np.concatenate(parts)

    def _before(self, sizes: NDArray[np.int64], step: int, tensor: int) -> int:
        """Return the sum of the sizes of all tensors that are stored before this one."""
        return int(sizes[:step].sum() + sizes[step, :tensor].sum())


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
            number, flat = list(self._shapes).index(name), gradient.reshape(-1)
            positions = np.flatnonzero(flat)
            values = flat[positions]
            # As an int32, a float's bits are its exponent field and its fraction.
            exponent = int(np.abs(values).view(np.int32).max(initial=0)) >> 23
            tensors[number] = _RecordedTensor(
                len(ready),
                exponent,
                positions.size,
                encode(positions, flat.size),
                values if self._keep_values else values[:0],
            )
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
