"""The choice of a backend by one argument: the switch, or a backend of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # not exported, but documented

from peelsum.allreduce import Summation
from peelsum.torch.errors import HookConfigError
from peelsum.torch.member_changes import MemberChanges
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.starts import run_on_all_ranks
from peelsum.torch.switch_seat import OnLost, check_size, connect_group, connect_rank, connect_to_run
from peelsum.transport import SwitchSummation

#: The name of the switch in `over`, alone or before a colon.
SWITCH = "switch"


def connect(
    over: str | Summation,
    process_group: dist.ProcessGroup | None,
    timeout_s: float | None,
    prepare: Callable[[], None] = lambda: None,
    *,
    on_lost: OnLost = "error",
) -> Summation:
    """Connect the ranks of `process_group` (None: all) to a backend; all of them must call this.

    over: "switch" takes the job from the environment, "switch:..." as `connect_rank` explains. The name of a
    backend of torch.distributed, such as "gloo" or "nccl", sums over that. A summation is returned as it is.
    timeout_s: how long a sum may wait for a worker; None takes the job's timeout, or 30 s.
    on_lost: whether a switch's job goes on without ranks that are lost, or ends in an error.
    prepare: is called first, e.g. to compile. Ranks wait for each other afterwards, and after connecting.
    Raises HookConfigError, TransportError, torch's errors, and HookError if another rank fails.
    """
    group = process_group or dist.group.WORLD
    if group is None:
        raise HookConfigError(
            "process_group: not initialized; call torch.distributed.init_process_group first"
        )
    if not isinstance(over, str):
        check_size(over.workers, group.size())
        prepare()
        return over
    name, _, source = over.partition(":")
    if name == SWITCH or dist.is_backend_available(over):
        store, rank, ranks = group.get_group_store(), group.rank(), group.size()
        run_on_all_ranks(store, rank, ranks, prepare)
        if name == SWITCH:
            connect_here = _connect_subgroup if 1 < ranks < dist.get_world_size() else connect_rank
            if on_lost == "continue":
                connect_here = partial(connect_rank, on_lost=on_lost)
            return run_on_all_ranks(
                store, rank, ranks, lambda: connect_here(source, rank, ranks, store, timeout_s)
            )
        return ProcessGroupSummation(over, group, timeout_s=timeout_s)
    if over.lower() in dist.Backend.backend_list:
        raise HookConfigError(
            f"over: torch {torch.__version__} was built without {over!r}; use 'switch' or 'gloo', "
            "or install a build that has it"
        )
    raise HookConfigError(
        f"over: {over!r} is not a backend; use 'switch', or one of torch.distributed such as 'gloo'"
    )


def connect_members(
    over: str | Summation,
    process_group: dist.ProcessGroup | None,
    timeout_s: float | None,
    prepare: Callable[[], None],
    *,
    enters: bool,
) -> MemberChanges:
    """Connect a rank in a run that goes on when others are lost; return its sums.

    enters: whether this process enters such a run before a later step of the others, instead of starting
    with them. Other arguments and errors are those of `connect`.
    """
    if enters:
        prepare()  # so that the others do not wait for it
        assert isinstance(over, str)
        summation, generation = connect_to_run(over.partition(":")[2], timeout_s)
        return MemberChanges(summation, generation)
    backend = connect(over, process_group, timeout_s, prepare, on_lost="continue")
    if not isinstance(backend, SwitchSummation) or len(backend.leases) != 1 or backend.planes != 1:
        raise HookConfigError(
            "on_lost: 'continue' needs one `peelsum job serve`; give over='switch://HOST:PORT'"
        )
    return MemberChanges(backend)


def _connect_subgroup(source: str, rank: int, ranks: int, store: Store, timeout_s: float | None) -> Summation:
    """Connect a rank of a group that has only some of all ranks.

    The group gets a job of its own from a controller, or else the job that `source` describes.
    """
    connection = connect_group(source, rank, ranks, store, timeout_s)
    if not isinstance(connection, str):
        return connection
    try:
        return connect_rank(source, rank, ranks, store, timeout_s)
    except HookConfigError as error:
        raise HookConfigError(f"{error}; these ranks get no job of their own, as {connection}") from error
