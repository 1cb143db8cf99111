"""Networks of switches, a controller, a server and workers, run as processes on this machine."""

from peelsum.topology.errors import TopologyError
from peelsum.topology.star import Seat, Star, StarReport

__all__ = [
    "Seat",
    "Star",
    "StarReport",
    "TopologyError",
]
