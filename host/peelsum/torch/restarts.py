"""`init_process_group` for ranks that torchrun may restart after one was lost.

torchrun's agent gives restarted ranks the store of the dead ones, with their stale addresses in it (torch
2.13). Here every start uses a part of the store of its own.
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
    """Call `torch.distributed.init_process_group` by the environment, in a script that torchrun may restart.

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
