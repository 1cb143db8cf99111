"""Switch aggregation in PyTorch: a communication hook for DistributedDataParallel, and its state.

A script needs one line: `ddp.register_comm_hook(SwitchAllreduceState(), hook)`. Importing this package also
registers the backend of `torch.distributed.init_process_group("cpu:peelsum,cuda:peelsum")`.
"""

import warnings

import torch

from peelsum.allreduce.result import TensorStats
from peelsum.compress import RandomK, StrategyStats, Threshold, TopK
from peelsum.torch.errors import CallTimeoutError, HookConfigError, HookError, HookFailedError
from peelsum.torch.hook import fsdp_hook, fsdp_reduce_scatter, hook
from peelsum.torch.process_group import SwitchOptions, SwitchProcessGroup, register_backend
from peelsum.torch.process_group_summation import ProcessGroupSummation
from peelsum.torch.starts import init_process_group
from peelsum.torch.state import SwitchAllreduceState
from peelsum.torch.stats import HookStats

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
    "fsdp_reduce_scatter",
    "hook",
    "init_process_group",
]

#: The first and the last version of torch, major and minor, with which the tests ran.
TESTED = ((2, 9), (2, 15))


def check_version(version: str) -> None:
    """Warn if the tests did not run with this version of torch."""
    if not TESTED[0] <= tuple(map(int, version.split(".")[:2])) <= TESTED[1]:
        first, last = (".".join(map(str, tested)) for tested in TESTED)
        warnings.warn(
            f"torch: {version} was not tested; peelsum's tests ran with {first} to {last}", stacklevel=3
        )


check_version(torch.__version__)
register_backend()
