"""Every compressor sends what its definition says, bit for bit, within its bound; and the docs tell of it.

A mean is tested by z = (mean - expected) / standard error, |z| < 5. By chance one such z in 1.7 million is
larger, so of the up to 97 elements of a test one fails with probability below 6e-5, if seeds were new.
"""

import math
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import definitions
import numpy as np
import pytest
from compressors import COMPRESSORS, KINDS, alone
from definitions import CHOICES, DEFINITIONS

import peelsum.compress
from peelsum.compress import (
    DGC,
    QSGD,
    Brain,
    Compressor,
    Dense,
    EFSignSGD,
    Half,
    Int8Blocks,
    NaturalCompression,
    PackedIntegers,
    PowerSGD,
    RandomK,
    SignSGD,
    Sparsifier,
    StarTopK,
    TensorState,
    TernGrad,
    TopK,
)
from peelsum.compress.arithmetic import from_code, pack, to_code, unpack
from peelsum.compress.methods.packed import rotate, rotate_back

PAGE = Path(__file__).parents[2] / "docs/reference/compressors.md"
DRAWS, Z = 1000, 5.0
X = (np.random.default_rng(11).standard_normal(97) * np.linspace(0.1, 3, 97)).astype(np.float32)
X = np.copysign(np.maximum(np.abs(X), np.float32(0.25)), X)  # so that no element is sent too rarely to count
SQUARE = float((X.astype(float) ** 2).sum())
by_one = pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=COMPRESSORS)


def tensor(elements, seed=0, spread=8):
    """Magnitudes over many octaves, some zeros, some equal."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(elements) * 2.0 ** rng.integers(-spread, spread + 1, elements)
    values[rng.random(elements) < 0.1] = 0.0
    values[rng.random(elements) < 0.1] = 0.75
    return values.astype(np.float32)


def defined(compressor, values, state):
    """What a compressor sends of values, by the definitions."""
    if not isinstance(compressor, Sparsifier):
        return DEFINITIONS[compressor.name](compressor, values, state)
    at = CHOICES[compressor.name](compressor, values, state)
    some, out = [values[one] for one in at], [0.0] * len(values)
    assert state.positions.tolist() == at
    if compressor.kind != "indexed":
        quantizer = compressor.quantizer or Dense()
        some = DEFINITIONS[quantizer.name](quantizer, some, state) if some else []
    for one, value in zip(at, some, strict=True):
        out[one] = value
    return out


def test_every_compressor_has_a_definition():
    """PowerSGD's is of several workers; see below."""
    assert DEFINITIONS.keys() | CHOICES.keys() | {"power"} == KINDS.keys()
    assert {type(one) for one in COMPRESSORS.values()} == set(KINDS.values())


@by_one
def test_what_is_sent(compressor):
    seeds = range(0 if compressor.name == "power" else 3)
    for elements, spread, seed in product((1, 2, 31, 33, 257), (0, 8, 60), seeds):
        values = tensor(elements, seed, spread)
        sent, state = alone(compressor, values, seed=seed, workers=1 + 2 * seed, step=seed)
        zero = compressor.kind == "additive" and not state.bound
        expected = [0.0] * elements if zero else defined(compressor, values.tolist(), state)
        np.testing.assert_array_equal(sent, np.array(expected, np.float64), strict=True)


@pytest.mark.parametrize("elements", [5, 4097])
def test_rotated_blocks_of_any_number(elements):
    values = tensor(elements, 3)
    compressor = PackedIntegers(8, rotate=True, seed=2)
    sent, state = alone(compressor, values, workers=4, seed=1)
    np.testing.assert_array_equal(sent, defined(compressor, values.tolist(), state))


RANDOM = [one for one in COMPRESSORS.values() if hasattr(one, "seed") and getattr(one, "sample", 1)]


@pytest.mark.parametrize("compressor", RANDOM, ids=str)
def test_random_numbers_differ_by_seed_tensor_and_worker(compressor):
    """But are the same again for the same ones; what must be shared is the same on all workers."""

    def sent(own=0, **state):
        values, _ = alone(replace(compressor, seed=own), X[:96].reshape(12, 8), workers=3, **state)
        return values.tobytes()

    assert sent(4, step=2) == sent(4, step=2)
    seeds = [sent(one, seed=other) for one in range(2) for other in range(2)]
    assert len(set(seeds)) > 2
    shared = isinstance(compressor, TopK | PowerSGD) or getattr(compressor, "seeds", "") == "shared"
    assert (sent(worker_id=0) == sent(worker_id=1)) == (shared and not getattr(compressor, "quantizer", None))


def test_a_sample_that_misleads_is_corrected():
    """A threshold that lets nearly all through is followed by a choice of the largest among them."""
    alike = np.full(1000, 2.0, np.float32)
    alike[-3:] = 9.0
    for seed in range(3):
        _, state = alone(TopK(0.05, sample=0.1, seed=seed), alike)
        assert state.positions.tolist() == [*range(47), 997, 998, 999]


def test_majority():
    votes = [tensor(99, seed) for seed in range(4)]
    state = TensorState((99,), workers=4, bound=1.0)
    total = sum(SignSGD().compress(one, state) for one in votes)
    expected = definitions.majority([one.tolist() for one in votes])
    np.testing.assert_array_equal(SignSGD().decompress(total, state, 4), expected)


@pytest.mark.parametrize(("shape", "rank"), [((9, 7), 2), ((13, 30), 3), ((40, 3), 1)])
def test_power_sgd(shape, rank):
    """Every worker's part, of three workers with matrices of different magnitudes, summed in the open."""
    compressor = PowerSGD(rank)
    tensors = [tensor(shape[0] * shape[1], seed, 4) * np.float32(4.0**seed) for seed in range(3)]
    states = [TensorState(shape, seed=7, worker_id=one, workers=3) for one in range(3)]
    start = compressor._start(shape[1], states[0])
    pairs = list(zip(tensors, states, strict=True))
    for number in range(2):
        for state in states:
            state.round = number
        bound = max(from_code(to_code(compressor.announced(one, state))) for one, state in pairs)
        for state in states:
            state.bound = bound
        payloads = [compressor.compress(one, state) for one, state in pairs]
        for state in states:
            state.summed = sum(payloads)
    expected = definitions.power_sgd([one.reshape(shape).tolist() for one in tensors], start.tolist())
    for payload, state, plain in zip(payloads, states, expected, strict=True):
        np.testing.assert_array_equal(compressor.decompress(payload, state), plain)
    total = compressor.decompress(states[0].summed, states[0], 3)
    np.testing.assert_array_equal(total, np.sum(expected, axis=0))


def draws(compressor):
    return np.array([alone(compressor, X, seed=seed, workers=3)[0] for seed in range(DRAWS)])


def largest_z(sent):
    """The largest |z| of an element; the largest elements may never leave a level that is 2**-11 above."""
    spread = sent.std(0, ddof=1) / math.sqrt(len(sent))
    moved = np.abs(sent.mean(0) - X)
    constant = np.where(moved > 2.0**-11 * np.abs(X), np.inf, 0.0)
    return float(np.max(np.divide(moved, spread, out=constant, where=spread > 0)))


#: By compressor: the bound on E |x - C(x)|^2 / |x|^2, and whether it is met with equality.
BOUNDS = {
    TopK(0.25): (1 - 25 / 97, False),
    RandomK(0.25): (1 - 25 / 97, True),
    QSGD(4): (min(97 / 49, math.sqrt(97) / 7) * (1 + 2.0**-13), False),
    TernGrad(): (float(np.abs(X).max()) * float(np.abs(X).sum(dtype=float)) / SQUARE - 1, True),
    COMPRESSORS["natural"]: (1 / 8, False),
    PackedIntegers(8): (
        97 * PackedIntegers(8).unit(alone(PackedIntegers(8), X, workers=3)[1]) ** 2 / 4 / SQUARE,
        False,
    ),
    EFSignSGD(): (1 - float(np.abs(X).sum(dtype=float)) ** 2 / (97 * SQUARE), True),
    Half(): (2.0**-22, False),
    COMPRESSORS["bf16"]: (2.0**-16, False),
    Int8Blocks(64): (64 / 2**14, False),
    PowerSGD(2, per="bucket"): (1.0, False),
}
MEANS = [*(one for one in COMPRESSORS.values() if one.unbiased), Int8Blocks(), TopK(0.5), RandomK(0.5)]


@pytest.mark.parametrize("compressor", MEANS, ids=str)
def test_the_mean_of_what_is_sent_is_the_tensor_if_it_says_so(compressor):
    assert (largest_z(draws(compressor)) < Z) == compressor.unbiased


@pytest.mark.parametrize(("compressor", "bound"), BOUNDS.items(), ids=str)
def test_the_error_is_within_its_bound(compressor, bound):
    most, equal = bound
    errors = ((draws(compressor) - X) ** 2).sum(1) / SQUARE
    allowed = Z * errors.std(ddof=1) / math.sqrt(DRAWS) + 2.0**-12 * most
    assert errors.mean() <= most + allowed
    assert not equal or errors.mean() >= most - allowed


def test_a_rotation_makes_the_unit_finer_where_few_elements_are_large():
    spiky = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    spiky[:3] = 100.0
    plain, turned = (alone(PackedIntegers(4, rotate=one), spiky, workers=3)[0] for one in (False, True))
    assert ((turned - spiky) ** 2).sum() < ((plain - spiky) ** 2).sum() / 4


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16, 32])
def test_fields_in_words(bits):
    fields = np.random.default_rng(bits).integers(0, 2**bits, 77)
    words = pack(fields, bits)
    assert words.tolist() == definitions.packed(fields.tolist(), bits)
    np.testing.assert_array_equal(unpack(words, 77, bits), fields)


def test_rotation_is_undone_exactly_on_integers():
    levels = np.random.default_rng(0).integers(-127, 128, 300)
    signs = np.random.default_rng(1).integers(0, 2**32, 512, np.uint32)
    there = rotate(levels.astype(np.float32), signs)
    np.testing.assert_array_equal(rotate_back(there.astype(np.int64), 1.0, signs, 300), levels)


def test_codes_are_ordered_and_never_below():
    values = np.sort(np.abs(np.random.default_rng(0).standard_normal(500) * 10.0 ** np.arange(-250, 250)))
    codes = [to_code(value) for value in values]
    assert codes == sorted(codes)
    assert to_code(0.0) == 0
    assert to_code(float("nan")) == to_code(float("inf")) == to_code(1e39) == 0x7F800000
    for value, code in zip(values, codes, strict=True):
        assert from_code(code) >= value
        assert code == 0 or from_code(code - 1) < value


def rows():
    """The cells of the docs' table."""
    lines = PAGE.read_text().splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("| compressor |")) + 2
    end = lines.index("", begin)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[begin:end]]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_of_the_docs(row):
    written, name, kind, size, unbiased, _, feedback, in_switch, _ = row
    compressor = eval(written.strip("`"), vars(peelsum.compress))
    assert isinstance(compressor, Compressor)
    values = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    _, state = alone(compressor, values, workers=4, seed=1)
    assert [name, kind] == [f"`{compressor.name}`", compressor.kind]
    assert size == f"{state.scratch['bytes']:,}"
    assert unbiased == ("yes" if compressor.unbiased else "no")
    assert feedback == ("yes" if compressor.needs_feedback else "no")
    assert in_switch == {"additive": "yes", "indexed": "yes, by its index", "gather": "no"}[compressor.kind]


def test_every_compressor_has_a_row():
    assert {row[1].strip("`") for row in rows()} == KINDS.keys()


def test_more_workers_than_fields_hold():
    for compressor, workers, complaint in (
        (PackedIntegers(4), 8, "bits: 4 holds the sum of 7 workers, not of 8; use more bits"),
        (RandomK(0.1, quantizer=PackedIntegers(8)), 128, "bits: 8 holds the sum of 127 workers, not of 128"),
        (TernGrad(), 2**16 + 1, "workers: 65537 are too many for packed integers; use up to 65536"),
    ):
        compressor.check(workers - 1)
        with pytest.raises(peelsum.compress.CompressConfigError, match=complaint):
            compressor.check(workers)


def test_warm_up_is_exponential():
    share = DGC(0.001, warm_up_steps=4)
    ratios = [share.ratio_at(step) for step in range(5)]
    assert ratios[0] == pytest.approx(0.25)
    assert ratios[-1] == share.ratio_at(1000) == 0.001
    np.testing.assert_allclose(np.diff(np.log(ratios)), np.log(0.001 / 0.25) / 4)
    assert [StarTopK(0.01, warm_up_steps=2).count(100, step) for step in (0, 1, 2, 3)] == [25, 6, 1, 1]


def test_natural_compression_ends_at_the_smallest_normal_float():
    least = 2.0**-126
    tensor = np.array([least, 0.5 * least, 2.0**127, 1.5 * 2.0**127], np.float32)
    seen = [alone(NaturalCompression(seed=seed), tensor)[0].tolist() for seed in range(20)]
    kept, halves, largest, above = zip(*seen, strict=True)
    assert set(kept) == {least}
    assert set(halves) == {0.0, least}
    assert set(largest) == set(above) == {2.0**127}


@pytest.mark.parametrize(("workers", "bits"), [(1, 2), (2, 4), (7, 4), (8, 8), (127, 8), (128, 16)])
def test_a_sum_of_signs_has_the_narrowest_field_that_fits(workers, bits):
    assert SignSGD().field(workers) == (bits, 1)


def test_bfloat16_that_would_be_infinite_is_the_largest():
    largest = float(np.uint32(0x7F7F0000).view(np.float32))
    values, _ = alone(Brain(), np.array([3.4e38, -3.4e38, largest, 1.0], np.float32))
    assert values.tolist() == [largest, -largest, largest, 1.0]
