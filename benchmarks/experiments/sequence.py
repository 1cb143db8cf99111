"""Words over the lower bound where the density of a tensor changes from step to step.

Only words are counted. `network` is the network model by which choices are made: "words" counts words only.
Ways: `auto`, and `sketch` (every step a sketch).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import Experiment, Size
from peelsum.allreduce import Allreduce, NetworkModel, RequestedValues
from peelsum.allreduce.costs import lower_bound_bits
from peelsum.bench.codec.timing import NotExactError
from peelsum.bench.which_form import LoopbackSummation

STEPS = 30
#: The network models, and the ways to send: `values` of the allreduce.
NETWORKS = {"words": NetworkModel(gbps=1e-6, round_trip_s=0.0), "default": NetworkModel()}
WAYS: tuple[RequestedValues, ...] = ("auto", "sketch")
_BURST, _BURST_DENSITY = 1024, 0.003
_MOST_DENSE = 0.2


_THIRD = STEPS // 3
#: Sequences of densities, in which every element is non-zero with the same probability.
_UNIFORM: dict[str, list[float]] = {
    "steady": [0.001] * STEPS,
    **{
        f"x{factor}": [0.001] * _THIRD + [0.001 * factor] * _THIRD + [0.001] * _THIRD
        for factor in (2, 3, 5, 10)
    },
    "alternating": [0.002, 0.01] * (STEPS // 2),
    "log_uniform": np.exp(np.random.default_rng(0).uniform(np.log(0.001), np.log(0.05), STEPS)).tolist(),
    "empty": [0.01] * _THIRD + [0.0] * _THIRD + [0.01] * _THIRD,
    "dense": [0.01] * _THIRD + [1.0] * _THIRD + [0.01] * _THIRD,
}
#: In "bursts", whole rows of _BURST elements are non-zero: three in a thousand on average, at least one.
SEQUENCES = (*_UNIFORM, "bursts")


def supports(sequence: str, elements: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the ascending positions of the non-zeros, for every step of a sequence."""
    rng = np.random.default_rng([seed, elements])
    if sequence != "bursts":
        for density in _UNIFORM[sequence]:
            yield np.flatnonzero(rng.random(elements, np.float32) < density)
        return
    for _ in range(STEPS):
        rows = np.flatnonzero(rng.random(-(-elements // _BURST)) < _BURST_DENSITY)
        rows = rows if rows.size else rng.integers(0, max(elements // _BURST, 1), 1)
        inside = (rows[:, np.newaxis] * _BURST + np.arange(_BURST)).reshape(-1)
        yield inside[: np.searchsorted(inside, elements)]


def measure(seed: int, elements: int, sequence: str, network: str, way: RequestedValues) -> dict[str, Any]:
    """Return the figures of one sequence. Raises NotExactError if a sum differs from the tensor."""
    backend = LoopbackSummation()
    reduce = Allreduce(backend, values=way, network=NETWORKS[network])
    words, bounds, count, worst, dense, exchanges = 0, 0.0, 0, 0.0, 0, 0
    for where in supports(sequence, elements, seed):
        backend.exchanges.clear()
        values = np.zeros(elements, np.float32)
        values[where] = 1 + (where % 7).astype(np.float32)
        tensor = reduce.sum({"g": values})["g"]
        if not np.array_equal(tensor.values, values):
            raise NotExactError("g: one worker's sum is not its tensor; this is a bug in the codec")
        exchanges += len(backend.exchanges)
        bound = lower_bound_bits(elements, where.size) / 32
        words, bounds, count = words + tensor.words_sent, bounds + bound, count + where.size
        if where.size:
            sent = (part for parts in backend.exchanges for part in parts)
            indexes = (part.words for part in sent if part.op == "or" and part.words and not part.checked)
            worst = max(worst, (tensor.words_sent - next(indexes, 0)) / bound)
        dense += tensor.form == "dense" and where.size < _MOST_DENSE * elements
    return {
        "density": round(count / elements / STEPS, 6),
        "over_lower_bound": round(words / bounds, 3),
        "worst_step": round(worst, 3),
        "exchanges": round(exchanges / STEPS, 2),
        "wrongly_dense": dense,
    }


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "density": "mean share of elements that are not zero",
        "over_lower_bound": "words of all steps over the lower bounds of all steps",
        "worst_step": "largest ratio of a step's words, without the first index, to its lower bound",
        "exchanges": "mean exchanges of a step",
        "wrongly_dense": "steps sent dense although less than 20 % of the elements were not zero",
    },
    defaults={"sequence": SEQUENCES, "network": tuple(NETWORKS), "way": WAYS},
    sizes={"quick": Size([{"elements": 2**16}], 1), "usual": Size([{"elements": (2**16, 2**20, 2**22)}], 1)},
    choices={"sequence": SEQUENCES, "network": tuple(NETWORKS), "way": WAYS},
    timed=False,
)
