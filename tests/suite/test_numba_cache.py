"""Of test processes that need a function at the same moment, one compiles it, and all load what it saved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numba_cache
from patience import PATIENCE_S

PROCESSES = 3
#: Calls itself and another cached function. Each process starts with another type.
FUNCTIONS = """
import sys
from numba import njit

@njit(cache=True)
def below(n):
    return n - 1

@njit(cache=True)
def halves(n):
    return n if n < 2 else halves(below(n) / 2)
"""
PROCESS = """
import sys
import numba_cache
numba_cache.one_compiler_at_a_time()
from functions import below, halves
print("ready", flush=True)
sys.stdin.readline()
arguments = [9, 9.0, True]
first = int(sys.argv[1])
found = [below(one) for one in arguments[first:] + arguments[:first]] + [halves(9.0)]
print(*[sum(one.stats.cache_misses.values()) for one in (below, halves)], *map(float, sorted(found)))
"""


def run(folder: Path, count: int) -> list[list[str]]:
    """Return what `count` processes that compile at once print: compilations and results."""
    environment = {"PYTHONPATH": f"{Path(numba_cache.__file__).parent}:{folder}", "PATH": ""}
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(number)], **options)  # type: ignore[call-overload]
        for number in range(count)
    ]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * count
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate(timeout=PATIENCE_S)[0].split() for process in processes]


def test_every_signature_is_compiled_once_and_kept(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    together = run(tmp_path, PROCESSES)
    assert [sum(int(one[place]) for one in together) for place in (0, 1)] == [3, 1]
    (later,) = run(tmp_path, 1)
    assert later[:2] == ["0", "0"]
    assert [one[2:] for one in together] == [later[2:]] * PROCESSES
    assert later[2:] == ["0.0", "1.5", "8.0", "8.0"]
