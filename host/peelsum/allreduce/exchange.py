"""One tensor's part in a step, by form: what it writes into each phase's words and reads from their sums.

An exchange goes through write_header, read_header, write_values, read_values and, if something is left over,
write_left_over and read_left_over; then it has a result. It knows nothing of chunks or of other tensors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.plan import Form
from peelsum.allreduce.result import TensorResult
from peelsum.allreduce.summation import Words
from peelsum.codec import (
    EXPONENT_WORDS,
    NON_FINITE,
    FixedPoint,
    Kernels,
    SketchLayout,
    exponent_words,
    index_words,
    largest_exponent_field,
    scale_for,
)

NO_INTEGERS = np.zeros(0, np.int32)


class DenseExchange:
    """All values, as they are; the header is the exponent alone. Base of the other forms."""

    form: Form = "dense"

    def __init__(self, name: str, tensor: NDArray[np.float32], ops: Kernels, fan_in: int) -> None:
        self.name, self.shape = name, tensor.shape
        self.values = np.ascontiguousarray(tensor).reshape(-1)
        self.ops, self.fan_in = ops, fan_in
        self.finite = True
        self.scale: int | None = None
        self.quantized: NDArray[np.int32] = NO_INTEGERS
        self.total: NDArray[np.int32] = NO_INTEGERS

    @property
    def header_words(self) -> int:
        """Words of phase 1, OR-ed."""
        return EXPONENT_WORDS

    def write_header(self, out: Words) -> None:
        """This worker's exponent and, where the form has one, index, into out[header_words]."""
        out[:] = exponent_words(self.ops.magnitude(self.values))

    def read_header(self, words: Words) -> None:
        """Take the scale, and that some worker's values are not finite, from the OR over workers."""
        field = largest_exponent_field(words)
        self.finite = field != NON_FINITE
        if self.finite and field is not None:
            self.scale = scale_for(field, self.fan_in)

    @property
    def value_words(self) -> int:
        """Words of phase 2, added; none if the sum is known already: all zero or not finite."""
        return 0 if self.scale is None else self.values.size

    def write_values(self, out: Words) -> None:
        """This worker's values into out[value_words]."""
        if self.scale is not None:
            self.quantized = out.view(np.int32)
            self.ops.quantize(self.values, FixedPoint(self.scale), self.quantized[np.newaxis])

    def read_values(self, words: Words) -> None:
        """Take the sum over workers."""
        self.total = words.view(np.int32)

    @property
    def left_over_words(self) -> int:
        """Words of the last round, added: what the values' form could not recover."""
        return 0

    def write_left_over(self, out: Words) -> None:
        """This worker's values of the left-over into out[left_over_words]."""

    def read_left_over(self, words: Words) -> None:
        """Take the left-over's sum over workers."""

    @property
    def words_sent(self) -> int:
        """Words this worker sent for the tensor, in all phases."""
        return self.header_words + self.value_words + self.left_over_words

    @property
    def positions(self) -> NDArray[np.int64] | None:
        """Elements that `quantized` and `total` stand for; None means all."""
        return None

    def result(self, divisor: int) -> TensorResult:
        """What the step came to, in floats divided by `divisor`."""
        return TensorResult(
            name=self.name,
            form=self.form,
            shape=self.shape,
            scale=self.scale,
            finite=self.finite,
            fan_in=self.fan_in,
            values=self._floats(divisor).reshape(self.shape),
            words_sent=self.words_sent,
            positions=self.positions,
            quantized_at=self.quantized,
            total_at=self.total,
        )

    def _floats(self, divisor: int) -> NDArray[np.float32]:
        if not self.finite:
            return np.full(self.values.size, np.nan, np.float32)
        if self.scale is None:
            return np.zeros(self.values.size, np.float32)
        return self._dequantized(self.scale, divisor)

    def _dequantized(self, scale: int, divisor: int) -> NDArray[np.float32]:
        out = np.empty(self.values.size, np.float32)
        self.ops.dequantize(self.total[np.newaxis], FixedPoint(scale), divisor, out)
        return out


class CompactExchange(DenseExchange):
    """A bitmap of the non-zeros in the header, then the values at the union's positions, in order."""

    form: Form = "compact"

    def __init__(self, name: str, tensor: NDArray[np.float32], ops: Kernels, fan_in: int) -> None:
        super().__init__(name, tensor, ops, fan_in)
        self.union = np.zeros(0, np.int64)

    @property
    def header_words(self) -> int:
        """See `DenseExchange.header_words`."""
        return EXPONENT_WORDS + index_words(self.values.size)

    def write_header(self, out: Words) -> None:
        """See `DenseExchange.write_header`."""
        magnitude = self.ops.index(self.values, out[EXPONENT_WORDS:])
        out[:EXPONENT_WORDS] = exponent_words(magnitude)

    def read_header(self, words: Words) -> None:
        """See `DenseExchange.read_header`."""
        super().read_header(words[:EXPONENT_WORDS])
        if self.scale is not None:
            self.union = self.ops.positions(words[EXPONENT_WORDS:], self.values.size)

    @property
    def value_words(self) -> int:
        """See `DenseExchange.value_words`."""
        return self.union.size

    def write_values(self, out: Words) -> None:
        """See `DenseExchange.write_values`."""
        if self.scale is not None:
            self.quantized = out.view(np.int32)
            self.ops.quantize_at(self.values, self.union, FixedPoint(self.scale), self.quantized[np.newaxis])

    @property
    def positions(self) -> NDArray[np.int64] | None:
        """See `DenseExchange.positions`."""
        return self.union

    def _dequantized(self, scale: int, divisor: int) -> NDArray[np.float32]:
        out = np.zeros(self.values.size, np.float32)
        self.ops.dequantize_at(self.total[np.newaxis], self.union, FixedPoint(scale), divisor, out)
        return out


class SketchExchange(CompactExchange):
    """A sketch in place of the values; what peeling leaves over goes compact in the last round."""

    form: Form = "sketch"

    def __init__(
        self,
        name: str,
        tensor: NDArray[np.float32],
        ops: Kernels,
        fan_in: int,
        layout_for: Callable[[int], SketchLayout],
    ) -> None:
        super().__init__(name, tensor, ops, fan_in)
        self._layout_for = layout_for
        self._layout: SketchLayout | None = None
        self._left_over = np.zeros(0, np.int64)

    def read_header(self, words: Words) -> None:
        """See `DenseExchange.read_header`. The union, known to all, says how large the sketch must be."""
        super().read_header(words)
        self._layout = self._layout_for(self.union.size) if self.union.size else None

    @property
    def value_words(self) -> int:
        """See `DenseExchange.value_words`."""
        return self._layout.cells if self._layout else 0

    def write_values(self, out: Words) -> None:
        """See `DenseExchange.write_values`."""
        if self._layout and self.scale is not None:
            self.quantized = np.empty(self.union.size, np.int32)
            self.ops.quantize_at(self.values, self.union, FixedPoint(self.scale), self.quantized[np.newaxis])
            self.ops.sketch_encode(self._layout, self.union, self.quantized, out)

    def read_values(self, words: Words) -> None:
        """See `DenseExchange.read_values`."""
        if self._layout:
            self.total = np.empty(self.union.size, np.int32)
            self._left_over = self.ops.sketch_decode(self._layout, words, self.union, self.total)

    @property
    def left_over_words(self) -> int:
        """See `DenseExchange.left_over_words`."""
        return self._left_over.size

    def write_left_over(self, out: Words) -> None:
        """See `DenseExchange.write_left_over`."""
        out[:] = self.quantized[self._left_over].view(np.uint32)

    def read_left_over(self, words: Words) -> None:
        """See `DenseExchange.read_left_over`."""
        self.total[self._left_over] = words.view(np.int32)
