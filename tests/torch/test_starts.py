"""Ranks wait for each other at a start, hear at once that one has failed, and restart under torchrun."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest
import torch_training as training
from patience import PATIENCE_S, with_longer_timeouts
from torch.distributed import FileStore, HashStore, PrefixStore
from torch_alone import in_time
from torch_ranks import run_ranks

from peelsum.torch import HookConfigError, HookError, starts
from peelsum.torch.starts import restart_prefix, run_on_all_ranks

RANKS = 3


def on_all_ranks(work, store=None):
    """What each rank, in a thread of its own, returns or raises."""
    store = store or HashStore()
    with ThreadPoolExecutor(RANKS) as pool:
        works = [partial(work, rank) for rank in range(RANKS)]
        running = [pool.submit(run_on_all_ranks, store, n, RANKS, one) for n, one in enumerate(works)]
        return [one.exception(PATIENCE_S) or one.result() for one in running]


def test_nobody_goes_on_before_all_are_ready(monkeypatch):
    told = threading.Event()
    lines = []

    class Log:
        def warning(self, text, *values):
            lines.append(text % values)
            if len(lines) == RANKS - 1:
                told.set()

    monkeypatch.setattr(starts, "WARN_AFTER_S", 0.01)
    monkeypatch.setattr(starts, "_log", Log())

    def work(rank):
        assert rank != 1 or told.wait(PATIENCE_S)
        return rank

    assert on_all_ranks(work) == [0, 1, 2]
    assert lines == ["start: rank 1 is not ready, it may still compile; waiting up to 600 s"] * 2


class Connection:
    left = None

    def __exit__(self, kind, *_):
        self.left = kind


def test_a_rank_that_fails_is_told_of_by_the_others():
    """They leave what they have connected, at once."""
    made = [Connection(), Connection()]

    def work(rank):
        if rank == 2:
            raise ValueError("no compiler")
        return made[rank]

    *others, own = on_all_ranks(work)
    assert str(own) == "no compiler"
    for error in others:
        assert type(error) is HookError
        assert str(error) == "start: rank 2 failed at the start: ValueError: no compiler"
    assert [one.left for one in made] == [HookError] * 2


def test_a_rank_that_never_comes_is_named(monkeypatch):
    monkeypatch.setenv("PEELSUM_JOIN_S", "0.2")
    store = HashStore()
    with pytest.raises(HookError, match=r"ranks 1, 2 are not ready after 0\.2 s; see whether they are"):
        run_on_all_ranks(store, 0, RANKS, lambda: None)


def group_with(store):
    """Return a group of two, of which this process is rank 1."""
    return SimpleNamespace(size=lambda: 2, rank=lambda: 1, get_group_store=lambda: store)


class Exit:
    """What `atexit` does, here."""

    def __init__(self):
        self.handlers = []

    def register(self, work, *arguments):
        self.handlers.append((work, arguments))

    def unregister(self, work):
        self.handlers = [one for one in self.handlers if one[0] is not work]

    def run(self):
        for work, arguments in reversed(self.handlers):
            work(*arguments)


@pytest.fixture
def at_exit(monkeypatch):
    made = Exit()
    monkeypatch.setattr(starts, "atexit", made)
    return made


ENDED = (
    "start: rank 1 has ended without a backward pass; see its output, and have all ranks call backward "
    "equally often"
)


def waited_for(store):
    """The error of rank 0, which waits for rank 1."""
    with pytest.raises(HookError) as raised:
        run_on_all_ranks(store, 0, 2, lambda: None)
    return str(raised.value)


def test_a_rank_that_has_ended_before_its_start_is_not_waited_for(at_exit):
    store = HashStore()
    starts.announce_early_exit(group_with(store))
    at_exit.run()
    assert waited_for(store) == ENDED


@pytest.mark.parametrize("case", ["has started", "is a forked child", "ended before a restart"])
def test_who_has_not_ended_before_its_start_is_waited_for(monkeypatch, at_exit, case):
    monkeypatch.setenv("PEELSUM_JOIN_S", "0.2")
    store = HashStore()
    starts.announce_early_exit(group_with(store))
    if case == "has started":
        run_on_all_ranks(HashStore(), 0, 1, lambda: None)
    with monkeypatch.context() as patch:
        if case == "is a forked child":
            patch.setattr(starts.os, "getpid", lambda: -1)
        at_exit.run()
    if case == "ended before a restart":
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert "rank 1 is not ready after 0.2 s" in waited_for(store)


def test_a_store_that_is_gone_does_not_keep_a_process(at_exit, tmp_path):
    """A FileStore waits for its folder."""
    store = FileStore(str(tmp_path / "store"), 2)
    store.set_timeout(timedelta(seconds=2 * PATIENCE_S))
    starts.announce_early_exit(group_with(store))
    shutil.rmtree(tmp_path)
    in_time(at_exit.run)


@pytest.mark.usefixtures("forked_children")
def test_the_hook_does_not_wait_for_a_rank_that_ends_without_a_backward_pass():
    error, _ = run_ranks(2, training.ends_without_a_pass)
    assert error == ["HookError", ENDED]


def test_the_second_start_of_a_group_does_not_meet_the_first():
    """Rank 0 has been in another group before, and a start of this one has failed."""
    store = HashStore()
    run_on_all_ranks(PrefixStore("alone", store), 0, 1, lambda: None)

    def failing(rank):
        raise ValueError(f"rank {rank}")

    everybody = PrefixStore("all", store)
    assert [str(error) for error in on_all_ranks(failing, everybody)] == ["rank 0", "rank 1", "rank 2"]
    assert on_all_ranks(lambda rank: rank, everybody) == [0, 1, 2]


@pytest.mark.usefixtures("forked_children")
def test_the_hook_waits_for_a_rank_that_compiles():
    """Rank 1 compiles until rank 0 has waited for longer than the timeout of its sums."""

    def late(timeout_s):
        (line, first), (_, second) = run_ranks(2, training.compiling_late, timeout_s)
        assert "rank 1 is not ready, it may still compile" in line
        assert first == second == 1.0

    with_longer_timeouts(late)


AGENTS = {"TORCHELASTIC_USE_AGENT_STORE": "True"}


@pytest.mark.parametrize(
    ("environment", "start"),
    [
        ({}, ""),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_RESTART_COUNT": "3"}, ""),
        (AGENTS | {"TORCHELASTIC_RESTART_COUNT": "0"}, "start 0"),
        (AGENTS | {"TORCHELASTIC_RESTART_COUNT": "3", "GROUP_WORLD_SIZE": "1"}, "start 3"),
        (AGENTS | {"TORCHELASTIC_RESTART_COUNT": "0", "GROUP_WORLD_SIZE": "2"}, "start 0"),
    ],
)
def test_starts_are_told_apart_where_the_store_outlives_them(environment, start):
    assert restart_prefix(environment) == start


def test_agents_of_several_nodes_do_not_count_alike():
    environment = AGENTS | {"TORCHELASTIC_RESTART_COUNT": "1", "GROUP_WORLD_SIZE": "2"}
    with pytest.raises(HookConfigError, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all nodes"):
        restart_prefix(environment)
