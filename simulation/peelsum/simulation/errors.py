"""The errors of simulations."""

from __future__ import annotations


class SimulationError(Exception):
    """A scenario that cannot be simulated, or one that does not end. One line names field and remedy."""
