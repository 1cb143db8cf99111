"""Exact all-reduce of float tensors over any way to sum 32-bit words: codec, plan and exchanges joined.

`Allreduce(summation).sum({"name": array})` is the whole of it. Sockets and switches belong to the summation.
"""

from peelsum.allreduce.allreduce import Allreduce
from peelsum.allreduce.errors import (
    AllreduceError,
    InvalidRequestError,
    PlanMismatchError,
    SummationStalledError,
)
from peelsum.allreduce.forms import RequestedForm
from peelsum.allreduce.local import LocalSummation
from peelsum.allreduce.plan import Form, Plan, TensorPlan
from peelsum.allreduce.result import StepResult, TensorResult
from peelsum.allreduce.summation import Op, Part, Summation

__all__ = [
    "Allreduce",
    "AllreduceError",
    "Form",
    "InvalidRequestError",
    "LocalSummation",
    "Op",
    "Part",
    "Plan",
    "PlanMismatchError",
    "RequestedForm",
    "StepResult",
    "Summation",
    "SummationStalledError",
    "TensorPlan",
    "TensorResult",
]
