"""How ranks start: they wait for each other, hold their seats, and may be restarted by torchrun.

A seat is a worker's port at a switch. Some ranks compile for minutes while others load compiled code. If a
sum began before all ranks are ready, it would report a slow rank as dead. So ranks wait for each other
through the group's store.
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
from peelsum.transport.joining import JOIN, WARN_AFTER_S, join_limit_s

T = TypeVar("T")
_POLL_S = 0.05
#: Most ranks that a message names.
_MAX_NAMED = 8
#: How long an unreferenced state may take to release its seat, in seconds.
_RELEASE_S = 5.0
#: How long the store may take at exit, in seconds.
_EXIT_STORE_S = 1.0
#: The seats that this process holds; the condition is notified when one is released.
_seats: set[str] = set()
_seat_released = threading.Condition()
_log = logging.getLogger("peelsum")


def unique_prefix(store: Store, purpose: str, rank: int) -> str:
    """Return a key prefix that is the same on all ranks of the store's group, and new at every call.

    Every rank counts its calls in the store, so calls for other groups or earlier stores do not matter.
    """
    return f"peelsum/{purpose}/{store.add(f'peelsum/{purpose} of rank {rank}', 1)}"


def announce_early_exit(group: dist.ProcessGroup | None) -> None:
    """At exit, tell the other ranks of a group if this rank never called `run_on_all_ranks`.

    They may wait for this rank there.
    """
    if group is not None and group.size() > 1:
        atexit.register(_report_early_exit, os.getpid(), group.rank(), group.get_group_store())


def _report_early_exit(process_id: int, rank: int, store: Store) -> None:
    """Write to the store that this rank has ended without a backward pass."""
    if process_id != os.getpid():  # this is a forked child
        return
    with suppress(Exception):  # the store may be gone
        store.set_timeout(timedelta(seconds=_EXIT_STORE_S))
        store.set(
            _early_exit_key(),
            f"rank {rank} has ended without a backward pass; see its output, and have all ranks call "
            "backward equally often",
        )


def _early_exit_key() -> str:
    """Return the store's key for a rank that has ended early; a restart by torchrun has another."""
    return f"peelsum/ended in start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def run_on_all_ranks(store: Store, rank: int, ranks: int, function: Callable[[], T]) -> T:
    """Call `function`, wait until it has returned on every rank, and return this rank's result.

    Raises the error of `function` on this rank. Raises HookError soon after `function` has failed on another
    rank, after another rank has ended (see `announce_early_exit`), or if a rank takes longer than
    `join_limit_s`; the result's `__exit__` is called before.
    """
    atexit.unregister(_report_early_exit)
    if ranks == 1:
        return function()
    prefix = unique_prefix(store, "ready", rank)
    try:
        limit_s, result = join_limit_s(), function()
    except BaseException as error:
        with suppress(Exception):  # if the store is gone, too, the first error counts
            message = f"rank {rank} failed at the start: {type(error).__name__}: {error}"
            store.set(f"{prefix}/failed", message)
        raise
    try:
        store.set(f"{prefix}/{rank}", "")
        _wait_for_ranks(store, prefix, ranks, limit_s)
    except BaseException:
        if close := getattr(result, "__exit__", None):
            close(*sys.exc_info())
        raise
    return result


def _wait_for_ranks(store: Store, prefix: str, ranks: int, limit_s: float) -> None:
    """Wait until every rank has set its key. Raises HookError after a failure, or after `limit_s`."""
    started, warned = time.monotonic(), False
    ready_keys, error_keys = (
        [f"{prefix}/{rank}" for rank in range(ranks)],
        (f"{prefix}/failed", _early_exit_key()),
    )
    while not store.check(ready_keys):
        for key in error_keys:
            if store.check([key]):
                raise HookError(f"start: {store.get(key).decode()}")
        waited_s = time.monotonic() - started
        if waited_s >= limit_s:
            who, they = _name_missing_ranks(store, ready_keys)
            raise HookError(
                f"start: {who} not ready after {limit_s:g} s; see whether {they} running, or allow more time "
                f"by {JOIN}"
            )
        if waited_s >= WARN_AFTER_S and not warned:
            warned = True
            who, they = _name_missing_ranks(store, ready_keys)
            text = "start: %s not ready, %s may still compile; waiting up to %g s"
            _log.warning(text, who, they.partition(" ")[0], limit_s)
        time.sleep(_POLL_S)


def _name_missing_ranks(store: Store, keys: list[str]) -> tuple[str, str]:
    """Return the ranks whose keys are not set, as "rank 1 is", "it is" or "ranks 1, 2 are", "they are"."""
    missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
    if len(missing) == 1:
        return f"rank {missing[0]} is", "it is"
    if len(missing) > _MAX_NAMED:
        missing[_MAX_NAMED:] = [f"{len(missing) - _MAX_NAMED} more"]
    return f"ranks {', '.join(missing)} are", "they are"


def init_process_group(backend: str | None = None, timeout: timedelta | None = None, **options: Any) -> None:
    """Call `torch.distributed.init_process_group` by the environment, in a script that torchrun may restart.

    torchrun's agent gives restarted ranks the store of the dead ranks, which has their stale addresses (torch
    2.13). Here every restart uses other keys in that store.
    Raises HookConfigError after a restart on one of several nodes that share the agent's store: their agents
    count restarts differently, so ranks could read the addresses of dead ranks. Raises torch's errors, too.
    """
    timeouts: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    prefix = restart_prefix(os.environ)
    store, rank, world_size = next(iter(rendezvous("env://", **timeouts)))
    dist.init_process_group(
        backend,
        store=PrefixStore(prefix, store) if prefix else store,
        rank=rank,
        world_size=world_size,
        **timeouts,
        **options,
    )


def restart_prefix(environment: Mapping[str, str]) -> str:
    """Return the key prefix of this restart in the store of torchrun's agent; "" for another store.

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
def hold_seat(seat: str) -> Iterator[None]:
    """Hold a seat while the body runs. Raises HookConfigError if this process holds it for longer.

    The switch would take a second connection to a seat for a restart of the same worker.
    """
    if seat in _seats:
        gc.collect()  # an unreferenced state can be in cycles
    with _seat_released:
        if not _seat_released.wait_for(lambda: seat not in _seats, _RELEASE_S):
            raise HookConfigError(
                f"over: this process is {seat} already; share one state between modules, or close the other "
                "state or process group first"
            )
        _seats.add(seat)
    try:
        yield
    finally:
        with _seat_released:
            _seats.discard(seat)
            _seat_released.notify_all()
