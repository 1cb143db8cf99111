"""The sum of one DDP bucket in every step, which replaces gradients by their averages.

A bucket is an ordered list of parameters. DDP rebuilds its buckets after the first step; each new bucket gets
a sum of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from peelsum.allreduce import Allreduce, StepResult
from peelsum.torch.error_feedback import ErrorFeedback
from peelsum.torch.host_memory import Bucket, summable
from peelsum.torch.pipeline import Seat


@dataclass
class BucketSum:
    """The sum of one bucket over all workers."""

    names: Sequence[str]
    """The names of the bucket's parameters, in order."""
    seat: Seat
    allreduce: Allreduce
    feedback: ErrorFeedback | None
    on_host: bool
    """Whether `allreduce` takes host arrays, as with error feedback, not tensors on the bucket's device."""

    def run(self, bucket: Bucket, step: int) -> StepResult:
        """Replace the bucket's gradients by their averages over workers. Raises the all-reduce's errors."""
        with bucket.gradients(on_host=self.on_host) as gradients:
            result = self._summed(gradients, step)
            for gradient, tensor in zip(gradients, result.tensors, strict=True):
                gradient.copy_(torch.as_tensor(tensor.values))
        return result

    def _summed(self, gradients: Sequence[torch.Tensor], step: int) -> StepResult:
        if self.feedback is None:
            tensors = map(summable, gradients) if self.on_host else gradients
            return self.allreduce.sum(dict(zip(self.names, tensors, strict=True)))
        wide = {name: one.float().numpy() for name, one in zip(self.names, gradients, strict=True)}
        offered, grown = self.feedback.offered(wide, step)
        result = self.allreduce.sum(offered)
        self.feedback.keep(grown, result, step)
        return result
