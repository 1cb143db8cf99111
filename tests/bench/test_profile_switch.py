"""`peelsum.bench.switch.profile`: every part of a packet's path is measured, and the sums stay right."""

import platform

import pytest

from peelsum.bench.switch import profile
from peelsum.pipelines import pipeline
from peelsum.softswitch import Switch, load

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="reads the cycle counter of x86-64"
)


def test_every_part_begins_somewhere() -> None:
    source = profile.Parts(Switch(load(pipeline(32).json_path), mode="python").source).source
    for number, part in enumerate(profile.PARTS):
        assert f"stamp({number})\n" in source, part


@pytest.mark.system  # compiles the switch with readings in it
def test_the_profile_has_every_part_and_every_call() -> None:
    # The profile itself checks the sums of the program with readings.
    program, loop = profile.profile_program(32, 4), profile.profile_loop(32, 4, 0.1)
    assert tuple(program) == (*profile.PARTS[:-1], "sum", "without_stamps")
    assert program["sum"] == pytest.approx(sum(program[part] for part in profile.PARTS[:-1]), abs=0.1)
    assert any(program[part] for part in profile.PARTS[:-1])  # may be below zero on a busy machine
    assert all(row["packets_per_s"] > 0 and row["ns"] >= 0 for row in loop)
    assert sum(row["ns"] for row in loop) > 0
