"""Every element, in the fixed point in which sums of all workers fit 31 bits: compression switched off."""

from __future__ import annotations

from peelsum.compress.arithmetic import fixed_values, fixed_words
from peelsum.compress.compressor import Compressor, Floats, Payload, TensorState, Values


class Dense(Compressor):
    """Every element, rounded to fixed point with one scale for the tensor.

    With error feedback it sends all that an earlier compressor has left, and keeps what it rounds off.
    """

    name = "fixed-point"
    kind = "additive"
    needs_feedback = False

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        return fixed_words(tensor, state.bound, state.workers)

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        return fixed_values(payload, state.bound, state.workers)
