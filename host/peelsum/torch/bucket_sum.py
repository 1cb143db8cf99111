"""One DDP bucket's sums, step after step: gradients in, averages in their place.

A bucket is a list of parameters in order; DDP makes others after the first step, and those are other sums.
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
    """The sum of one bucket over all workers; `names` are its parameters', in order.

    on_host: whether `allreduce` takes arrays of the host, not tensors of the device that the bucket is on;
    error feedback does.
    """

    names: Sequence[str]
    seat: Seat
    allreduce: Allreduce
    feedback: ErrorFeedback | None
    on_host: bool

    def run(self, bucket: Bucket, step: int) -> StepResult:
        """Put averages over workers in place of the bucket's gradients. Raises what the all-reduce does."""
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
