"""`benchmarks/profile_switch.py`: every part of a packet's way gets its readings, and the sums stay right."""

import importlib.util
import json
import platform
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from peelsum.target import Switch, load
from peelsum.target.artifacts import pipeline

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "profile_switch.py"

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="reads the cycle counter of x86-64"
)


@pytest.fixture(scope="module")
def profile() -> ModuleType:
    spec = importlib.util.spec_from_file_location("profile_switch", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_part_begins_somewhere(profile: ModuleType) -> None:
    source = profile.Parts(Switch(load(pipeline(32).json_path), mode="python").source).source
    for number, part in enumerate(profile.PARTS):
        assert f"stamp({number})\n" in source, part


def test_the_profile_has_every_part_and_every_call(profile: ModuleType) -> None:
    # The sums of the program with readings in it are checked on the way.
    command = [sys.executable, str(SCRIPT), "--lanes", "32", "--workers", "--seconds", "0.1"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    (program,), (loop,) = report["program"], report["loop"]
    assert (program["lanes"], program["workers"]) == (loop["lanes"], loop["workers"]) == (32, 4)
    assert tuple(program["parts_ns"]) == profile.PARTS[:-1]
    assert program["sum_of_parts_ns"] == pytest.approx(sum(program["parts_ns"].values()), abs=0.1)
    assert any(program["parts_ns"].values())  # differences, which may be below zero on a busy machine
    assert loop["packets_per_s"] > 0
    assert sum(loop["parts_ns"].values()) > 0
    assert min(loop["parts_ns"].values()) >= 0  # a tenth of a second may hold none of the short parts
