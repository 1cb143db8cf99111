"""Every Triton kernel compiles for a GPU of compute capability 9.0, even on a machine without a GPU.

The interpreter accepts code that the compiler rejects, and does not count registers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from peelsum.codec import kernels

SCRIPT = Path(__file__).parents[1] / "support" / "gpu_compile.py"
SOURCES = Path(sys.modules[kernels.__module__].__file__ or "").parent


#: The most registers of a thread, of kernels that are to read as fast as the device copies. More threads have
#: more loads under way: as many as 65,536 registers allow, up to 2,048, from 32 on.
REGISTERS = {
    "index_kernel": 32,
    "index_sketch_kernel": 40,
    "block_magnitudes_kernel": 40,
    "quantize_kernel": 40,
    "dequantize_kernel": 52,
    "quantize_at_kernel": 32,
    "dequantize_at_kernel": 48,
    "positions_kernel": 96,
    "sketch_encode_kernel": 52,
}
#: `gpu_together._PROGRAMS_PER_SM`, which is not imported: Triton must not be before gpu_device has been.
PROGRAMS_PER_SM = 4


def test_kernels_compile(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": str(tmp_path), "HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    written = {
        name
        for source in SOURCES.glob("gpu_*_kernels.py")
        for name in re.findall(r"^def (\w+_kernel)\(", source.read_text(), re.MULTILINE)
    }
    compiled = {re.split("[,:]", line)[0] for line in run.stdout.splitlines()}
    assert len(written) > 10
    assert compiled == written
    for line in run.stdout.splitlines():
        stack = re.search(r"(\d+) bytes of stack", line)
        assert stack is not None, line
        assert int(stack.group(1)) <= (8 if ", table:" in line else 0), line
    # The barrier needs so many programs of 128 threads to run at once on an SM, which has 65,536 registers.
    for kernel in ("rounds_kernel", "rounds_kernel, table"):
        assert most(run.stdout, kernel) <= 65536 // (PROGRAMS_PER_SM * 128), kernel
    for name, registers in REGISTERS.items():
        assert most(run.stdout, name) <= registers, name
    for name in ("index_kernel", "index_sketch_kernel", "quantize_kernel", "block_magnitudes_kernel"):
        assert not re.search(rf"^{name}: .* 0 loads of 16 bytes", run.stdout, re.MULTILINE), name


def most(printed: str, kernel: str) -> int:
    """Return the most registers that a kernel needs in any of its forms."""
    return max(map(int, re.findall(rf"^{kernel}: (\d+) registers", printed, re.MULTILINE)))
