"""What ranks do at a start: wait for each other, hold their seats, and start again under torchrun.

Ranks take different times: one compiles for minutes, others find compiled code. A sum that began before all
are ready would take the slow rank for a dead one, so ranks wait for each other through the group's store.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]  # not exported, but documented

from peelsum.torch.errors import HookConfigError, HookError
from peelsum.transport.joining import JOIN, TELL_AFTER_S, join_limit_s

T = TypeVar("T")
_PAUSE_S = 0.05
#: Most ranks that a message names.
_NAMED = 8
#: How long an unreferenced state may take to leave its seat, in seconds.
_LEAVING_S = 5.0
#: How long the store may take at exit, in seconds.
_TELLING_S = 1.0
#: The seats that this process holds; the condition is notified when one is left.
_held: set[str] = set()
_left = threading.Condition()
_log = logging.getLogger("peelsum")


def numbered(store: Store, what: str, rank: int) -> str:
    """Return a key prefix that is the same on all ranks of the store's group, and new at every call.

    Each rank counts in the store: what its process did in other groups, or earlier stores, changes nothing.
    """
    return f"peelsum/{what}/{store.add(f'peelsum/{what} of rank {rank}', 1)}"


def expect_start(group: dist.ProcessGroup | None) -> None:
    """Tell other ranks of a group if this process ends before its first start, for which they may wait."""
    if group is not None and group.size() > 1:
        atexit.register(_tell_of_the_end, os.getpid(), group.rank(), group.get_group_store())


def _tell_of_the_end(process_id: int, rank: int, store: Store) -> None:
    if process_id != os.getpid():  # a forked child's end
        return
    with suppress(Exception):  # of a store that is gone
        store.set_timeout(timedelta(seconds=_TELLING_S))
        store.set(
            _ended(),
            f"rank {rank} has ended without a backward pass; see its output, and have all ranks call "
            "backward equally often",
        )


def _ended() -> str:
    """Return the key that says which rank has ended before its first start, in this start of all ranks."""
    return f"peelsum/ended in start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def when_all_are_ready(store: Store, rank: int, ranks: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, once it has succeeded on every rank.

    Raises the error of `work` on this rank, or HookError soon after `work` has failed on another rank, or
    after that has ended (see `expect_start`). Raises HookError, too, if a rank takes longer than
    `join_limit_s`. Then calls the `__exit__` of the result.
    """
    atexit.unregister(_tell_of_the_end)
    if ranks == 1:
        return work()
    key = numbered(store, "ready", rank)
    try:
        limit_s, done = join_limit_s(), work()
    except BaseException as error:
        with suppress(Exception):  # of a store that is gone: the first error counts
            store.set(f"{key}/failed", f"rank {rank} failed at the start: {type(error).__name__}: {error}")
        raise
    try:
        store.set(f"{key}/{rank}", "")
        _wait(store, key, ranks, limit_s)
    except BaseException:
        if leave := getattr(done, "__exit__", None):
            leave(*sys.exc_info())
        raise
    return done


def _wait(store: Store, key: str, ranks: int, limit_s: float) -> None:
    since, told = time.monotonic(), False
    everybody, failed = [f"{key}/{rank}" for rank in range(ranks)], f"{key}/failed"
    while not store.check(everybody):
        waited = time.monotonic() - since
        for told_of in (failed, _ended()):
            if store.check([told_of]):
                raise HookError(f"start: {store.get(told_of).decode()}")
        if waited >= limit_s:
            who, they = _missing(store, everybody)
            raise HookError(
                f"start: {who} not ready after {limit_s:g} s; see whether {they} running, or allow more time "
                f"by {JOIN}"
            )
        if waited >= TELL_AFTER_S and not told:
            told = True
            who, they = _missing(store, everybody)
            text = "start: %s not ready, %s may still compile; waiting up to %g s"
            _log.warning(text, who, they.partition(" ")[0], limit_s)
        time.sleep(_PAUSE_S)


def _missing(store: Store, keys: list[str]) -> tuple[str, str]:
    """Return who is missing, as "rank 1 is" and "it is", or "ranks 1, 2 are" and "they are"."""
    missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
    if len(missing) == 1:
        return f"rank {missing[0]} is", "it is"
    if len(missing) > _NAMED:
        missing[_NAMED:] = [f"{len(missing) - _NAMED} more"]
    return f"ranks {', '.join(missing)} are", "they are"


def init_process_group(backend: str | None = None, timeout: timedelta | None = None, **options: Any) -> None:
    """Call `torch.distributed.init_process_group` by the environment, in a script that torchrun may restart.

    torchrun's agent gives restarted ranks the store of the dead ones, with their stale addresses in it (torch
    2.13). Here every start uses a part of the store of its own.
    Raises HookConfigError after a restart on one of several nodes that share the agent's store: their agents
    count restarts differently, and ranks would meet dead ranks' addresses. Raises torch's errors, too.
    """
    given: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    start = start_of(os.environ)
    store, rank, world_size = next(iter(rendezvous("env://", **given)))
    dist.init_process_group(
        backend,
        store=PrefixStore(start, store) if start else store,
        rank=rank,
        world_size=world_size,
        **given,
        **options,
    )


def start_of(environment: Mapping[str, str]) -> str:
    """Return the key prefix of this start in a store that outlives starts; "" if the store does not.

    Raises HookConfigError if no prefix would be the same on all ranks.
    """
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        return ""
    restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts != "0" and environment.get("GROUP_WORLD_SIZE", "1") != "1":
        raise HookConfigError(
            "torchrun: gives restarted ranks on several nodes the addresses of dead ranks; "
            "use --rdzv-backend=c10d, and set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all nodes"
        )
    return f"start {restarts}"


@contextmanager
def only_here(seat: str) -> Iterator[None]:
    """Hold a seat in the body. Raises HookConfigError if this process holds it already and keeps it.

    A second connection to a seat would look to the switch like an earlier run of the same worker.
    """
    if seat in _held:
        gc.collect()  # an unreferenced state can be in cycles
    with _left:
        if not _left.wait_for(lambda: seat not in _held, _LEAVING_S):
            raise HookConfigError(
                f"over: this process is {seat} already; share one state between modules, or close the other "
                "state or process group first"
            )
        _held.add(seat)
    try:
        yield
    finally:
        with _left:
            _held.discard(seat)
            _left.notify_all()
