"""Signs, with the mean magnitude as scale."""

from __future__ import annotations

import numpy as np

from peelsum.compress.arithmetic import (
    UNIT_BITS,
    arrays_of,
    bytes_of,
    halves_of,
    pack,
    rounded,
    scales_of,
    unpack,
)
from peelsum.compress.compressor import Compressor, Floats, Payload, TensorState, Values


class EFSignSGD(Compressor):
    """EF-signSGD: |x|_1 / n * sign(x), with error feedback (Karimireddy et al., ICML'19, algorithm 1).

    One bit for each element, a zero counting as positive, and the scale, rounded to 16 significant bits.
    Contraction: |x - C(x)|^2 = (1 - |x|_1^2 / (n |x|^2)) |x|^2 (lemma 8), up to 2**-30.
    """

    name = "ef-sign"
    kind = "gather"

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        mean = np.abs(tensor.astype(np.float64)).sum() / max(tensor.size, 1)
        scale = halves_of(rounded(np.array([mean]), UNIT_BITS))
        return bytes_of(*scale, pack((tensor < 0).astype(np.uint32), 1))

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        *scale, words = arrays_of(payload, (np.uint16, 1), (np.int16, 1), (np.uint32, -1))
        return scales_of(*scale) * (1.0 - 2.0 * unpack(words, state.elements, 1))
