"""Which dense tensors go first in every round of a step, so that workers can join their exchanges.

A bundle sends the same words as single exchanges, in the same order, so that workers with and without bundles
can sum together. `host_bundle` and `device_bundle` run the exchanges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.plan import Choice, Plan, TensorPlan

#: Elements of the largest tensor in a group. Larger ones gain little: their time goes into their elements.
LARGEST = 2**13
#: Elements of the largest tensor in a bundle on a device: the density of larger ones is sampled.
LARGEST_DENSE = 2**15 - 1
#: Elements in a block of scales, of a dense tensor.
BLOCK = 32
_WITH_BLOCKS, _WITHOUT_BLOCKS = Choice("dense", scale_block=BLOCK), Choice("dense")


def bundled(plan: Plan) -> list[str]:
    """Return the names of the plan's tensors that go first in every round, on all workers.

    They are small and dense, and sent after the agreement.
    """
    return [tensor.name for tensor in plan.tensors if _is_small_and_dense(tensor)]


def ordered(plan: Plan) -> list[TensorPlan]:
    """Return the plan's tensors in the order of their words, on all workers; those in a group are before."""
    first = dict.fromkeys(bundled(plan))
    return sorted(plan.tensors, key=lambda tensor: tensor.name not in first)


def _is_small_and_dense(tensor: TensorPlan) -> bool:
    choice = _WITH_BLOCKS if tensor.elements > BLOCK else _WITHOUT_BLOCKS
    return 0 < tensor.elements <= LARGEST_DENSE and tensor.choice == choice


def ends(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each of several pieces begins that lie back to back, and where the last ends."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends
