"""Switch aggregation in PyTorch: a communication hook for DistributedDataParallel, and its state.

A script needs one line: `ddp.register_comm_hook(SwitchAllreduceState(), hook)`. Importing this package also
registers the backend of `torch.distributed.init_process_group("cpu:peelsum")`.
"""

from peelsum.compress import RandomK, Threshold, TopK
from peelsum.torch.errors import CallTimeoutError, HookConfigError, HookError, HookFailedError
from peelsum.torch.hook import fsdp_hook, hook
from peelsum.torch.process_group import SwitchOptions, SwitchProcessGroup, register_backend
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.restarts import init_process_group
from peelsum.torch.state import SwitchAllreduceState
from peelsum.torch.stats import HookStats, StrategyStats, TensorStats

__all__ = [
    "CallTimeoutError",
    "HookConfigError",
    "HookError",
    "HookFailedError",
    "HookStats",
    "ProcessGroupSummation",
    "RandomK",
    "StrategyStats",
    "SwitchAllreduceState",
    "SwitchOptions",
    "SwitchProcessGroup",
    "TensorStats",
    "Threshold",
    "TopK",
    "fsdp_hook",
    "hook",
    "init_process_group",
]

register_backend()
