"""What each compressor sends, defined element by element in Python's own numbers, apart from the code.

`DEFINITIONS` has what a quantizer sends of some values, `CHOICES` which positions a sparsifier chooses, by
the compressor's name. `random` are the words of `TensorState.random`, `bound` is the largest magnitude that a
worker announced.
"""

import math
import struct
from fractions import Fraction

from peelsum.compress.methods.packed import block_size

_INT32_MAX = 2**31 - 1


def packed(fields, bits):
    """Return the words of fields of `bits` bits, the first in the lowest bits."""
    each = 32 // bits
    rows = [fields[begin : begin + each] for begin in range(0, len(fields), each)]
    return [sum(field << (bits * place) for place, field in enumerate(row)) for row in rows]


def top_k(values, count):
    """The positions of the `count` largest magnitudes, of equal ones the first."""
    order = sorted(range(len(values)), key=lambda at: (-abs(values[at]), at))
    return sorted(order[:count])


def count_of(compressor, elements, step):
    """A share of the elements, rounded up, on a straight line in its logarithm while it warms up."""
    left = max(1 - step / compressor.warm_up_steps, 0) if compressor.warm_up_steps else 0
    share = compressor.ratio * (compressor.warm_up_from / compressor.ratio) ** left
    return min(elements, math.ceil(share * elements - 1e-9))


def fixed_point(values, bound, workers):
    """Round to the finest 2**-s with which all workers' largest float below 2**e > bound fits an int32."""
    exponent = math.frexp(bound)[1]
    largest, scale = Fraction(2) ** exponent * (1 - Fraction(1, 2**24)), 40 - exponent
    while workers * round(largest * Fraction(2) ** scale) > _INT32_MAX:
        scale -= 1
    unit = Fraction(2) ** -scale
    return [float(round(Fraction(value) / unit) * unit) for value in values]


def variance(values):
    """Return the mean square difference from the mean, sums rounded once."""
    if not values:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / len(values)


def stochastic(values, unit, random):
    """Return values / unit, each magnitude rounded up if its fraction exceeds random / 2**32."""
    out = []
    for value, word in zip(values, random, strict=True):
        ratio = abs(value) / (unit or 1.0)
        level = math.floor(ratio) + (word < (ratio - math.floor(ratio)) * 2**32)
        out.append(-level if value < 0 else level)
    return out


def packed_integers(values, bound, bits, workers, random):
    """Return multiples of the unit with h = (2**bits - 1) // (2 workers) levels on each side of zero."""
    unit = rounded_up(bound / ((2**bits - 1) // (2 * workers)), 12)
    return [level * unit for level in stochastic(values, unit, random)]


def rotated(values, signs, block):
    """Return H D x of every block; a sign is the top bit of a word."""
    padded = [*values, *[0.0] * (len(signs) - len(values))]
    signed = [-value if word >> 31 else value for value, word in zip(padded, signs, strict=True)]
    return [one for begin in range(0, len(signed), block) for one in hadamard(signed[begin : begin + block])]


def rotate_back(values, signs, block, elements):
    """Return D H y / n of every block."""
    parts = [one for at in range(0, len(values), block) for one in hadamard(values[at : at + block])]
    pairs = zip(parts, signs, strict=True)
    return [(-value if word >> 31 else value) / block for value, word in pairs][:elements]


def hadamard(values):
    """Return [[H, H], [H, -H]] x."""
    if len(values) == 1:
        return list(values)
    half = len(values) // 2
    upper, lower = hadamard(values[:half]), hadamard(values[half:])
    pairs = list(zip(upper, lower, strict=True))
    return [a + b for a, b in pairs] + [a - b for a, b in pairs]


def tern_grad(values, bound, random):
    """Return s * sign(x) * b, with s = bound."""
    return [level * bound for level in stochastic(values, bound, random)]


def majority(votes):
    """Return the sign of the sum of the workers' signs, times the number of workers."""
    totals = [sum((value > 0) - (value < 0) for value in column) for column in zip(*votes, strict=True)]
    return [float(len(votes) * ((total > 0) - (total < 0))) for total in totals]


def qsgd(values, bits, two_norm, block, random):
    """Return norm / s times a level, block by block."""
    levels, out = 2 ** (bits - 1) - 1, []
    for begin in range(0, len(values), block):
        part, words = values[begin : begin + block], random[begin : begin + block]
        norm = math.sqrt(math.fsum(value * value for value in part)) if two_norm else max(map(abs, part))
        unit = rounded_up(max(norm, *map(abs, part)) / levels, 16)
        out += [level * unit for level in stochastic(part, unit, words)]
    return out


def ef_sign(values):
    """Return the mean magnitude with each element's sign."""
    mean = math.fsum(map(abs, values)) / max(len(values), 1)
    mantissa, exponent = math.frexp(mean)
    scale = math.ldexp(round(math.ldexp(mantissa, 16)), exponent - 16)
    return [-scale if value < 0 else scale for value in values]


def half(values):
    """Return values as binary16, divided by a power of two if the largest is 2**15 or more."""
    shift = max(math.frexp(max(map(abs, values), default=0.0))[1] - 15, 0)
    halves = [struct.unpack("<e", struct.pack("<e", math.ldexp(value, -shift)))[0] for value in values]
    return [math.ldexp(value, shift) for value in halves]


def brain(values):
    """Return values of 8 significant bits, rounded half to even; subnormal ones in units of 2**-133."""
    out = []
    for value in values:
        unit = Fraction(2) ** (max(math.frexp(value)[1], -125) - 8)
        rounded = round(Fraction(value) / unit) * unit
        largest = Fraction(255) * Fraction(2) ** 120
        out.append(float(max(min(rounded, largest), -largest)))
    return out


def int8_blocks(values, block):
    """Return multiples of a power of two, from -127 to 127, block by block."""
    out = []
    for begin in range(0, len(values), block):
        part = values[begin : begin + block]
        unit = math.ldexp(1.0, math.frexp(max(map(abs, part)))[1] - 7)
        out += [max(min(round(value / unit), 127), -127) * unit for value in part]
    return out


def natural(values, random):
    """Return the power of two below or above each magnitude, with its sign."""
    out = []
    for value, word in zip(values, random, strict=True):
        below = math.ldexp(1.0, min(max(math.frexp(abs(value))[1] - 1, -126), 127))
        ratio = abs(value) / below
        if ratio < 1:
            power = below if word < ratio * 2**32 else 0.0
        else:
            power = 2 * below if word < (ratio - 1) * 2**32 and below < 2.0**127 else below
        out.append(-power if value < 0 else power)
    return out


def power_sgd(tensors, start):
    """Return what each worker sends, P Q_w^T flat, of matrices tensors[w][row][column] and Q = start."""
    workers, rank = len(tensors), len(start[0])
    units = [_unit(matrix, 24) for matrix in tensors]
    pairs = list(zip(tensors, units, strict=True))
    whole = [[[round(Fraction(one) / unit) * unit for one in row] for row in rows] for rows, unit in pairs]
    factors = [_product(matrix, start) for matrix in whole]
    p = _orthonormal(_summed(factors, workers), rank)
    thin = []
    for matrix, unit in zip(whole, units, strict=True):
        rows = [[single(float(one)) for one in row] for row in _product(_turned(matrix), p)]
        thin.append([[round(Fraction(one) / unit) * unit for one in row] for row in rows])
    bound = max(abs(single(float(one))) for matrix in thin for row in matrix for one in row)
    sent = [[fixed_point([float(one) for one in row], bound, workers) for row in matrix] for matrix in thin]
    return [[float(one) for row in _product(p, _turned(q)) for one in row] for q in sent]


def rounded_up(value, bits):
    """Return the smallest number of at most `bits` significant bits from `value` >= 0 on."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(math.ldexp(mantissa, bits)), exponent - bits)


def single(value):
    """Return the value rounded to float32."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _summed(factors, workers):
    """Return the sum of float32 matrices in the fixed point of the largest."""
    rounded = [[[single(float(one)) for one in row] for row in matrix] for matrix in factors]
    bound = max(abs(one) for matrix in rounded for row in matrix for one in row)
    sent = [[fixed_point(row, bound, workers) for row in matrix] for matrix in rounded]
    return [
        [float(sum(map(Fraction, ones))) for ones in zip(*rows, strict=True)]
        for rows in zip(*sent, strict=True)
    ]


def _orthonormal(matrix, rank):
    columns = []
    for at in range(rank):
        column = [row[at] for row in matrix]
        before = _norm(column)
        for other in columns:
            dot = math.fsum(a * b for a, b in zip(column, other, strict=True))
            column = [a - dot * b for a, b in zip(column, other, strict=True)]
        size = _norm(column)
        columns.append([one / size if size > before * 2.0**-20 else 0.0 for one in column])
    return [[round(one * 4096) / 4096 for one in row] for row in zip(*columns, strict=True)]


def _norm(column):
    exponent = math.frexp(max(map(abs, column)))[1]
    return math.ldexp(math.sqrt(math.fsum(math.ldexp(one, -exponent) ** 2 for one in column)), exponent)


def _unit(matrix, bits):
    return Fraction(2) ** (math.frexp(max(abs(one) for row in matrix for one in row))[1] - bits)


def _product(left, right):
    columns = [[Fraction(one) for one in column] for column in zip(*right, strict=True)]
    return [
        [sum((Fraction(a) * b for a, b in zip(row, column, strict=True)), Fraction(0)) for column in columns]
        for row in left
    ]


def _turned(matrix):
    return [list(column) for column in zip(*matrix, strict=True)]


def _words(compressor, state, count):
    return state.random(count, compressor.seed).tolist()


def _packed(c, x, s):
    if not c.rotate:
        return packed_integers(x, s.bound, c.bits, s.workers, _words(c, s, len(x)))
    block = block_size(len(x))
    padded = -(-len(x) // block) * block
    signs = s.random(padded, c.seed, per_worker=False).tolist()
    turned = rotated(x, signs, block)
    assert single(max(map(abs, turned))) <= s.bound
    levels = packed_integers(turned, s.bound, c.bits, s.workers, _words(c, s, padded))
    return rotate_back(levels, signs, block, len(x))


def _sampled(c, x, s):
    """At least the `few`-th largest of a sample; too many are cut to the largest."""
    count = count_of(c, len(x), s.step)
    if c.sample is None:
        return top_k(x, count)
    size = math.ceil(c.sample * len(x))
    some = s.generator(c.seed, per_worker=False).choice(len(x), size, replace=False).tolist()
    few = max(1, round(size * count / len(x)))
    least = sorted((abs(x[at]) for at in some), reverse=True)[few - 1]
    passed = [at for at, value in enumerate(x) if abs(value) >= least]
    return passed if len(passed) <= 2 * count else top_k(x, count)


def _random(c, x, s):
    generator = s.generator(c.seed, per_worker=c.seeds == "own")
    count = count_of(c, len(x), s.step)
    return sorted(generator.choice(len(x), count, replace=False, shuffle=False).tolist())


def _elected(c, x, s):
    return top_k(x, count_of(c, len(x), s.step))


#: By the compressor's name: what is sent of values, given the compressor and the state.
DEFINITIONS = {
    "fixed-point": lambda c, x, s: fixed_point(x, s.bound, s.workers),
    "bf16": lambda c, x, s: brain(x),
    "ef-sign": lambda c, x, s: ef_sign(x),
    "fp16": lambda c, x, s: half(x),
    "fp32": lambda c, x, s: list(x),
    "int8": lambda c, x, s: int8_blocks(x, c.block),
    "natural": lambda c, x, s: natural(x, _words(c, s, len(x))),
    "packed": _packed,
    "qsgd": lambda c, x, s: qsgd(x, c.bits, c.norm == "two", c.block or len(x), _words(c, s, len(x))),
    "signsgd": lambda c, x, s: majority([x]),
    "terngrad": lambda c, x, s: tern_grad(x, s.bound, _words(c, s, len(x))),
}
#: By the sparsifier's name: the positions that a worker chooses.
CHOICES = {
    "dgc": _sampled,
    "random-k": _random,
    "star": _elected,
    "threshold": lambda c, x, s: [at for at, value in enumerate(x) if abs(value) >= c.value],
    "top-k": _sampled,
    "var": _elected,
}
