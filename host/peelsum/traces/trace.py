"""One worker's trace, in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peelsum.traces.supports import decode

#: The exponent field of a tensor with only zeros.
NO_EXPONENT = 0


@dataclass(frozen=True, eq=False)
class Trace:
    """The gradients that one worker summed in some steps.

    `steps`, `tensors` and `buckets` are the sizes of its arrays.
    """

    name: str
    """The name of the model or script that was trained."""
    worker: int
    """The worker's number."""
    workers: int
    """Number of workers that summed."""
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
    form: NDArray[np.uint8]
    """uint8[steps, tensors]: how the support is encoded; see `peelsum.traces.supports`."""
    size: NDArray[np.int64]
    """int64[steps, tensors]: bytes of the encoded support."""
    supports: NDArray[np.uint8]
    """All supports' bytes, step by step, tensor by tensor."""
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

    def positions(self, step: int, tensor: int) -> NDArray[np.int64]:
        """Return the non-zero elements of a tensor in a step, ascending, int64[k]. Raises TraceError."""
        begin = self._before(self.size, step, tensor)
        data = self.supports[begin : begin + int(self.size[step, tensor])]
        count, elements = int(self.count[step, tensor]), self.elements[tensor]
        return decode(int(self.form[step, tensor]), data, count, elements)

    def gradient(self, step: int, *, seed: int = 0) -> NDArray[np.float32]:
        """Return a step's gradient, all tensors one after the other, float32[sum of elements].

        Values that were not recorded are drawn: normally distributed, cut at four deviations, and scaled to
        the largest power of two below the tensor's recorded maximum; never zero. Raises TraceError.
        """
        parts = [self._tensor(step, tensor, seed) for tensor in range(len(self.names))]
        return np.concatenate([np.empty(0, np.float32), *parts])

    def _tensor(self, step: int, tensor: int, seed: int) -> NDArray[np.float32]:
        dense, at = np.zeros(self.elements[tensor], np.float32), self.positions(step, tensor)
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
        return dense

    def _before(self, sizes: NDArray[np.int64], step: int, tensor: int) -> int:
        return int(sizes[:step].sum() + sizes[step, :tensor].sum())
