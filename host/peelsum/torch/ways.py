"""The choice of a way to sum by one argument: the switch, or a backend of torch.distributed."""

from __future__ import annotations

import torch
import torch.distributed as dist

from peelsum.allreduce import Summation
from peelsum.torch.errors import HookConfigError
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.switch_seat import check_size, plug_in

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
        check_size(over.workers, group.size())
        return over
    way, _, source = over.partition(":")
    if way == _SWITCH:
        return plug_in(source, group.rank(), group.size(), group.get_group_store(), timeout_s)
    if dist.is_backend_available(over):
        return ProcessGroupSummation(over, group, timeout_s=_TIMEOUT_S if timeout_s is None else timeout_s)
    if over.lower() in dist.Backend.backend_list:
        raise HookConfigError(
            f"over: torch {torch.__version__} was built without {over!r}; use 'switch' or 'gloo', "
            "or install a build that has it"
        )
    raise HookConfigError(f"over: {over!r} is no way to sum; use 'switch' or a backend such as 'gloo'")
