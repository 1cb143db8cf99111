"""One gradient that is far too large harms its own elements, and only until it has been sent."""

import numpy as np
import pytest
from compressors import COMPRESSORS, Workers, in_units, kept

from peelsum import compress

SIZES = {"a": 40, "b": 23}
WHERE = ["one element", "one tensor", "all"]
#: Those that send most of what they are offered, so that a spike has soon been sent.
SOON = [
    compress.TopK(0.5),
    compress.TopK(0.5, per="bucket"),
    compress.RandomK(0.5),
    compress.RandomK(0.5, seeds="own"),
    compress.Threshold(1e-3),
    compress.StarTopK(0.5),
    compress.VarTopK(0.5),
    compress.Dense(),
    compress.Single(),
    compress.Half(),
    compress.Brain(),
    compress.Int8Blocks(16),
    compress.NaturalCompression(),
    compress.PackedIntegers(16),
]


def gradients(step, workers=2, spike=None, where="all"):
    """Of every worker: standard normal, the same in every run; times `spike` at some elements."""
    given = []
    for worker in range(workers):
        rng = np.random.default_rng([step, worker])
        own = {name: rng.standard_normal(size).astype(np.float32) for name, size in SIZES.items()}
        if spike is not None:
            own["a"][slice(7, 8) if where == "one element" else slice(None)] *= np.float32(spike)
            if where == "all":
                own["b"] *= np.float32(spike)
        given.append(own)
    return given


@pytest.mark.covering(1)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=COMPRESSORS)
def test_books_balance_over_spikes(compressor, where):
    """Sent and kept come to all gradients: exactly, or up to the precision of the element's own largest."""
    for spike in (1e6, 1e30):
        workers = Workers(compressor, 2, error_feedback=True)
        for step in range(7):
            workers.step(gradients(step, spike=spike if step == 2 else None, where=where))
        for memory in (one.memory for one in workers.sums):
            for name, residual in memory.residuals.items():
                left = in_units(residual.numbers, residual.scales)
                rows = zip(memory.sent[name], left, memory.accumulated[name], strict=True)
                for sent, one, given in rows:
                    assert abs(sent + one - given) << 55 <= max(abs(given), abs(sent))
            if spike == 1e6 and compressor in SOON:
                memory.balance()


@pytest.mark.covering(1)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=COMPRESSORS)
def test_what_float32_cannot_hold_is_sent_in_parts(compressor, where):
    """Gradients of 6e37 twice in a row are finite, but not what is kept. No tensor becomes NaN.

    Rotated, the gradients themselves outgrow float32: these two steps are as those that are not finite.
    """
    workers = Workers(compressor, 2, error_feedback=True, kind=compress.Memory)
    rotated = "rotate=True" in repr(compressor)
    for step in range(12):
        large = step in (3, 4)
        for one in workers.step(gradients(step, spike=6e37 if large else None, where=where)):
            if not (large and rotated):
                assert all(tensor.finite for tensor in one.tensors), step
                assert not any(np.isnan(tensor.values).any() for tensor in one.tensors)
            assert 0 <= one.sent_energy < np.inf
            assert 0 <= one.offered_energy < np.inf


def test_a_spike_is_clipped_as_precisely_as_others():
    """The factor is as small as 1e-40, of which float32 has few bits."""
    direction = np.linspace(1, 2, 8, dtype=np.float32)
    memory = compress.Memory()
    grown = memory.add_gradients({"a": direction * np.float32(1.5e38)}, 0.0, 1e-3)["a"]
    expected = direction * 1e-3 / np.linalg.norm(direction.astype(float))
    np.testing.assert_allclose(kept(grown), expected, rtol=1e-6)
