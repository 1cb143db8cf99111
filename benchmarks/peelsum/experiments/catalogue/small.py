"""A hundred small tensors of a step, beside the same elements as one.

A hundred tensors of 64 to 3,072 elements are summed apart, and as one, by one worker without a network.
`network` is the network model by which choices are made: "words" counts words only.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.codec.sequences import NETWORKS
from peelsum.experiments import Column, Experiment, Size


def measure(seed: int, density: float, network: str, way: str) -> dict[str, Any]:
    """Sum the tensors of one worker, without a network."""
    from peelsum.bench.codec.small import small_row

    return small_row(density, network, way, seed)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "tensors": Column("tensors of the step"),
        "elements": Column("elements of all tensors"),
        "lower_bound": Column("words that encode the non-zeros' values and positions"),
        "words": Column("words that a worker sends in a step"),
        "cpu_ms": Column("processor time of a step, in milliseconds: the median"),
    },
    sizes={
        "usual": Size(
            [{"density": (1.0, 0.01, 0.001), "network": tuple(NETWORKS), "way": ("apart", "as one")}], 1
        )
    },
)
