"""Statistics of a hook's sums as plain values: bytes saved, and where the time goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from peelsum.allreduce.indexes import IndexForm
from peelsum.allreduce.plan import Form
from peelsum.allreduce.result import TensorTally
from peelsum.compress import CompressedTensor, Kind
from peelsum.flexible import Carrier, DecidedStep, Event, LinkModel, Next


@dataclass(frozen=True)
class TensorStats:
    """A parameter's gradient as it was last summed."""

    elements: int
    """Number of elements."""

    form: Form | Kind
    """How the values travelled: dense, compact or sketch; or as additive or gathered payloads."""

    index: IndexForm | None
    """How the index travelled; None for a form without an index."""

    density: float
    """Share of elements that were non-zero on some worker; NaN if the gradient was not finite."""

    density_worker: float
    """Share of elements that were non-zero on this worker; NaN if the gradient was not finite."""

    error_bound: float
    """How far an element of the result can be from the exact sum (or average) of the workers' floats."""

    scale_block: int | None
    """Elements in each block that had a scale of its own; None if all had the same, or none was needed."""


@dataclass(frozen=True)
class StrategyStats:
    """The decisions of a strategy, the same on all ranks, since the state was made or restored."""

    plan: Next | None
    """Method and ratio of the last step that began; None before the first."""

    links: Mapping[Carrier, LinkModel]
    """The estimated link of each carrier that has been measured."""

    history: tuple[DecidedStep, ...]
    """The last 10,000 steps; each is added when the next one begins."""

    events: tuple[Event, ...]
    """The last 1,000 events."""


@dataclass(frozen=True)
class HookStats:
    """Totals of this worker since the state was made or restored, summed over buckets."""

    steps: int = 0
    """Backward passes that were summed."""

    buckets: int = 0
    """Buckets that were summed."""

    elements: int = 0
    """Elements of their gradients."""

    non_finite: int = 0
    """Parameters' gradients that were not finite on some worker."""

    wire_bytes: int = 0
    """Payload bytes of this worker's packets."""

    dense_bytes: int = 0
    """Payload bytes that dense gradients would take."""

    encode_s: float = 0.0
    """Seconds that the summing threads spent on encoding."""

    network_s: float = 0.0
    """Seconds that the summing threads waited for the network."""

    decode_s: float = 0.0
    """Seconds that the summing threads spent on decoding."""

    wait_s: float = 0.0
    """Seconds that the training thread waited for sums at the ends of its backward passes."""

    tensors: dict[str, TensorStats] = field(default_factory=dict)
    """The last sum of each parameter, by name."""

    strategy: StrategyStats | None = None
    """The decisions of the strategy, if there is one."""

    @property
    def saving(self) -> float:
        """Bytes that dense gradients would take, over the bytes sent; 1 before the first sum."""
        return self.dense_bytes / self.wire_bytes if self.wire_bytes else 1.0

    def metrics(self, before: HookStats | None = None) -> dict[str, float]:
        """Return numbers for a trainer's log by name: averages of the steps since `before`, or of all.

        MB or ms a step, as the name says; `switch/saving` is a ratio, `switch/non_finite` a count.
        """
        before = before or HookStats()
        steps = max(self.steps - before.steps, 1)
        sent, dense = self.wire_bytes - before.wire_bytes, self.dense_bytes - before.dense_bytes
        return {
            "switch/mb": sent / steps / 1e6,
            "switch/saving": dense / max(sent, 1),
            "switch/encode_ms": 1e3 * (self.encode_s - before.encode_s) / steps,
            "switch/exchange_ms": 1e3 * (self.network_s - before.network_s) / steps,
            "switch/decode_ms": 1e3 * (self.decode_s - before.decode_s) / steps,
            "switch/wait_ms": 1e3 * (self.wait_s - before.wait_s) / steps,
            "switch/non_finite": float(self.non_finite - before.non_finite),
        }

    def since(self, before: HookStats) -> str:
        """Return one line about the steps since `before`."""
        sent, saving, encode, network, decode, wait, non_finite = self.metrics(before).values()
        return (
            f"step {self.steps}: {sent:.3f} MB a step, {saving:.1f} times less "
            f"than dense; ms a step: encode {encode:.1f}, exchange {network:.1f}, decode {decode:.1f}, "
            f"waited for {wait:.1f}; gradients that were not finite: {non_finite:.0f}"
        )


def tensors_of(told: Callable[[], Mapping[str, TensorTally]]) -> dict[str, TensorStats]:
    """Return the statistics of the parameters of a sum, by name."""
    return {name: TensorStats(**vars(one)) for name, one in told().items()}


def tensor_stats(tensor: CompressedTensor) -> TensorStats:
    """Return the statistics of a parameter's compressed sum."""
    return TensorStats(
        elements=tensor.elements,
        form=tensor.form,
        index=tensor.index,
        density=tensor.density,
        density_worker=tensor.density_worker,
        error_bound=tensor.error_bound,
        scale_block=None,
    )
