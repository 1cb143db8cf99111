"""Processes that start together on a cold cache: one compiles, the others wait and load what it compiled."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from patience import PATIENCE_S
from peelsum.compiled_once import cache_of, first_alone

from peelsum import compiled_once

RANK = """
import sys
from peelsum.codec import cpu_index_loops, cpu_loops, cpu_sketch_loops, warm_up
print("ready", flush=True)
sys.stdin.readline()
warm_up()
modules = cpu_index_loops, cpu_loops, cpu_sketch_loops
stats = [one.stats for module in modules for one in vars(module).values() if hasattr(one, "stats")]
print(sum(map(len, [one.cache_misses for one in stats])))
"""


@pytest.mark.system
def test_of_ranks_on_a_cold_cache_one_compiles(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PATH": ""}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(3)
    ]
    assert [rank.stdout.readline() for rank in ranks] == ["ready\n"] * 3
    for rank in ranks:
        rank.stdin.write("go\n")
        rank.stdin.flush()
    outcomes = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    missed = sorted(int(out) for out, _ in outcomes)
    assert missed[0] == missed[1] == 0 < missed[2], outcomes
    told = "another process compiles the codec, once for this machine: "
    assert sum(told in err for _, err in outcomes) == 2


def holding(folder, entered, leave):
    with first_alone(folder, "loops"):
        entered.set()
        leave.wait(PATIENCE_S)


def test_who_waited_run_side_by_side(tmp_path, monkeypatch):
    """And a wait is told of, again and again. Each call has a lock of its own, so threads will do."""
    entered = [threading.Event() for _ in range(3)]
    leave = [threading.Event() for _ in range(3)]
    holders = [
        threading.Thread(target=holding, args=(str(tmp_path), *events))
        for events in zip(entered, leave, strict=True)
    ]
    holders[0].start()
    assert entered[0].wait(PATIENCE_S)
    for holder in holders[1:]:
        holder.start()

    def tell(text):
        told.append(text)
        if len(told) >= 2:
            leave[0].set()

    told = []
    monkeypatch.setattr(compiled_once, "BEAT_S", 0.01)
    monkeypatch.setattr(compiled_once._Reporter, "tell", staticmethod(tell))
    with first_alone(tmp_path, "loops"):
        for event in entered[1:]:
            assert event.wait(PATIENCE_S), "all that waited run at once, this process too"
    assert told[0].startswith("another process compiles the loops, once for this machine: ")
    assert len(told) >= 2
    for event in leave:
        event.set()
    for holder in holders:
        holder.join(PATIENCE_S)
        assert not holder.is_alive()


def test_without_a_place_for_a_lock_the_body_runs(tmp_path):
    (tmp_path / "file").touch()
    for folder in ("", tmp_path / "file" / "below"):
        with first_alone(folder, "loops"):
            pass
    assert cache_of(len) == ""


def is_free(folder):
    """Whether another process could compile alone now."""
    lock = os.open(folder / ".peelsum.lock", os.O_RDWR)
    free = compiled_once._locked(lock, alone=True)
    os.close(lock)
    return free


def test_forked_children_change_nothing(tmp_path):
    """One ends the body early, the other stays for longer; both have the parent's lock open."""
    body = first_alone(tmp_path, "loops")
    body.__enter__()
    if not (leaves := os.fork()):
        body.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(leaves, 0)
    assert not is_free(tmp_path)
    if not (stays := os.fork()):
        signal.pause()
    body.__exit__(None, None, None)
    try:
        assert is_free(tmp_path)
    finally:
        os.kill(stays, signal.SIGKILL)
        os.waitpid(stays, 0)
