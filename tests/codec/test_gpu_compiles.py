"""Every Triton kernel compiles for GPUs of several generations, even on a machine without a GPU.

The interpreter accepts code that the compiler rejects, and does not count registers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from peelsum.codec import kernels

SCRIPT = Path(__file__).parents[1] / "support" / "gpu_compile.py"
SOURCES = Path(sys.modules[kernels.__module__].__file__ or "").parent
#: The most registers of a thread, of kernels that read or write each element or candidate. An SM has 65,536:
#: with 32 a thread it is full of threads (2,048); with 56 four programs of 256 threads are there, with 84 one
#: of 512, with 104 nine of 64.
REGISTERS = {
    "measure_kernel": 104,
    "write_dense_kernel": 56,
    "gather_kernel": 56,
    "read_kernel": 84,
    "count_kernel": 32,
    "totals_kernel": 32,
    "positions_kernel": 96,
    "sketch_encode_kernel": 56,
    # The programs that meet at a barrier must all run at once (`gpu_launch._PROGRAMS_PER_SM`).
    "rounds_kernel": 65536 // (4 * 128),
}


@pytest.mark.parametrize(
    "capability", [pytest.param(80, marks=pytest.mark.slow), 90, pytest.param(100, marks=pytest.mark.slow)]
)
def test_kernels_compile(capability: int, tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": str(tmp_path), "HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(capability)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    written = {
        name
        for source in SOURCES.glob("gpu_*_kernels.py")
        for name in re.findall(r"^def (\w+_kernel)\(", source.read_text(), re.MULTILINE)
    }
    lines = re.findall(r"^(\w+): (\d+) registers, (\d+) bytes of stack", run.stdout, re.MULTILINE)
    assert len(written) > 10
    assert {name for name, _, _ in lines} == written
    for name, registers, stack in lines:
        # At 8.0 the compiler takes 16 bytes for the barrier's loop, with registers to spare.
        assert int(stack) <= 16 * (capability == 80 and name == "rounds_kernel"), name
        assert int(registers) <= REGISTERS.get(name, 128), name
    # A thread's four queued items, and a sum of each in each of three sub-tables: other SMs write both.
    past = re.findall(r"^rounds_kernel: .* (\d+) loads past L1", run.stdout, re.MULTILINE)
    assert past == ["16"]
