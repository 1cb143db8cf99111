"""The settings of the strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peelsum.flexible.collectives import FlexibleConfigError, within
from peelsum.flexible.front import Preference
from peelsum.flexible.methods import DENSE, METHODS, Carrier, Method, carrier_of


@dataclass(frozen=True)
class Flexible:
    """Settings of the strategy, the same on all workers. Raises FlexibleConfigError for a bad value."""

    ratios: tuple[float, ...] = (0.1, 0.03, 0.01, 0.003, 0.001)
    """Ratios to choose from."""
    methods: tuple[Method, ...] | None = None
    """Methods to choose from; None takes all for which there is a carrier."""
    prefer: Preference = "knee"
    """How to choose between time and gain: "knee", or the exponent w of the least time / gain**w."""
    explore_steps: int = 3
    """Steps for which each ratio is explored."""
    explore_after: int = 200
    """Steps after which gains are old: they are explored again when the gain or a link moves."""
    tolerance: float = 0.3
    """Relative change of rate, latency or gain that counts as one."""
    margin: float = 0.1
    """By how much another candidate must be better to be used."""

    def __post_init__(self) -> None:
        if not self.ratios or self.methods == ():
            raise FlexibleConfigError("ratios, methods: are empty; give at least one of each")
        for ratio in self.ratios:
            within("ratios", ratio, 1e-9, 1)
        if self.methods is not None:
            self._check_methods(self.methods)
        if self.prefer != "knee":
            if not isinstance(self.prefer, int | float):
                raise FlexibleConfigError(f"prefer: {self.prefer!r} is unknown; use 'knee' or a number")
            within("prefer", self.prefer, 0, 100)
        within("explore_steps", self.explore_steps, 1, 1000)
        within("explore_after", self.explore_after, 1, 10**9)
        within("tolerance", self.tolerance, 0.01, 100)
        within("margin", self.margin, 0, 0.9)

    def _check_methods(self, methods: Sequence[Method]) -> None:
        unknown = set(methods) - set(METHODS)
        if unknown:
            raise FlexibleConfigError(f"methods: {min(unknown)!r} is unknown; use {', '.join(METHODS)}")
        if set(methods) <= set(DENSE):
            raise FlexibleConfigError("methods: has none that selects; give one, e.g. 'ar_top_k_ring'")

    def over(self, carriers: Sequence[Carrier]) -> tuple[Method, ...]:
        """Return the methods to choose from over `carriers`, in the order of METHODS."""
        wanted = self.methods or METHODS
        return tuple(one for one in METHODS if one in wanted and carrier_of(one) in carriers)
