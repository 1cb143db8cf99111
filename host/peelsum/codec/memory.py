"""Where the kernels' arrays lie, and how words get from there to whoever sums them: memory of the host, here.

On the host the kernels read and write the words that travel, and nothing is copied. What lies on a device is
`peelsum.codec.gpu_memory`'s, whose tensors pass for arrays here: code that is written for both uses only
what both can do (slices, `len`, `any`, assignment), and this protocol for the rest.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from peelsum.codec.fixed_point import exponent_words
from peelsum.codec.floats import BFloat16, widened

Words = NDArray[np.uint32]


class Memory(Protocol):
    """Arrays for the kernels of one implementation; but for `floats`, what they hold at first is anything."""

    @property
    def direct(self) -> bool:
        """Whether kernels read and write the words that travel. If not: `send`, `settle` and `receive`."""

    def accepted(self, tensor: Any) -> Any:
        """A tensor of the user's, as one of this memory. Raises CodecError for one that lies elsewhere."""

    def dtype(self, tensor: Any) -> str:
        """The name of its elements' type, the same wherever it lies."""

    def widened(self, tensor: Any) -> NDArray[np.float32]:
        """The same numbers as float32[n], in C order; the tensor's own memory where it is that already."""

    def beside(self, values: NDArray[np.float32]) -> Memory:
        """The memory in which `values` lie."""

    def words(self, count: int) -> Words:
        """uint32[count]."""

    def integers(self, limbs: int, count: int) -> NDArray[np.int32]:
        """int32[limbs, count]."""

    def by_limb(self, words: Words, limbs: int) -> NDArray[np.int32]:
        """The same memory as int32[limbs, k]."""

    def floats(self, count: int, value: float = 0.0) -> NDArray[np.float32]:
        """float32[count] of one value."""

    def positions(self, chosen: Any) -> NDArray[np.int64]:
        """Where chosen[n] is not zero, ascending: int64[k]."""

    def write_exponent(self, magnitude: int, out: Words) -> None:
        """`exponent_words` of what the kernels returned as a magnitude, into out[EXPONENT_WORDS]."""

    def on_host(self, array: NDArray[Any]) -> NDArray[Any]:
        """What is in an array, for NumPy; of words, as uint32. Waits for what writes it."""

    def traveling(self, count: int) -> Words:
        """uint32[count] on the host, for words to be sent."""

    def send(self, words: Words, out: Words) -> None:
        """Have `words` copied to out, which is of `traveling`, by the time `settle` returns."""

    def settle(self) -> None:
        """Wait for every `send`."""

    def receive(self, words: Words) -> Words:
        """Words that came back, from anywhere on the host, for the kernels."""


class HostMemory:
    """See `Memory`: NumPy's."""

    direct = True

    def accepted(self, tensor: Any) -> Any:
        """See `Memory.accepted`."""
        return tensor if isinstance(tensor, BFloat16) else np.asarray(tensor)

    def dtype(self, tensor: Any) -> str:
        """See `Memory.dtype`."""
        return "bfloat16" if isinstance(tensor, BFloat16) else str(tensor.dtype)

    def widened(self, tensor: Any) -> NDArray[np.float32]:
        """See `Memory.widened`."""
        return widened(tensor)

    def beside(self, values: NDArray[np.float32]) -> Memory:
        """See `Memory.beside`."""
        return self

    def words(self, count: int) -> Words:
        """See `Memory.words`."""
        return np.empty(count, np.uint32)

    def integers(self, limbs: int, count: int) -> NDArray[np.int32]:
        """See `Memory.integers`."""
        return np.empty((limbs, count), np.int32)

    def by_limb(self, words: Words, limbs: int) -> NDArray[np.int32]:
        """See `Memory.by_limb`."""
        return words.view(np.int32).reshape(limbs, -1)

    def floats(self, count: int, value: float = 0.0) -> NDArray[np.float32]:
        """See `Memory.floats`."""
        return np.zeros(count, np.float32) if value == 0 else np.full(count, value, np.float32)

    def positions(self, chosen: Any) -> NDArray[np.int64]:
        """See `Memory.positions`."""
        return np.flatnonzero(chosen)

    def write_exponent(self, magnitude: int, out: Words) -> None:
        """See `Memory.write_exponent`."""
        out[:] = exponent_words(magnitude)

    def on_host(self, array: NDArray[Any]) -> NDArray[Any]:
        """See `Memory.on_host`."""
        return array

    def traveling(self, count: int) -> Words:
        """See `Memory.traveling`."""
        return np.empty(count, np.uint32)

    def send(self, words: Words, out: Words) -> None:
        """See `Memory.send`."""
        out[:] = words

    def settle(self) -> None:
        """See `Memory.settle`."""

    def receive(self, words: Words) -> Words:
        """See `Memory.receive`."""
        return words
