"""Joining the other ranks also where torchrun has started them again, after one was lost.

Its agent gives them the store of those that died, with addresses in it at which nobody answers (torch 2.13).
So each start has a part of the store to itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]  # not exported, but documented

from peelsum.torch.errors import HookConfigError


def init_process_group(backend: str | None = None, timeout: timedelta | None = None, **options: Any) -> None:
    """`torch.distributed.init_process_group` by the environment, for a script that `torchrun` may restart.

    Raises HookConfigError where it would meet dead ranks' addresses: on one of several nodes, whose agents do
    not count alike how often they have started; what torch raises.
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
    """What tells this start's part of a store that outlives starts; empty if the store is this start's.

    Raises HookConfigError where nothing does.
    """
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        return ""
    restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts != "0" and environment.get("GROUP_WORLD_SIZE", "1") != "1":
        raise HookConfigError(
            "torchrun: gives ranks of several nodes that start again the addresses of those that died; "
            "use --rdzv-backend=c10d, and set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all nodes"
        )
    return f"start {restarts}"
