"""Sparsify, then quantize: a sparsifier's values go through a quantizer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from peelsum.compress.compressor import (
    Compressor,
    Floats,
    Kind,
    Payload,
    Positions,
    Scope,
    SharedIndex,
    TensorState,
    Values,
)
from peelsum.compress.errors import CompressConfigError
from peelsum.compress.lanes import PackedIntegers
from peelsum.compress.quantizers import joined
from peelsum.compress.sparsifiers import Sparsifier, spread

_COUNT_BYTES = 4


@dataclass(frozen=True)
class Combined(Compressor):
    """The values that `sparsifier` chooses, compressed by `quantizer`: Qsparse (Basu et al., NeurIPS'19).

    With a quantizer of kind "gather", positions travel with the values, 4 bytes each. With an additive one
    the workers must share positions, as those of RandomK, StarTopK and VarTopK do: the integers then add up
    in a switch. Unbiased only relative to the sparsifier's choice, so error feedback is the default.
    Raises CompressConfigError for two that do not fit, and if `quantizer` works per bucket.
    """

    sparsifier: Sparsifier
    quantizer: Compressor

    def __post_init__(self) -> None:
        if not isinstance(self.sparsifier, Sparsifier):
            raise CompressConfigError(
                f"sparsifier: {self.sparsifier!r} does not choose elements; give a TopK"
            )
        if not isinstance(self.quantizer, Compressor) or self.quantizer.kind == "indexed":
            raise CompressConfigError(f"quantizer: {self.quantizer!r} is not a quantizer; give e.g. QSGD(4)")
        if isinstance(self.quantizer, Sparsifier | Combined) or self.quantizer.rounds > 1:
            raise CompressConfigError(f"quantizer: {self.quantizer!r} is not a quantizer; give e.g. QSGD(4)")
        shared = self.sparsifier.kind == "additive"
        if (self.quantizer.kind == "additive") != shared:
            remedy = "QSGD(4)" if not shared else "PackedIntegers(8)"
            raise CompressConfigError(
                f"quantizer: {self.quantizer!r} does not fit the positions of {self.sparsifier!r}, which are "
                f"{'shared' if shared else 'not shared'}; use e.g. {remedy}, or another sparsifier"
            )
        if isinstance(self.quantizer, PackedIntegers) and self.quantizer.rotate and self.index is not None:
            raise CompressConfigError("quantizer: rotate=True needs the positions first; use rotate=False")

    @property
    def per(self) -> Scope:
        """The sparsifier's."""
        return self.sparsifier.per

    @property
    def kind(self) -> Kind:
        """The quantizer's."""
        return self.quantizer.kind

    @property
    def index(self) -> SharedIndex | None:
        """The sparsifier's."""
        return self.sparsifier.index

    def check(self, workers: int) -> None:
        """See `Compressor.check`."""
        self.quantizer.check(workers)

    def announced(self, tensor: Floats, state: TensorState) -> float:
        """See `Compressor.announced`; with a shared index, any of the tensor's values may be sent."""
        if self.index is not None:
            return super().announced(tensor, state)
        positions = state.positions = self.sparsifier.positions(tensor, state)
        return self.quantizer.announced(tensor[positions], self._inner(positions, state))

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        if self.kind == "additive":
            assert state.positions is not None
            return self.quantizer.compress(tensor[state.positions], self._inner(state.positions, state))
        positions = self.sparsifier.positions(tensor, state)
        inner = self.quantizer.compress(tensor[positions], self._inner(positions, state))
        count = np.array([positions.size], np.uint32)
        return Payload("gather", joined(count, positions.astype(np.uint32), inner.data))

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        if self.kind == "additive":
            assert state.positions is not None
            values = self.quantizer.decompress(payload, self._inner(state.positions, state))
            return spread(values, state.positions, state.elements)
        end = _COUNT_BYTES * (1 + int(payload.data[:_COUNT_BYTES].view(np.uint32)[0]))
        positions = payload.data[_COUNT_BYTES:end].view(np.uint32).astype(np.int64)
        inner = replace(payload, data=payload.data[end:])
        values = self.quantizer.decompress(inner, self._inner(positions, state))
        return spread(values, positions, state.elements)

    def _inner(self, positions: Positions, state: TensorState) -> TensorState:
        """Return the quantizer's state, for a tensor of the chosen values."""
        scratch = state.scratch.setdefault("inner", {})
        return replace(state, shape=(positions.size,), positions=None, scratch=scratch, kept={})
