"""What a hook's sums came to and cost, as plain values: whether it helps, and where the time goes."""

from __future__ import annotations

from dataclasses import dataclass, field

from peelsum.allreduce import StepResult, TensorResult
from peelsum.allreduce.indexes import IndexForm
from peelsum.allreduce.plan import Form


@dataclass(frozen=True)
class TensorStats:
    """A parameter's gradient as it was last summed.

    density: share of elements that were non-zero on some worker; NaN if the gradient was not finite.
    density_worker: the same for this worker alone. error_bound: how far an element of the sum can be from
    that of the workers' floats.
    """

    elements: int
    form: Form
    index: IndexForm | None
    density: float
    density_worker: float
    error_bound: float


@dataclass(frozen=True)
class HookStats:
    """Since the state was made or restored, on this worker. Seconds and bytes are sums over buckets.

    steps: backward passes that were summed. non_finite: gradients of parameters that were not finite on some
    worker. wire_bytes: payload of this worker's packets; dense_bytes: what it would be, sent dense.
    encode_s, network_s, decode_s: of the threads that sum. wait_s: what the training thread waited for them
    at the ends of its backward passes. tensors: by the parameters' names.
    """

    steps: int = 0
    buckets: int = 0
    elements: int = 0
    non_finite: int = 0
    wire_bytes: int = 0
    dense_bytes: int = 0
    encode_s: float = 0.0
    network_s: float = 0.0
    decode_s: float = 0.0
    wait_s: float = 0.0
    tensors: dict[str, TensorStats] = field(default_factory=dict)

    @property
    def saving(self) -> float:
        """How many times more bytes dense gradients would be: above 1, it helps. 1 before the first sum."""
        return self.dense_bytes / self.wire_bytes if self.wire_bytes else 1.0

    def since(self, before: HookStats) -> str:
        """One line about the steps after those of `before`."""
        steps = max(self.steps - before.steps, 1)
        sent, dense = self.wire_bytes - before.wire_bytes, self.dense_bytes - before.dense_bytes
        encode, network, decode, wait = (
            1e3 * (getattr(self, name) - getattr(before, name)) / steps
            for name in ("encode_s", "network_s", "decode_s", "wait_s")
        )
        return (
            f"step {self.steps}: {sent / steps / 1e6:.3f} MB a step, {dense / max(sent, 1):.1f} times less "
            f"than dense; ms a step: encode {encode:.1f}, exchange {network:.1f}, decode {decode:.1f}, "
            f"waited for {wait:.1f}; gradients that were not finite: {self.non_finite - before.non_finite}"
        )

    def plus(self, result: StepResult) -> HookStats:
        """With one more bucket."""
        return HookStats(
            steps=self.steps,
            buckets=self.buckets + 1,
            elements=self.elements + sum(tensor.elements for tensor in result.tensors),
            non_finite=self.non_finite + sum(not tensor.finite for tensor in result.tensors),
            wire_bytes=self.wire_bytes + result.wire_bytes,
            dense_bytes=self.dense_bytes + result.dense_bytes,
            encode_s=self.encode_s + result.encode_s,
            network_s=self.network_s + result.network_s,
            decode_s=self.decode_s + result.decode_s,
            wait_s=self.wait_s,
            tensors=self.tensors | {tensor.name: _tensor_stats(tensor) for tensor in result.tensors},
        )


def _tensor_stats(tensor: TensorResult) -> TensorStats:
    return TensorStats(
        tensor.elements,
        tensor.form,
        tensor.index,
        tensor.density,
        int(tensor.quantized_at.any(axis=0).sum()) / max(tensor.elements, 1)
        if tensor.finite
        else float("nan"),
        tensor.error_bound,
    )
