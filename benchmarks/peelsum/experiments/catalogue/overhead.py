"""The cost of a strategy in addition to the compressor that it chooses.

Two ranks over gloo sum four buckets by turns with a fixed compressor and with a strategy that chooses it, so
that other work on the machine hits both alike. Figures are of rank 0, medians over rounds.
"""

from __future__ import annotations

from typing import Any

from peelsum.experiments import Column, Experiment, Size


def measure(seed: int, elements: int, rounds: int, steps: int) -> Any:
    """Sum the same buckets by turns with both."""
    from peelsum.bench.methods.overhead import overhead_rows

    return overhead_rows(elements, rounds, steps)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "by": Column("`compressor` or `strategy`"),
        "cpu_ms": Column("milliseconds of processor time of a step, of all threads"),
        "wall_ms": Column("milliseconds from first to last sum of a step"),
        "more_cpu_ms": Column("processor time beyond the compressor's in the same round: quartiles"),
    },
    keys=("by",),
    sizes={
        "quick": Size([{"elements": (1 << 14,), "rounds": (3,), "steps": (2,)}], 1),
        "usual": Size([{"elements": (1 << 14, 1 << 20), "rounds": (60,), "steps": (5,)}], 1),
    },
    needs=("torch",),
)
