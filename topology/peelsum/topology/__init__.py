"""Networks of switches, a controller, a server and workers, run as processes on this machine."""

from peelsum.topology.errors import ProcessError, TopologyError
from peelsum.topology.processes import Child, Signalled, end_with_parent, hear, say
from peelsum.topology.star import Seat, Star, StarReport

__all__ = [
    "Child",
    "ProcessError",
    "Seat",
    "Signalled",
    "Star",
    "StarReport",
    "TopologyError",
    "end_with_parent",
    "hear",
    "say",
]
