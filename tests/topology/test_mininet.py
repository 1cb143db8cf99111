"""The example star in Mininet, with either switch: sums are exact, and nothing is left on the machine."""

import contextlib
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from mininet_missing import SYSTEM_PYTHON, mininet_missing
from patience import PATIENCE_S

from peelsum.topology import bmv2

EXAMPLE = Path(__file__).parents[2] / "examples/mininet_star.py"


def interfaces():
    return {path.name for path in Path("/proc/sys/net/ipv4/neigh").iterdir()}


@pytest.mark.system
@pytest.mark.parametrize("switch", ["softswitch", "bmv2"])
def test_workers_in_mininet_get_exact_sums(switch):
    if missing := mininet_missing():
        pytest.skip(missing)
    if switch == "bmv2" and not bmv2.available():
        pytest.skip("simple_switch_grpc is not on PATH")
    before = interfaces()
    command = [SYSTEM_PYTHON, str(EXAMPLE), "--python", sys.executable, "--switch", switch]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "worker 0: exact", "worker 1: exact"]
    assert interfaces() == before


def test_progress_of_a_busy_machine_is_not_taken_for_the_admission(monkeypatch):
    stub = SimpleNamespace(CLI=object, Mininet=object, Switch=object, Topo=object)
    for name in ("mininet", "mininet.cli", "mininet.net", "mininet.node", "mininet.topo"):
        monkeypatch.setitem(sys.modules, name, stub)
    started = runpy.run_path(str(EXAMPLE))["started"]
    code = """print('{"working": "loading: 3 s"}\\n{"job_id": 1}')"""
    with contextlib.ExitStack() as stack:
        assert started(stack, subprocess.Popen, [sys.executable, "-c", code]) == b'{"job_id": 1}\n'
