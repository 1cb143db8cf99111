"""`bench gpu`, and what it says without a GPU."""

import pytest
from command_line import benchmarks, peelsum

pytest.importorskip("torch")

import torch
from gpu_device import DEVICE

from benchmarks.experiments import gpu as bench
from benchmarks.experiments import gpu_stages
from peelsum.bench.codec.timing import NotExactError
from peelsum.codec.gpu import GpuDevice

NO_GPU = f"--device: 'cuda' is not available, as torch {torch.__version__} finds no GPU; use cpu, or install"
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


def test_buckets_are_measured():
    assert bench.bucket_us(str(DEVICE), 3, 40, steps=1) > 0


@pytest.mark.slow
def test_stages_are_measured():
    figures = gpu_stages.stages(str(DEVICE), 3, 3001, 0.05, runs=1)
    assert 100 < figures["candidates"] < 200
    assert figures["left"] == 0
    assert min(figures[f"{stage}_us"] for stage in ("copy", "index", "numbers", "peel", "results")) > 0


@pytest.mark.system
def test_a_wrong_peeled_number_is_an_error(monkeypatch):
    right = GpuDevice.sketch_decode

    def wrong(device, layout, sketch, positions, out):
        left_over = right(device, layout, sketch, positions, out)
        out[5] ^= 1
        return left_over

    monkeypatch.setattr(GpuDevice, "sketch_decode", wrong)
    with pytest.raises(NotExactError, match=r"elements: 1 of \d+ peeled numbers are wrong"):
        gpu_stages.stages(str(DEVICE), 3, 301, 0.05, runs=1)


@no_gpu
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpu"], f"gpu: torch {torch.__version__} finds no GPU; install torch's CUDA build on a machine"),
        (["train", "--device", "cuda"], NO_GPU),
        (["accuracy", "--device", "cuda"], NO_GPU),
        (["codec", "--device", "cuda"], "--device: 'cuda' is not available; use cpu"),
        (["train", "--device", "tpu"], "--device: 'tpu' is unknown; use one of cpu, cuda"),
    ],
)
def test_a_missing_device_is_named_in_one_line(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # with it the codec runs without a GPU
    done = peelsum("bench", *arguments) if arguments[0] in ("codec", "train") else benchmarks(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
