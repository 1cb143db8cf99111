"""The cache of machine code: reuse, protection from other users, processes that start at the same time."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

from peelsum.softswitch import Frames, Switch

P4 = Path(__file__).parent / "p4"
FRAME = b"\x00\x00\x00\x02\x80" + bytes(4)

START = """
import sys
from pathlib import Path
from peelsum.softswitch import Frames, Switch, load
switch = Switch(load(sys.argv[1]), cache=Path(sys.argv[2]))
print(switch.process(Frames.of([(0, bytes.fromhex(sys.argv[3]))]), 0).pairs()[0][0])
"""


def start(cache):
    command = [sys.executable, "-c", START, str(P4 / "replicate.json"), str(cache), FRAME.hex()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a cache made by two processes that started at once, and what they printed."""
    cache = tmp_path_factory.mktemp("compiled") / "new" / "cache"
    both = start(cache), start(cache)
    return cache, [process.communicate(timeout=PATIENCE_S)[0] for process in both]


def test_processes_that_start_at_once_share_one_cache(made):
    cache, printed = made
    assert printed == ["5\n", "5\n"]
    modules = list(cache.glob("*.py"))
    assert len(modules) == 1
    assert cache.stat().st_mode & 0o077 == 0, "code that we run is for us alone to write"
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}
    assert before
    assert start(cache).communicate(timeout=PATIENCE_S)[0] == "5\n"
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")} == before, "found, not made again"


@pytest.mark.parametrize("broken", ["a file in its place", "others may write there", "no such place"])
def test_without_a_usable_cache_code_is_compiled_anyway(tmp_path, program_of, broken):
    cache = tmp_path / "cache"
    if broken == "a file in its place":
        cache.write_text("")
    elif broken == "others may write there":
        cache.mkdir()
        cache.chmod(0o777)
    else:
        cache = Path("/proc/nowhere/cache")
    switch = Switch(program_of("replicate"), cache=cache)
    assert [port for port, _ in switch.process(Frames.of([(0, FRAME)]), 0).pairs()] == [5]
    assert broken != "others may write there" or not any(cache.iterdir())


def test_a_broken_cache_costs_time_only(made, tmp_path):
    """Code and its index are cut off in a copy, which keeps the file times that Numba compares."""
    cache = shutil.copytree(made[0], tmp_path / "cache")
    cache.chmod(0o700)
    files = [*cache.rglob("*.nbc"), *cache.rglob("*.nbi")]
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert start(cache).communicate(timeout=PATIENCE_S)[0] == "5\n"
