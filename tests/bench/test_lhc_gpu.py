"""LHC's layout in Triton gives the CPU's bits; `bench codec` measures tensors on a device."""

import numpy as np
import pytest
import torch
from gpu_device import DEVICE, REAL, bits, on_device

from benchmarks.experiments import codec
from benchmarks.rivals import lhc
from benchmarks.rivals.lhc import LhcLayout, lhc_step
from benchmarks.rivals.lhc_gpu import DeviceLhc
from peelsum.bench.codec import timing
from peelsum.bench.codec.timing import NoDeviceError, TimedDevice, tensor
from peelsum.codec import fixed_point

FIXED = fixed_point(130, 1)


@pytest.fixture(scope="module")
def cuda():
    return TimedDevice.of("cuda")


def test_all_words_of_a_device_are_sent(cuda):
    words = np.arange(70, dtype=np.uint32)
    np.testing.assert_array_equal(cuda.codec.fetch(on_device(words)), words)


@pytest.mark.covering(1)
@pytest.mark.parametrize("elements", [1, 15, 1023, 1024, 1025, 5003])
@pytest.mark.parametrize("density", [0.05, 1.0])
@pytest.mark.parametrize("index_bits", [1, 4])
def test_index_sketch_and_counts_are_those_of_the_cpu(elements, density, index_bits):
    values, _ = tensor("uniform", elements, density, 1)
    layout = LhcLayout(3, seed=2**64 - 5, index_bits=index_bits)
    index = layout.index(values)
    sketch, counts = layout.encode(values, FIXED, index)
    there, lhc = on_device(values), DeviceLhc(layout)
    np.testing.assert_array_equal(bits(lhc.index(there)), index)
    on_device_sketch, on_device_counts = lhc.encode(there, FIXED, on_device(index))
    np.testing.assert_array_equal(bits(on_device_sketch), sketch)
    np.testing.assert_array_equal(bits(on_device_counts).view(np.uint8), counts)


@pytest.mark.parametrize(
    ("rows", "index_bits"),
    [pytest.param(2, 4, marks=pytest.mark.slow), pytest.param(5, 1, marks=pytest.mark.slow), (5, 4), (60, 1)],
)
def test_recovers_what_parallel_peeling_recovers(cuda, rows, index_bits):
    values, positions = tensor("uniform", 6001, 0.3, 2)
    layout = LhcLayout(rows, seed=7, index_bits=index_bits)
    left_over = layout.peeled(positions).left_over
    assert (left_over > 0) == (rows < 60)
    assert lhc_step(cuda, layout, values, FIXED).left_over == left_over


def test_decodes_the_exact_sum_of_workers():
    layout, workers = LhcLayout(40), 3
    tensors = [tensor("rows", 5000, 0.1, seed)[0] for seed in range(workers)]
    fixed, lhc = fixed_point(130, workers), DeviceLhc(layout)
    index = torch.stack([lhc.index(on_device(values)) for values in tensors]).sum(0, dtype=torch.int32)
    encoded = [lhc.encode(on_device(values), fixed, index) for values in tensors]
    total = torch.stack([sketch for sketch, _ in encoded]).sum(0, dtype=torch.int32)
    out, left_over = lhc.decode(total, encoded[0][1], index, fixed, 5000)
    exact = sum(np.rint(values.astype(np.float64) * 2.0**fixed.scale) for values in tensors)
    assert left_over == 0
    assert out.device.type == DEVICE.type
    np.testing.assert_array_equal(out.cpu().numpy(), (exact * 2.0**-fixed.scale).astype(np.float32))


@pytest.mark.slow
def test_rows_of_a_device_have_the_sizes_of_the_cpu(monkeypatch):
    # Every run has its own seed, and sizes differ a little: one run makes the result deterministic.
    monkeypatch.setattr(timing, "REPEATS", 1)
    monkeypatch.setattr(lhc, "SIZES", ())
    monkeypatch.setattr(lhc, "MULTIPLES", ())
    monkeypatch.setattr(codec, "WAYS", (("compact", "bitmap"), ("sketch", "bitmap")))
    rows = {}
    for device in ("cpu", "cuda"):
        measured = list(codec.measure(0, 1099, 0.05, "rows", 1.3, device))
        # The fastest table may be another one on another device.
        rows[device] = [row for row in measured if row["form"] not in ("lhc_best", "lhc_cuda")]
        of_cuda = [row for row in measured if row["form"] == "lhc_cuda"]
        assert [row["index"] for row in of_cuda] == ["bitmap"] * (device == "cuda")
    sizes = ("form", "bits_per_element", "recovered_by_peeling", "rounds", "size_ratio_to_published")
    for ours, theirs in zip(rows["cuda"], rows["cpu"], strict=True):
        assert [ours[key] for key in sizes] == [theirs[key] for key in sizes]


@pytest.mark.skipif(REAL, reason="there is a device here, so it is not refused")
def test_no_device_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(NoDeviceError, match=r"--device: 'cuda' is not available; use cpu: .*GPU"):
        TimedDevice.of("cuda")
    with pytest.raises(NoDeviceError, match="--device: 'tpu' is unknown; use one of cpu, cuda"):
        TimedDevice.of("tpu")
