"""Random frames through random programs, and through those next to these tests, compared with BMv2."""

import json
import random
import shutil

import pytest
from bmv2_files import PORTS, outputs_of
from program_frames import P4, by_port, for_bmv2
from random_frames import Generator
from random_programs import Programs

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.compiler.loading import parse

needs_bmv2 = pytest.mark.skipif(shutil.which("simple_switch") is None, reason="simple_switch is not on PATH")


def compared(document, seed, folder, broken):
    """Compare what BMv2 and the softswitch send, by port, but not the order of packets' copies."""
    rng = random.Random(seed)
    switch = Switch(parse(document, "random"), "python")
    frames = [(rng.randrange(1, 5), frame) for frame in Generator(switch, rng).frames(80, broken)]
    sent = by_port(switch.process(Frames.of(frames), 0).pairs())
    expected = {port: sorted(frames) for port, frames in sent.items() if port in PORTS}
    path = folder / "program.json"
    path.write_text(json.dumps(for_bmv2(document)))
    got = outputs_of(path, frames, sum(map(len, expected.values())), folder)
    assert {port: sorted(frames) for port, frames in got.items()} == expected


@needs_bmv2
@pytest.mark.parametrize("seed", range(20))
def test_a_random_program_does_what_bmv2_makes_it_do(seed, tmp_path):
    compared(Programs(random.Random(seed)).program(), seed, tmp_path, 0.15)


@needs_bmv2
@pytest.mark.parametrize(
    "name", ["arithmetic", "banks", "lanes", "limbs", "lookups", "registers", "replicate", "widths"]
)
def test_a_program_does_what_bmv2_makes_it_do_with_random_frames(name, tmp_path):
    """Only with whole frames: these programs read headers that are not valid, which in BMv2 are not 0."""
    compared(json.loads((P4 / f"{name}.json").read_text()), 1, tmp_path, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_random_program_does_the_same_in_both_modes(seed):
    program = parse(Programs(random.Random(seed)).program(), "random")
    plain, native = Switch(program, "python"), Switch(program)
    frames = Frames.of([(1, frame) for frame in Generator(plain, random.Random(seed)).frames(200)])
    assert plain.process(frames, 0).pairs() == native.process(frames, 0).pairs()
    assert native.mode == "numba"
