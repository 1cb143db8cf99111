"""The choice of a way to sum by one argument: the switch, or a backend of torch.distributed."""

from __future__ import annotations

from contextlib import ExitStack

import torch.distributed as dist

from peelsum.allreduce import Summation
from peelsum.torch.errors import HookConfigError
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.switch_seat import Store, plug_in

_SWITCH = "switch"
_TIMEOUT_S = 30.0


def connect(
    over: str | Summation, process_group: dist.ProcessGroup | None, timeout_s: float | None
) -> Summation:
    """A way to sum over the ranks of `process_group` (None: all), who all call this.

    over: "switch", the job being described in the environment; "switch:..." as `plug_in` explains; the name
    of a backend, such as "gloo" or "nccl"; or a summation that is there. timeout_s: how long a sum may wait
    for a worker; None is the job's, or 30 s. Raises HookConfigError, TransportError, and what torch raises.
    """
    group = process_group or dist.group.WORLD
    if group is None:
        raise HookConfigError("process_group: there is none; call torch.distributed.init_process_group first")
    if not isinstance(over, str):
        _check_size(over, group.size())
        return over
    way, _, source = over.partition(":")
    if way == _SWITCH:
        return at_switch(source, group.rank(), group.size(), group.get_group_store(), timeout_s)
    if dist.is_backend_available(over):
        return ProcessGroupSummation(over, group, timeout_s=_TIMEOUT_S if timeout_s is None else timeout_s)
    raise HookConfigError(f"over: {over!r} is no way to sum; use 'switch' or a backend such as 'gloo'")


def at_switch(source: str, rank: int, ranks: int, store: Store, timeout_s: float | None) -> Summation:
    """`plug_in` to a job of as many workers as there are ranks. Raises HookConfigError if it has others."""
    with ExitStack() as unless_it_fits:
        summation = unless_it_fits.enter_context(plug_in(source, rank, store, timeout_s))
        _check_size(summation, ranks)
        unless_it_fits.pop_all()
    return summation


def _check_size(summation: Summation, ranks: int) -> None:
    if summation.workers != ranks:
        raise HookConfigError(
            f"over: {summation.workers} workers sum, but {ranks} ranks train; "
            "have the job admitted for as many workers as there are ranks"
        )
