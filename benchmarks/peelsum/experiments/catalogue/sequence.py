"""Words over the lower bound where the density of a tensor changes from step to step.

Only words are counted. `network` is the network model by which choices are made: "words" counts words only.
Ways: `auto`, and `sketch` (every step a sketch).
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.codec.sequences import (
    DEFAULT_ELEMENTS,
    NETWORKS,
    QUICK_ELEMENTS,
    SEQUENCES,
    WAYS,
    sequence_row,
)
from peelsum.experiments import Column, Experiment, Size


def measure(seed: int, elements: int, sequence: str, network: str, way: str) -> dict[str, Any]:
    """Send 30 steps."""
    return sequence_row(elements, sequence, network, way, seed)


def part(elements: tuple[int, ...]) -> dict[str, Any]:
    """Return one part of the grid."""
    return {"elements": elements, "sequence": SEQUENCES, "network": tuple(NETWORKS), "way": WAYS}


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "density": Column("mean share of elements that are not zero"),
        "over_lower_bound": Column("words of all steps over the lower bounds of all steps"),
        "worst_step": Column("largest ratio of a step's words, without the first index, to its lower bound"),
        "exchanges": Column("mean exchanges of a step"),
        "wrongly_dense": Column("steps sent dense although less than 20 % of the elements were not zero"),
    },
    sizes={"quick": Size([part(QUICK_ELEMENTS)], 1), "usual": Size([part(DEFAULT_ELEMENTS)], 1)},
    choices={"sequence": SEQUENCES, "network": tuple(NETWORKS), "way": WAYS},
    timed=False,
)
