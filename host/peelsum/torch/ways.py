"""The choice of a way to sum by one argument: the switch, or a backend of torch.distributed."""

from __future__ import annotations

from contextlib import ExitStack

import torch.distributed as dist

from peelsum.allreduce import Summation
from peelsum.torch.errors import HookConfigError
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.switch_seat import plug_in

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
    with ExitStack() as unless_it_fits:
        if not isinstance(over, str):
            summation = over
        elif over.partition(":")[0] == _SWITCH:
            source, store = over.partition(":")[2], group.get_group_store()
            summation = unless_it_fits.enter_context(plug_in(source, group.rank(), store, timeout_s))
        elif dist.is_backend_available(over):
            summation = ProcessGroupSummation(over, group, timeout_s=timeout_s or _TIMEOUT_S)
        else:
            raise HookConfigError(
                f"over: {over!r} is no way to sum; use 'switch' or a backend such as 'gloo'"
            )
        if summation.workers != group.size():
            raise HookConfigError(
                f"over: {summation.workers} workers sum, but {group.size()} ranks train; "
                "have the job admitted for as many workers as there are ranks"
            )
        unless_it_fits.pop_all()
    return summation
