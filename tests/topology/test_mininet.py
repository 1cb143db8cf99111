"""The example star in Mininet, with either switch: sums are exact, and nothing is left on the machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

from peelsum.topology import bmv2

EXAMPLE = Path(__file__).parents[2] / "examples/mininet_star.py"
#: Debian's mininet belongs to this one.
SYSTEM_PYTHON = "/usr/bin/python3"


def _missing() -> str:
    """What Mininet needs and this machine lacks; empty if nothing."""
    if os.getuid() != 0:
        return "Mininet needs root"
    if not Path(SYSTEM_PYTHON).exists():
        return f"{SYSTEM_PYTHON} is not there"
    done = subprocess.run([SYSTEM_PYTHON, "-c", "import mininet.net"], capture_output=True, check=False)
    return "mininet is not installed for the system's Python" if done.returncode else ""


MISSING = _missing()


def interfaces() -> set[str]:
    return {path.name for path in Path("/proc/sys/net/ipv4/neigh").iterdir()}


@pytest.mark.skipif(bool(MISSING), reason=MISSING or "Mininet is there")
@pytest.mark.parametrize("switch", ["embedded", "bmv2"])
def test_workers_in_mininet_get_exact_sums(switch: str) -> None:
    if switch == "bmv2" and not bmv2.available():
        pytest.skip("simple_switch_grpc is not on PATH")
    before = interfaces()
    command = [SYSTEM_PYTHON, str(EXAMPLE), "--python", sys.executable, "--switch", switch]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "worker 0: exact", "worker 1: exact"]
    assert interfaces() == before
