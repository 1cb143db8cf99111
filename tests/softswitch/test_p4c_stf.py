"""p4c's own tests of programs for BMv2, on the softswitch: `.stf` files say what is sent and what must leave.

Of p4c's other programs, all that BMv2 loads must load. `P4C_SAMPLES` names the folder testdata/p4_16_samples
of a checkout of github.com/p4lang/p4c.
"""

import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from bmv2_files import refusal
from p4_programs import COMPILER

from peelsum.softswitch import Frames, Switch
from peelsum.softswitch.compiler.loading import parse
from peelsum.softswitch.inspection.entries import load_entries, packet_bytes

SAMPLES = os.environ.get("P4C_SAMPLES")
FILES = [] if SAMPLES is None else sorted(Path(SAMPLES).glob("*-bmv2.stf"))
#: For PSA, or for an architecture of their own, or with an extern that is compiled for BMv2.
OTHERS = {
    f"{name}-bmv2" for name in ("extern-funcs", "gauntlet_optional", "hash-extern", "internet_checksum1")
}
STEMS = [path.stem for path in FILES if not path.stem.startswith("psa-") and path.stem not in OTHERS]
#: What includes v1model; what p4c made of its P4_14 programs, and intermediate results of it.
FOR_BMV2 = re.compile(r"v1model\.p4|arith(-inline)?-skeleton\.p4")
P4_14, INTERMEDIATE = "p4_14_samples_outputs/**/*.p4", ("-first", "-frontend", "-midend")
SOURCES = [
    path
    for path in ([] if SAMPLES is None else [*Path(SAMPLES).glob("*.p4"), *Path(SAMPLES).parent.glob(P4_14)])
    if not path.stem.endswith(INTERMEDIATE) and FOR_BMV2.search(path.read_text(errors="replace"))
]
#: Commands that only show something, or set what no later packet depends on.
NO_EFFECT = (
    "register_read",
    "mirroring_get",
    "meter_get_rates",
    "meter_set_rates",
    "meter_array_set_rates",
    "wait",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SAMPLES is None, reason="P4C_SAMPLES names no folder of p4c's samples"),
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not on PATH"),
]


class Player:
    """Executes the commands of a test; the lists `sent` and `expected` are frames by port."""

    def __init__(self, switch, folder):
        self._switch, self._line = switch, folder / "line.stf"
        self._nodes, self._groups = [], {}
        self.sent, self.expected = {}, {}

    def execute(self, line):
        """Execute a line."""
        match re.sub("#.*", "", line).split():
            case ["add" | "setdefault", *_]:
                self._line.write_text(line)
                load_entries(self._line, self._switch)
            case ["packet", port, *digits]:
                frames = Frames.of([(int(port), packet_bytes("".join(digits)))])
                for to, frame in self._switch.process(frames, 0).pairs():
                    self.sent.setdefault(to, []).append(frame.hex().upper())
            case ["expect", port, *digits]:
                self.expected.setdefault(int(port), []).append("".join(digits).upper())
            case ["mirroring_add", session, port]:
                self._switch.sessions.set(int(session), [(int(port), 0)])
            case ["mirroring_add_mc", session, group]:
                self._switch.sessions.set(int(session), self._groups[group])
            case ["mc_mgrp_create", group]:
                self._groups[group] = []
            case ["mc_node_create", instance, *ports]:
                self._nodes.append([(int(port), int(instance)) for port in ports])
            case ["mc_node_associate", group, node]:
                self._groups[group] += self._nodes[int(node)]
                self._switch.groups.set(int(group), self._groups[group])
            case ["register_write", name, index, value]:
                self._switch.registers[name].write(int(index), int(value))
            case ["register_reset", name]:
                for index in range(self._switch.registers[name].values().size):
                    self._switch.registers[name].write(index, 0)
            case [command, *_]:
                assert command in NO_EFFECT, line


def matches(expected, frame):
    """Whether a frame is what a test expects: a star stands for any digit, and a dollar for the end."""
    digits = expected.removesuffix("$").replace("*", ".")
    return re.fullmatch(digits + ("" if expected.endswith("$") else ".*"), frame) is not None


@cache
def compiled(source):
    """Return the BMv2 JSON of a program."""
    command = [COMPILER, "--Wdisable", "-o", "/dev/stdout", str(source)]
    return subprocess.run(command, check=True, capture_output=True).stdout


@pytest.mark.parametrize("mode", ["python", "numba"])
@pytest.mark.parametrize("stem", STEMS)
def test_p4c_s_own_tests(stem, mode, tmp_path):
    source = Path(str(SAMPLES)) / f"{stem}.p4"
    player = Player(Switch(parse(json.loads(compiled(source)), stem), mode), tmp_path)
    for line in source.with_suffix(".stf").read_text().splitlines():
        player.execute(line)
    for port in player.sent | player.expected:
        sent, expected = player.sent.get(port, []), player.expected.get(port, [])
        if expected != [""]:  # any number of any packets
            assert len(sent) == len(expected)
            assert all(map(matches, expected, sent)), port


@pytest.mark.skipif(shutil.which("simple_switch") is None, reason="simple_switch is not on PATH")
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_programs_that_bmv2_loads_load(source, tmp_path):
    program = tmp_path / "program.json"
    command = [COMPILER, "--Wdisable", "-o", str(program), str(source)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("p4c does not compile it")
    if refusal(program, tmp_path) is not None:
        pytest.skip("BMv2 does not load it")
    Switch(parse(json.loads(program.read_bytes()), source.stem), "python")
