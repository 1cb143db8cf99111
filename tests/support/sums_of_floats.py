"""The right sum of workers' floats, computed from them alone: scale, integers and floats.

Shares no code with what is tested, and takes nothing from its results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import NetworkModel
from peelsum.codec import BFloat16

Floats = NDArray[np.float32]
#: Where words are what counts, and where exchanges are.
SLOW, FAR = NetworkModel(gbps=1e-3, round_trip_s=0.0), NetworkModel(gbps=0.1, round_trip_s=1.0)
FORMS = ["dense", "compact", "sketch"]
DTYPES = ["float32", "float16", "bfloat16"]
#: Around where words, lanes, blocks of 256 lanes and the levels of an index end.
ODD_SIZES = [0, 1, 2, 3, 31, 33, 255, 257, 1023, 1025, 4097, 8191, 8193, 19_999]
#: What Python's integers have the time for.
FEW = 2000
#: Stands for the level of a block of zeros.
_OF_ZEROS = -1000


def sent_as(form: str) -> dict[str, Any]:
    """The settings of an allreduce that sends all tensors in a form."""
    return {"forms": "dense"} if form == "dense" else {"forms": "sparse", "values": form}


def finest(exponent: int, workers: int) -> int:
    """The largest scale by which values below 2**(exponent + 1) of all workers add up in an int32."""
    largest, scale = (2 - Fraction(2) ** -23) * Fraction(2) ** exponent, -exponent - 2
    while workers * round(largest * Fraction(2) ** (scale + 1)) <= 2**31 - 1:
        scale += 1
    return scale


def scales_of(arrays: Sequence[Floats], fixed: Any) -> NDArray[np.int64]:
    """Each element's scale, if the blocks are those of `fixed`: the block's exponent, to the next odd field.

    A tensor's largest field is known to the upper end of nine. A block counts as no less than 40 octaves
    below its worker's largest value. Levels of two octaves repeat after 32, below the level of that upper
    end, which is the level of blocks of zeros.
    """
    n, block = arrays[0].size, fixed.block
    assert block >= 32
    assert block & (block - 1) == 0
    largest = exponent_of(arrays)
    assert largest is not None
    top = min((largest + 127) // 9 * 9 + 8, 254)
    begins = np.arange(0, n, block)
    below = np.full(len(begins), _OF_ZEROS)  # levels below the top's, of the highest worker
    for array in arrays:
        own, most = exponent_of([array]), np.maximum.reduceat(np.abs(array.reshape(-1)), begins)
        if own is not None:
            fields = np.maximum(np.maximum(np.frexp(most)[1] - 1, -127), own - 40) + 127
            levels = (top // 2 - np.maximum(fields, 0) // 2) % 32
            closer = (most > 0) & ((below == _OF_ZEROS) | (levels < below))
            below = np.where(closer, levels, below)
    below = np.where(below == _OF_ZEROS, 0, below)
    exponents = np.clip(2 * (top // 2 - below) + 1, 0, 254) - 127
    scales = {exponent: finest(exponent, len(arrays)) for exponent in set(exponents.tolist())}
    return np.repeat([scales[exponent] for exponent in exponents.tolist()], block)[:n]


def exponent_of(arrays: Sequence[Floats]) -> int | None:
    """Return the exponent of the largest magnitude on any worker; None if all are zero."""
    largest = max(float(np.abs(array).max(initial=0.0)) for array in arrays)
    return max(math.frexp(largest)[1] - 1, -127) if largest else None


def expected(arrays: Sequence[Floats], scales: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of integers: in Python's arithmetic, or for many elements in float64, exact there too."""
    if arrays[0].size > FEW:
        return sum(
            (np.rint(np.ldexp(array.reshape(-1).astype(np.float64), scales)).astype(np.int64))
            for array in arrays
        )
    total = [0] * arrays[0].size
    for array in arrays:
        for i in np.flatnonzero(array):
            total[i] += round(Fraction(float(array.flat[i])) * Fraction(2) ** int(scales[i]))
    return np.array(total, np.int64)


def check(results: Sequence[Any], arrays: Sequence[Floats], name: str = "g", *, divisor: int = 1) -> Any:
    """All workers have the same bits, the sum's, at the finest scales that they can agree on."""
    first = results[0][name]
    if exponent_of(arrays) is None:
        assert first.scales is None
        assert not first.total.any()
        assert not first.values.any()
    else:
        scales = scales_of(arrays, first.fixed)
        np.testing.assert_array_equal(first.scales.reshape(-1), scales)
        total = expected(arrays, scales)
        np.testing.assert_array_equal(first.total.reshape(-1), total)
        with np.errstate(over="ignore"):
            floats = (np.ldexp(total.astype(np.float64), -scales) / divisor).astype(np.float32)
        np.testing.assert_array_equal(first.values.reshape(-1).view(np.uint32), floats.view(np.uint32))
    for result in results:
        tensor = result[name]
        np.testing.assert_array_equal(tensor.total, first.total)
        assert tensor.values.tobytes() == first.values.tobytes()
    return first


def workers_of(n: int, workers: int, density: float, seed: int, spread: int = 3) -> list[Floats]:
    arrays = []
    for worker in range(workers):
        rng = np.random.default_rng([seed, worker])
        values = rng.normal(size=n) * 10.0 ** rng.integers(-spread, spread, n)
        arrays.append(np.where(rng.random(n) < density, values, 0).astype(np.float32))
    return arrays


def typed(array: Floats, dtype: str) -> tuple[Any, Floats]:
    """The values rounded to the type, as an Allreduce takes them, and as the float32 that they equal."""
    if dtype == "float16":
        half = np.clip(array, -65504, 65504).astype(np.float16)
        return half, half.astype(np.float32)
    if dtype == "bfloat16":
        bits = (array.view(np.uint32) >> 16).astype(np.uint16)
        return BFloat16(bits), (bits.astype(np.uint32) << 16).view(np.float32)
    return array, array
