"""A program's machine code is found again by the next process, which compiles nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

P4 = Path(__file__).parent / "p4"
FRAME = b"\x00\x00\x00\x02\x80" + bytes(4)

START = """
import sys
from peelsum.softswitch import Frames, Switch, load
switch = Switch(load(sys.argv[1]))
print(switch.process(Frames.of([(0, bytes.fromhex(sys.argv[2]))]), 0).pairs()[0][0])
print(sum(switch._run.stats.cache_misses.values()))
"""


def start(cache):
    command = [sys.executable, "-c", START, str(P4 / "replicate.json"), FRAME.hex()]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.system
def test_processes_that_start_at_once_compile_a_program_once(tmp_path):
    both = start(tmp_path), start(tmp_path)
    printed = sorted(process.communicate(timeout=PATIENCE_S)[0].split() for process in both)
    assert printed == [["5", "0"], ["5", "1"]]
    assert start(tmp_path).communicate(timeout=PATIENCE_S)[0].split() == ["5", "0"]
