"""`bench gpu`: its page, and what it says without a GPU."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from gpu_device import DEVICE
from typer.testing import CliRunner

from peelsum.bench import gpu as bench
from peelsum.bench.codec.rows import Row as CodecRow
from peelsum.bench.train.report import Row as TrainRow
from peelsum.cli.app import app

NO_GPU = f"--device: 'cuda' is not available, as torch {torch.__version__} finds no GPU; use cpu, or install"
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


def filled(kind: Any, **values: Any) -> Any:
    """Return a row of `kind` with these values, and 1 for every other field."""
    return kind(**{field.name: values.get(field.name, 1) for field in fields(kind)})


def test_page_compares_with_the_device_s_copy(tmp_path: Path) -> None:
    machine = bench.Machine("2026-11-22", "GPU X, 80 GiB", "570.1", "torch 2.13.0", "abc1234", 1000.0)
    coded = filled(
        CodecRow, elements=2**20, density=0.01, form="compact", index="bitmap", bits_per_element=1.25,
        encode_gbps=4000.0, decode_gbps=2000.0, codec_ms=0.5, time_ratio_to_best=0.25,
    )  # fmt: skip
    trained = filled(
        TrainRow, model="lstm", workers=4, path="switch", iteration_ms=12.5, compute_ms=3.0, encode_ms=0.5,
        network_ms=7.0, decode_ms=0.25, bytes_per_step=1_250_000, cpu_ms=40.0, cpu_of_gloo=None,
    )  # fmt: skip
    page, rows = tmp_path / "docs" / "gpu.md", tmp_path / "gpu.json"
    buckets = [bench.BucketRow(100, 1000, 2.5)]
    other, lhc = (
        filled(CodecRow, elements=2**27, density=0.05, form=form, index="bitmap", bits_per_element=3.2,
               encode_gbps=8 * encode, decode_gbps=8 * decode)
        for form, encode, decode in (("sketch", 900.0, 200.0), ("lhc_cuda", 300.0, 160.0))
    )  # fmt: skip
    coded_rows = [coded, other, lhc]
    bench.write(bench.GpuResults(machine, coded_rows, [trained], buckets), page, rows)
    lines = page.read_text().splitlines()
    assert "- 2026-11-22, commit abc1234" in lines
    assert "- GPU X, 80 GiB, driver 570.1" in lines
    # 4,000 Gbit/s are 500 GB/s, half of what the device copies.
    assert "| 1,048,576 | 1.0% | compact | bitmap | 1.25 | 0.5 | 50.0% | 25.0% | 4.00 |" in lines
    assert "| 134,217,728 | sketch | bitmap | 3.2 | 900 | 200 | 3.00 | 1.25 |" in lines
    assert "| 134,217,728 | lhc_cuda | bitmap | 3.2 | 300 | 160 | 1.00 | 1.00 |" in lines
    assert "| lstm | 4 | switch | 12.5 | 3 | 0.5 / 7 / 0.25 | 1.25 | 40 | - |" in lines
    assert "| 100 | 1,000 | 2.5 |" in lines
    assert '"copy_gbytes": 1000.0' in rows.read_text()


def test_buckets_are_measured() -> None:
    row = bench.bucket_row(DEVICE, 3, 40, steps=1)
    assert (row.tensors, row.elements) == (3, 40)
    assert row.tensor_us > 0


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
    assert list(tmp_path.iterdir()) == []
