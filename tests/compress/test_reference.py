"""Compressors give the same bits as their plain references, for odd sizes and any magnitudes."""

from __future__ import annotations

import numpy as np
import pytest
from compressors import alone

from peelsum.compress import (
    QSGD,
    Brain,
    Combined,
    Dense,
    EFSignSGD,
    Half,
    Int8Blocks,
    NaturalCompression,
    PackedIntegers,
    PowerSGD,
    RandomK,
    SignSGD,
    Single,
    StarTopK,
    TensorState,
    TernGrad,
    Threshold,
    TopK,
    VarTopK,
    reference,
)
from peelsum.compress.arithmetic import code_of, pack, rounded_up, unpack, value_of
from peelsum.compress.rotation import block_of, rotated, rotated_back

SIZES = (1, 2, 31, 33, 257)


def tensor(elements, seed=0, spread=8):
    """Magnitudes over many octaves, some zeros, some equal."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(elements) * 2.0 ** rng.integers(-spread, spread + 1, elements)
    values[rng.random(elements) < 0.1] = 0.0
    values[rng.random(elements) < 0.1] = 0.75
    return values.astype(np.float32)


def same(values, expected):
    np.testing.assert_array_equal(values, np.array(expected, np.float64), strict=True)


#: By name: the compressor, and its reference of (values, state).
GATHERED = {
    "qsgd": (QSGD(4), lambda x, s: reference.qsgd(x, 4, True, 512, s.random(len(x)).tolist())),
    "qsgd blocks": (
        QSGD(8, block=16),
        lambda x, s: reference.qsgd(x, 8, True, 16, s.random(len(x)).tolist()),
    ),
    "qsgd largest": (
        QSGD(2, "largest", 50),
        lambda x, s: reference.qsgd(x, 2, False, 50, s.random(len(x)).tolist()),
    ),
    "single": (Single(), lambda x, s: x),
    "top-k, single": (Combined(TopK(0.3), Single()), lambda x, s: reference.top_k(x, -(-3 * len(x) // 10))),
    "ef-sign": (EFSignSGD(), lambda x, s: reference.ef_sign(x)),
    "half": (Half(), lambda x, s: reference.half(x)),
    "brain": (Brain(), lambda x, s: reference.brain(x)),
    "int8": (Int8Blocks(16), lambda x, s: reference.int8_blocks(x, 16)),
    "natural": (NaturalCompression(), lambda x, s: reference.natural(x, s.random(len(x)).tolist())),
    "top-k": (TopK(0.3), lambda x, s: reference.top_k(x, -(-3 * len(x) // 10))),
    "threshold": (Threshold(0.75), lambda x, s: reference.threshold(x, 0.75)),
}


@pytest.mark.parametrize("spread", [0, 8, 60])
@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize(("compressor", "plain"), GATHERED.values(), ids=GATHERED)
def test_what_is_sent(compressor, plain, elements, spread):
    for seed in range(3):
        values = tensor(elements, seed, spread)
        sent, state = alone(compressor, values, seed=seed)
        same(sent, plain(values.tolist(), state))


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("workers", [3, 7])
def test_dense(elements, workers):
    values = tensor(elements)
    sent, state = alone(Dense(), values, workers=workers)
    bound = state.bound
    same(sent, reference.fixed_point(values.tolist(), bound, workers) if bound else [0.0] * elements)


@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("workers", [1, 3, 7])
def test_packed_integers(elements, workers):
    for bits in (4, 8, 16):
        values = tensor(elements, bits)
        sent, state = alone(PackedIntegers(bits), values, workers=workers, seed=5)
        random = state.random(elements).tolist()
        same(sent, reference.packed_integers(values.tolist(), state.bound, bits, workers, random))


@pytest.mark.parametrize("elements", [1, 5, 64, 4097])
def test_rotated_integers(elements):
    values = tensor(elements, 3)
    sent, state = alone(PackedIntegers(8, rotate=True), values, workers=4, seed=1)
    block = block_of(elements)
    padded = -(-elements // block) * block
    signs = state.shared_random(padded).tolist()
    turned = reference.rotated(values.tolist(), signs, block)
    assert max(map(abs, turned)) == state.bound
    levels = reference.packed_integers(turned, state.bound, 8, 4, state.random(padded).tolist())
    same(sent, reference.rotated_back(levels, signs, block, elements))


@pytest.mark.parametrize("elements", SIZES)
def test_terngrad_and_fixed_point(elements):
    values = tensor(elements)
    sent, state = alone(TernGrad(), values, workers=5, seed=2)
    same(sent, reference.tern_grad(values.tolist(), state.bound, state.random(elements).tolist()))
    for compressor in (RandomK(0.4), StarTopK(0.4), VarTopK(0.4)):
        sent, state = alone(compressor, values, workers=5, seed=2)
        expected = np.zeros(elements)
        at = state.positions
        if state.bound:
            expected[at] = reference.fixed_point(values[at].tolist(), state.bound, 5)
        same(sent, expected)


def test_elected_positions_and_variances():
    values = tensor(257)
    for ratio in (0.01, 0.5):
        compressor = VarTopK(ratio)
        _, state = alone(compressor, values)
        chosen = reference.top_k(values.tolist(), compressor.count(257, 0))
        kept = [value for value in chosen if value]
        assert [values[at] for at in state.positions if values[at]] == kept
        merits = compressor.merit(values, state)
        assert merits == reference.variance(values[state.positions].tolist())


def test_majority():
    votes = [tensor(99, seed) for seed in range(4)]
    state = TensorState((99,), workers=4, bound=1.0)
    payloads = [SignSGD().compress(one, state) for one in votes]
    total = payloads[0].total(sum(one.data for one in payloads), 4)
    same(SignSGD().decompress(total, state), reference.majority([one.tolist() for one in votes]))


@pytest.mark.parametrize(("shape", "rank"), [((9, 7), 2), ((13, 30), 3), ((40, 3), 1)])
def test_power_sgd(shape, rank):
    """Every worker's part, of three workers with matrices of different magnitudes, summed in the open."""
    compressor = PowerSGD(rank)
    tensors = [tensor(shape[0] * shape[1], seed, 4) * np.float32(4.0**seed) for seed in range(3)]
    states = [TensorState(shape, seed=7, worker_id=one, workers=3) for one in range(3)]
    start = compressor._start(shape[1], states[0])
    for number in range(2):
        for state in states:
            state.round = number
        pairs = list(zip(tensors, states, strict=True))
        bound = max(value_of(code_of(compressor.announced(one, state))) for one, state in pairs)
        for state in states:
            state.bound = bound
        payloads = [compressor.compress(one, state) for one, state in pairs]
        for state, payload in zip(states, payloads, strict=True):
            state.summed = payload.total(sum(one.data for one in payloads), 3)
    expected = reference.power_sgd([one.reshape(shape).tolist() for one in tensors], start.tolist())
    sent = [compressor.decompress(one, state) for one, state in zip(payloads, states, strict=True)]
    for mine, plain in zip(sent, expected, strict=True):
        same(mine, plain)
    same(compressor.decompress(states[0].summed, states[0]), np.sum(expected, axis=0))


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16, 32])
def test_fields_in_words(bits):
    fields = np.random.default_rng(bits).integers(0, 2**bits, 77)
    words = pack(fields, bits)
    assert words.tolist() == reference.packed(fields.tolist(), bits)
    np.testing.assert_array_equal(unpack(words, 77, bits), fields)


def test_rotation_is_undone_exactly_on_integers():
    levels = np.random.default_rng(0).integers(-127, 128, 300)
    signs = np.random.default_rng(1).integers(0, 2**32, 512, np.uint32)
    there = rotated(levels.astype(np.float32), signs)
    np.testing.assert_array_equal(rotated_back(there.astype(np.int64), 1.0, signs, 300), levels)


def test_codes_are_ordered_and_never_below():
    values = np.sort(np.abs(np.random.default_rng(0).standard_normal(500) * 10.0 ** np.arange(-250, 250)))
    codes = [code_of(value) for value in values]
    assert codes == sorted(codes)
    assert code_of(0.0) == 0
    assert code_of(float("nan")) == code_of(float("inf")) == code_of(1e39) == 0x7F800000
    for value, code in zip(values, codes, strict=True):
        assert value_of(code) >= value
        assert code == 0 or value_of(code - 1) < value


def test_rounding_up_keeps_few_bits():
    values = np.random.default_rng(0).random(200)
    up = rounded_up(values, 12)
    assert [reference.rounded_up(value, 12) for value in values.tolist()] == up.tolist()
    assert ((up >= values) & (up < values * (1 + 2.0**-10))).all()
