"""Compiled loops: what their code depends on, and a cache that is damaged, full, shared or another user's."""

import errno
import importlib.util
import os
import stat
import subprocess
import sys

import pytest
from patience import PATIENCE_S

from peelsum.compiling import cache, progress
from peelsum.compiling.cache import fingerprint

NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
#: Calls itself and another loop, and is called with several types.
LOOPS = """
from enum import IntEnum
from functools import partial
from typing import NamedTuple
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from peelsum.compiling import compiler

class Column(IntEnum):
    FIRST = 0

class State(NamedTuple):
    first: int
    second: int

def _emit(bits, context, builder, signature, arguments):
    return ir.IntType(64)(bits)

@intrinsic
def number(context):
    return types.int64(), partial(_emit, 7)

LESS, TABLE = 1, np.array([0, 1])

def _less(n):
    return n - LESS

less = compiler({})(_less)

@compiler({})
def halves(n):
    return n if n < 2 else halves(less(n) / 2)

@compiler({"nogil": True})
def use(state, by=2):
    return less(state.first) + TABLE[Column.FIRST] + number() + by
"""


def loops(folder, text=LOOPS):
    """Write and import the module of loops, and return it: its functions are not compiled yet."""
    path = folder / "peelsum_loops.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("peelsum_loops", path)
    module = sys.modules["peelsum_loops"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return a new cache folder, for this test."""
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two sources of a second may have one size
    monkeypatch.setattr(progress._progress, "tell", print)  # on a busy machine it would add to the log
    for cached in (cache.folder, cache._warn_once, cache._remove_unused):
        cached.cache_clear()
    yield tmp_path / "cache" / "peelsum"
    cache.folder.cache_clear()


def misses(*functions):
    return [sum(function.stats.cache_misses.values()) for function in functions]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LESS, TABLE = 1", "LESS, TABLE = 2"),
        ("LESS, TABLE = 1", "LESS, TABLE = np.uint64(1)"),
        ("[0, 1]", "[0, 2]"),
        ("n - LESS", "n + LESS"),
        ("FIRST = 0", "FIRST = 1"),
        ("partial(_emit, 7)", "partial(_emit, 8)"),
        ("ir.IntType(64)(bits)", "ir.IntType(64)(bits + 1)"),
        ("by=2", "by=3"),
        ('{"nogil": True}', '{"nogil": True, "boundscheck": True}'),
    ],
)
def test_code_depends_on_what_a_function_uses(tmp_path, before, after):
    original = fingerprint(loops(tmp_path).use)
    assert fingerprint(loops(tmp_path, "# A comment.\n" + LOOPS).use) == original
    assert LOOPS.count(before) == 1
    assert fingerprint(loops(tmp_path, LOOPS.replace(before, after)).use) != original


def test_a_value_without_known_content_is_an_error(tmp_path):
    with pytest.raises(TypeError, match="its content is unknown; pass it as an argument"):
        fingerprint(loops(tmp_path, LOOPS.replace("LESS, TABLE = 1", "LESS, TABLE = object()")).use)


def test_code_is_kept_for_this_user_alone_and_loaded(tmp_path, folder):
    first, second = loops(tmp_path), loops(tmp_path)
    assert [first.halves(9.0), second.halves(9.0)] == [1.5, 1.5]
    assert (misses(first.halves, first.less), misses(second.halves, second.less)) == ([1, 1], [0, 0])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_code_that_is_no_longer_used_is_removed(tmp_path, folder):
    loops(tmp_path).less(9)
    (old,) = folder.glob("*.nbc")
    os.utime(old, (0, 0))
    cache._remove_unused.cache_clear()
    after = loops(tmp_path, LOOPS.replace("n - LESS", "n + LESS"))
    assert after.less(9) == 10
    assert not old.exists()
    assert len(list(folder.glob("*.nbc"))) == 1


@pytest.mark.parametrize(
    "damage", [lambda code: b"", lambda code: code[: len(code) // 2], lambda code: b"\x80\x05." * 300]
)
def test_damaged_code_is_compiled_again(tmp_path, folder, caplog, damage):
    loops(tmp_path).halves(9.0)
    files = sorted(folder.glob("*.nbc"))
    for path in files:
        path.write_bytes(damage(path.read_bytes()))
    after = loops(tmp_path)
    assert after.halves(9.0) == 1.5
    (message,) = caplog.messages
    assert message == f"{folder}: holds damaged files of compiled code, which are compiled again"
    again = loops(tmp_path)
    assert again.halves(9.0) == 1.5
    assert (misses(after.halves, after.less), misses(again.halves)) == ([1, 1], [0])


def test_code_for_which_there_is_no_room_is_compiled(tmp_path, folder, caplog, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache.Path, "replace", full)
    assert loops(tmp_path).halves(9.0) == 1.5
    (message,) = caplog.messages
    assert message.startswith(f"{folder}: No space left on device: compiled code is not kept")
    assert message.endswith(f"free space, or {cache.REMEDY}")
    assert {path.suffix for path in folder.iterdir()} == {".lock"}


def chosen(folder):
    folder.mkdir(parents=True)


def shared(folder):
    chosen(folder)
    folder.chmod(0o777)


def in_a_shared_one(folder):
    chosen(folder)
    folder.parent.chmod(0o777)


def link(folder):
    folder.parent.mkdir()
    folder.symlink_to(folder.parents[1])


def file(folder):
    folder.parent.mkdir()
    folder.touch()


def of_another(folder):
    chosen(folder)
    os.chown(folder, 65534, 65534)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (shared, "others can write to it"),
        (in_a_shared_one, "others can write to it"),
        (link, "belongs to another user"),
        (file, "File exists"),
        pytest.param(of_another, "belongs to another user", marks=NEEDS_ROOT),
    ],
)
def test_a_folder_that_is_not_the_users_alone_is_not_used(tmp_path, folder, caplog, make, problem):
    make(folder)
    assert cache.folder() == tmp_path / "home" / "peelsum" / "compiled"
    assert caplog.messages == [f"{folder}: {problem}; compiled code goes elsewhere: {cache.REMEDY}"]


def test_without_any_folder_every_process_compiles(tmp_path, caplog, monkeypatch):
    monkeypatch.delenv(cache.CACHE_DIR)
    for name in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, "/proc/self/nothing")
    monkeypatch.setattr(cache.tempfile, "tempdir", "/proc/self/nothing")
    assert [loops(tmp_path).halves(9.0) for _ in range(2)] == [1.5, 1.5]
    (message,) = caplog.messages
    assert message.startswith("no folder for compiled code, so every process compiles for a minute or two: ")
    assert message.endswith(cache.REMEDY)


PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
from peelsum_loops import halves, less
print("ready", flush=True)
sys.stdin.readline()
arguments = [9, 9.0, True]
first = int(sys.argv[2])
results = [less(argument) for argument in arguments[first:] + arguments[:first]] + [halves(9.0)]
print(*[sum(loop.stats.cache_misses.values()) for loop in (less, halves)], *map(float, sorted(results)))
"""


@pytest.mark.system
def test_of_processes_that_start_together_one_compiles_each_signature(tmp_path):
    """Each process starts with another type."""
    loops(tmp_path)
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", PROCESS, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(number)], **options) for number in range(3)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=PATIENCE_S)[0].split() for process in processes]
    assert [sum(int(output[column]) for output in outputs) for column in (0, 1)] == [3, 1]
    assert [output[2:] for output in outputs] == [["0.0", "1.5", "8.0", "8.0"]] * 3


def test_a_forked_child_does_not_hold_the_lock(tmp_path, folder):
    """It outlives its parent's compilation, as a data loader may."""
    folder.mkdir(parents=True)
    read, write = os.pipe()
    with cache._lock(folder / f"loop-{'0' * 16}.nbc", loops(tmp_path).less):
        if not (child := os.fork()):
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    script = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    subprocess.run([sys.executable, "-c", script, str(folder / f"loop-{'0' * 16}.lock")], check=True)
    os.close(write)
    os.waitpid(child, 0)
