"""Every element, in the fixed point in which sums of all workers fit 31 bits: compression switched off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from peelsum.compress.arithmetic import fixed_values, fixed_words
from peelsum.compress.compressor import (
    Compressor,
    Floats,
    Kind,
    Payload,
    Scope,
    TensorState,
    Values,
    require_scope,
)


@dataclass(frozen=True)
class Dense(Compressor):
    """Every element, rounded to fixed point with one scale for the tensor.

    With error feedback it sends all that an earlier compressor has left, and keeps what it rounds off.
    """

    per: Scope = "tensor"
    needs_feedback: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_scope(self.per)

    @property
    def kind(self) -> Kind:
        """Additive."""
        return "additive"

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        return Payload("additive", fixed_words(tensor, state.bound, state.workers))

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        return fixed_values(payload.data, state.bound, state.workers)
