"""Exact allreduce of float tensors over any backend that sums 32-bit words.

`Allreduce(summation).sum({"name": array})` returns the sums. The backend, a `Summation`, does the networking.
"""

from peelsum.allreduce.allreduce import Allreduce, reduce_scatter
from peelsum.allreduce.choosing import RequestedForm, RequestedValues
from peelsum.allreduce.costs import CodecModel, NetworkModel
from peelsum.allreduce.errors import (
    AllreduceError,
    DeviceMemoryError,
    InvalidRequestError,
    PlanMismatchError,
    SummationStalledError,
)
from peelsum.allreduce.history import History
from peelsum.allreduce.indexes import BitmapIndex, BlockIndex, BloomIndex, Index, IndexForm
from peelsum.allreduce.local import LocalSummation
from peelsum.allreduce.measuring import measured
from peelsum.allreduce.plan import Choice, Form, Plan, PlanSettings, TensorPlan
from peelsum.allreduce.result import StepResult, TensorResult
from peelsum.summation import Op, Part, Summation

__all__ = [
    "Allreduce",
    "AllreduceError",
    "BitmapIndex",
    "BlockIndex",
    "BloomIndex",
    "Choice",
    "CodecModel",
    "DeviceMemoryError",
    "Form",
    "History",
    "Index",
    "IndexForm",
    "InvalidRequestError",
    "LocalSummation",
    "NetworkModel",
    "Op",
    "Part",
    "Plan",
    "PlanMismatchError",
    "PlanSettings",
    "RequestedForm",
    "RequestedValues",
    "StepResult",
    "Summation",
    "SummationStalledError",
    "TensorPlan",
    "TensorResult",
    "measured",
    "reduce_scatter",
]
