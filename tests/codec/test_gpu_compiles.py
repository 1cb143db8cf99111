"""Every Triton kernel compiles for GPUs of several generations, even on a machine without a GPU.

The interpreter accepts code that the compiler rejects.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from peelsum.codec import device

SCRIPT = Path(__file__).parents[1] / "support" / "gpu_compile.py"
SOURCES = Path(sys.modules[device.__module__].__file__ or "").parent


@pytest.mark.parametrize(
    "capability", [90, *(pytest.param(capability, marks=pytest.mark.slow) for capability in (80, 100, 120))]
)
def test_kernels_compile(capability, pytestconfig, tmp_path):
    # What has compiled once is found there again: the key is the kernel's code, and Triton's version.
    cache = pytestconfig.cache.mkdir("triton") if pytestconfig.cache else tmp_path
    environment = {"PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": str(cache), "HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(capability)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    written = {
        name
        for source in (SOURCES / "gpu").glob("*.py")
        for name in re.findall(r"^def (\w+_kernel)\(", source.read_text(), re.MULTILINE)
    }
    accesses = {line.split()[0]: tuple(map(int, line.split()[1:])) for line in run.stdout.splitlines()}
    assert len(written) > 10
    assert accesses.keys() == written
    # Programs on other SMs write the queue and the sums that peeling reads past L1, between barriers that
    # release and acquire. A load that is not volatile could be moved out of the loop that waits for it.
    shared = {name: counts for name, counts in accesses.items() if any(counts)}
    assert [shared.pop(name) for name in ("scan_kernel", "candidates_kernel")] == [(0, 1, 0, 0)] * 2
    past_l1, *others = shared.pop("rounds_kernel")
    assert past_l1
    assert others == [4, 2, 2]
    assert not shared
