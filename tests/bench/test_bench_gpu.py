"""`bench gpu`, and what it says without a GPU."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from gpu_device import DEVICE
from typer.testing import CliRunner

from peelsum.cli.app import app
from peelsum.experiments.catalogue import gpu as bench

NO_GPU = f"--device: 'cuda' is not available, as torch {torch.__version__} finds no GPU; use cpu, or install"
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


def test_buckets_are_measured() -> None:
    assert bench.bucket_us(str(DEVICE), 3, 40, steps=1) > 0


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
def test_a_missing_device_is_named_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # with it the codec runs without a GPU
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 2
    assert said in done.output
