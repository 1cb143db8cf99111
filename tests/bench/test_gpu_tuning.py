"""The table of launches: rows by device, a default for all others, and how a device's row is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_device import DEVICE

from peelsum.bench.gpu_tuning import TuningError, Work, tune
from peelsum.codec import gpu_tuning
from peelsum.codec.gpu_tuning import Launch, tuned


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the table, which tests may write."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps({**json.loads(gpu_tuning.TABLE.read_text()), "devices": {}}))
    monkeypatch.setattr(gpu_tuning, "TABLE", path)
    gpu_tuning._row.cache_clear()
    return path


@pytest.mark.slow
def test_every_candidate_gives_the_same_bits_and_the_fastest_is_taken() -> None:
    """Also with tiles that a tensor does not fill, and as many more as it has words."""
    told: list[dict[str, Any]] = []
    wanted = {
        kernel: gpu_tuning.candidates(kernel)[number] for number, kernel in enumerate(gpu_tuning.default())
    }

    def seconds(work: Work, device: torch.device) -> float:
        return 0.1 if tuned(work.kernel, device) == wanted[work.kernel] else 0.2

    assert tune(DEVICE, elements=4129, seconds=seconds, tell=told.append) == wanted
    assert len(told) == len(wanted)


def test_a_candidate_with_other_bits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from peelsum.codec import gpu_launch

    right = gpu_launch.measure

    def wrong(values: Any, rows: Any, count: Any, out: Any, bitmap: Any) -> None:
        right(values, rows, count, out, bitmap)
        if tuned("measure_kernel", DEVICE).tile == 32:
            bitmap[-1] ^= 1

    monkeypatch.setattr(gpu_launch, "measure", wrong)
    with pytest.raises(TuningError, match=r"measure_kernel: Launch\(tile=32, warps=1\) gives other bits"):
        tune(DEVICE, elements=500, seconds=lambda work, device: 1.0, tell=lambda text: None)


def test_a_devices_row_comes_before_the_default_row(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row may lack kernels. Devices are found by their names."""
    before = gpu_tuning.default()
    gpu_tuning.write_row("NVIDIA A100", {"totals_kernel": Launch(32, 8)}, table)
    gpu_tuning.write_row("NVIDIA H100", {"totals_kernel": Launch(16, 2)}, table)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: ["NVIDIA H100", "other"][device.index])
    assert tuned("totals_kernel", torch.device("cuda", 0)) == Launch(16, 2)
    assert tuned("measure_kernel", torch.device("cuda", 0)) == before["measure_kernel"]
    for other in (torch.device("cuda", 1), torch.device("cpu")):
        assert tuned("totals_kernel", other) == before["totals_kernel"]
    assert list(json.loads(table.read_text())["devices"]) == ["NVIDIA A100", "NVIDIA H100"]


def test_the_table_is_written_as_it_is_committed(table: Path) -> None:
    committed = Path(gpu_tuning.__file__).with_suffix(".json").read_text()
    for device, row in json.loads(committed)["devices"].items():
        gpu_tuning.write_row(device, {kernel: Launch(**launch) for kernel, launch in row.items()}, table)
    assert table.read_text() == committed


def test_rows_have_kernels_that_are_there_and_powers_of_two() -> None:
    table = json.loads(gpu_tuning.TABLE.read_text())
    for row in (table["default"], *table["devices"].values()):
        assert row.keys() <= table["default"].keys()
        sizes = [size for launch in row.values() for size in launch.values()]
        assert all(size & (size - 1) == 0 < size for size in sizes)
