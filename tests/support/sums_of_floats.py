"""The right sum of workers' floats, computed from them alone: scales, integers and floats.

Shares no code with what is tested. Of a result it takes only the size of the blocks of scales, a choice.
"""

from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import NetworkModel
from peelsum.codec import BFloat16

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]
#: Where words are what counts, and where exchanges are.
SLOW, FAR = NetworkModel(gbps=1e-3, round_trip_s=0.0), NetworkModel(gbps=0.1, round_trip_s=1.0)
DTYPES = ["float32", "float16", "bfloat16"]
#: What Python's fractions have the time for.
FEW = 100


class Sum(NamedTuple):
    """What a step must return of a tensor, of n elements."""

    scales: Numbers
    """int64[n]"""
    quantized: list[Numbers]
    """int64[n] of each worker."""
    total: Numbers
    """int64[n]"""
    values: Floats
    """float32[n]"""


@cache
def finest(field, workers):
    """The largest scale by which values of this exponent field of all workers add up in an int32."""
    largest, scale = (2 - Fraction(2) ** -23) * Fraction(2) ** (field - 127), 125 - field
    while workers * round(largest * Fraction(2) ** (scale + 1)) <= 2**31 - 1:
        scale += 1
    while workers * round(largest * Fraction(2) ** scale) > 2**31 - 1:
        scale -= 1
    return scale


def _fields(magnitudes):
    return np.maximum(np.frexp(np.asarray(magnitudes, np.float64))[1].astype(np.int64) + 126, 0)


def scales_of(arrays, block):
    """Each element's scale: the finest for its block's upper exponent field.

    The tensor's largest field counts as the upper end of 9 fields. A block's field counts as no less than 40
    below its worker's largest. Levels of two fields are told apart modulo 32, from the tensor's downwards.
    Blocks of zeros have the tensor's.
    """
    n, begins = arrays[0].size, np.arange(0, arrays[0].size, block)
    used = [np.abs(array) for array in arrays if array.any()]
    largest = [int(_fields(array.max())) for array in used]
    top = min(9 * (max(largest) // 9) + 8, 254)
    below = np.full(len(begins), 32)  # levels below the top's, of the highest worker
    for array, field in zip(used, largest, strict=True):
        magnitudes = np.maximum.reduceat(array, begins)
        levels = np.maximum(_fields(magnitudes), field - 40) // 2
        below = np.where(magnitudes > 0, np.minimum(below, (top // 2 - levels) % 32), below)
    fields = np.clip(2 * (top // 2 - np.where(below == 32, 0, below)) + 1, 0, 254)
    scales = [finest(field, len(arrays)) for field in fields.tolist()]
    return np.repeat(np.array(scales, np.int64), block)[:n]


def _rounded(array, scales):
    """The integers of one worker: in Python's fractions, or for many elements in float64, exact there too."""
    if array.size > FEW:
        return np.rint(np.ldexp(array.astype(np.float64), scales)).astype(np.int64)
    exact = zip(array.tolist(), scales.tolist(), strict=True)
    return np.array([round(Fraction(value) * Fraction(2) ** scale) for value, scale in exact], np.int64)


def expected(arrays, block, divisor=1, *, scales=None):
    """The sum of the workers' tensors, which are finite and not all zero; by their own scales if None."""
    flat = [array.reshape(-1) for array in arrays]
    own = scales is None
    scales = scales_of(flat, block) if scales is None else scales
    quantized = [_rounded(array, scales) for array in flat]
    total = np.sum(quantized, axis=0)
    assert not own or np.abs(total).max() <= 2**31 - 1
    with np.errstate(over="ignore"):  # a sum of finite floats may be infinite
        values = (np.ldexp(total.astype(np.float64), -scales) / divisor).astype(np.float32)
    return Sum(scales, quantized, total, values)


class OnHost(dict[str, Any]):
    """A step's results, with the values as arrays of the host."""

    def __init__(self, result):
        super().__init__({name: replace(one, values=host(one.values)) for name, one in result.items()})
        self.one_round = result.one_round


def host(array):
    return array if isinstance(array, np.ndarray | BFloat16) else array.cpu().numpy()


def check(results, arrays, name="g", *, divisor=1):
    """All workers have the same bits, the sum's, and their own integers; return the first one's result."""
    tensors = [result[name] for result in results]
    first, shape, zeros = tensors[0], arrays[0].shape, np.zeros(arrays[0].size, np.int64)
    finite = all(np.isfinite(array).all() for array in arrays)
    if finite and any(array.any() for array in arrays):
        block = first.fixed.block
        assert block in [2**b for b in range(5, 16)]
        scales = first.scales.reshape(-1).astype(np.int64) if results[0].one_round else None
        meant = expected(arrays, block, divisor, scales=scales)
        if scales is None:
            np.testing.assert_array_equal(first.scales.reshape(-1), meant.scales)
        else:
            ahead_of(scales, [array.reshape(-1) for array in arrays], block)
    else:
        values = np.full(zeros.size, 0 if finite else np.nan, np.float32)
        meant = Sum(zeros, [zeros] * len(arrays), zeros, values)
        assert first.scales is None
    for tensor, quantized in zip(tensors, meant.quantized, strict=True):
        assert (tensor.finite, tensor.form, tensor.words_sent) == (finite, first.form, first.words_sent)
        assert tensor.values.shape == tensor.total.shape == tensor.quantized.shape == shape
        assert tensor.values.dtype == np.float32
        np.testing.assert_array_equal(tensor.quantized.reshape(-1), quantized)
        np.testing.assert_array_equal(tensor.total.reshape(-1), meant.total)
        same = tensor.values.reshape(-1).view(np.uint32) == meant.values.view(np.uint32)
        assert (same | np.isnan(meant.values) & np.isnan(tensor.values.reshape(-1))).all()
    return first


def ahead_of(scales, arrays, block):
    """Require that scales from earlier steps are those of blocks, and leave their largest number 10 bits.

    None is coarser than that of the tensor's largest values by more than six bits. A block of zeros can have
    any. Finer ones have numbers of up to 57 bits, with their sign.
    """
    begins = np.arange(0, scales.size, block)
    assert (np.repeat(scales[begins], block)[: scales.size] == scales).all()
    used = np.maximum.reduceat(np.max([np.abs(array) for array in arrays], axis=0), begins) > 0
    needed = scales_of(arrays, block)
    assert (scales[begins][used] >= needed[begins][used].min() - 6).all()
    finer = (scales - needed)[begins][used]
    assert ((finer >= 9 - finest(127, len(arrays))) & (finer <= 30)).all()


def workers_of(n, workers, density, seed, spread=3):
    arrays = []
    for worker in range(workers):
        rng = np.random.default_rng([seed, worker])
        values = rng.normal(size=n) * 10.0 ** rng.integers(-spread, spread, n)
        arrays.append(np.where(rng.random(n) < density, values, 0).astype(np.float32))
    return arrays


def typed(array, dtype):
    """The values rounded to the type, as an Allreduce takes them, and as the float32 that they equal."""
    if dtype == "float16":
        half = np.where(np.isfinite(array), np.clip(array, -65504, 65504), array).astype(np.float16)
        return half, half.astype(np.float32)
    if dtype == "bfloat16":
        bits = (array.view(np.uint32) >> 16).astype(np.uint16)
        return BFloat16(bits), (bits.astype(np.uint32) << 16).view(np.float32)
    return array, array
