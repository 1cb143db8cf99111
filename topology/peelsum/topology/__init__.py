"""Networks of switch, controller, server and workers, played by processes on this machine."""

from peelsum.topology.errors import ProcessError, TopologyError
from peelsum.topology.processes import Child, end_with_parent, hear, say, told_to_end
from peelsum.topology.star import Seat, Star, StarReport

__all__ = [
    "Child",
    "ProcessError",
    "Seat",
    "Star",
    "StarReport",
    "TopologyError",
    "end_with_parent",
    "hear",
    "say",
    "told_to_end",
]
