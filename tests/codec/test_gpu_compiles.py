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
    loads_past_l1 = dict(re.findall(r"^(\w+): (\d+) loads past L1", run.stdout, re.MULTILINE))
    assert len(written) > 10
    assert loads_past_l1.keys() == written
    # Programs on other SMs write the queue and the sums that this kernel reads.
    assert {name for name, loads in loads_past_l1.items() if int(loads)} == {"rounds_kernel"}
