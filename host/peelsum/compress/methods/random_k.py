"""Elements at random."""

from __future__ import annotations

from typing import Literal

from peelsum.compress.arguments import Seed
from peelsum.compress.compressor import Floats, Positions, TensorState
from peelsum.compress.sparsifier import Choice, Ratio


class RandomK(Ratio):
    """Elements at random, by `seed`: rand_k(x) of Stich et al. (NeurIPS'18, section 2).

    With `seeds="shared"` all workers choose the same elements, so that their values add up without an index.
    With "own" every worker chooses for itself, and n/k as many elements are non-zero in the sum. Contraction,
    in the mean: E |x - rand_k(x)|^2 = (1 - k/n) |x|^2.
    """

    name = "random-k"
    seeds: Literal["shared", "own"] = "shared"
    seed: Seed = 0

    @property
    def choice(self) -> Choice:
        """Whether the choice is the same on all workers."""
        return self.seeds

    def choose(self, tensor: Floats, state: TensorState) -> Positions:
        generator = state.generator(self.seed, own=self.seeds == "own")
        count = self.count(tensor.size, state.step)
        return generator.choice(tensor.size, count, replace=False, shuffle=False)
