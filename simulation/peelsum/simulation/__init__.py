"""Simulation of sums through switches, packet by packet in virtual time.

The worker's endpoint, the aggregation server and the switch are those that run on a network; links, queues,
losses and cross traffic are modelled.
"""

from peelsum.simulation.engine import Engine, Node
from peelsum.simulation.errors import SimulationError
from peelsum.simulation.links import LinkCounts, LinkSpec, SimulatedLink
from peelsum.simulation.scenario import (
    Job,
    NetworkSection,
    RateChange,
    Scenario,
    Straggler,
    TimersSection,
    parse_scenario,
    read_scenario,
)
from peelsum.simulation.simulation import JobRow, Report, Simulation, rows, simulate
from peelsum.simulation.trains import Arrivals, Train

__all__ = [
    "Arrivals",
    "Engine",
    "Job",
    "JobRow",
    "LinkCounts",
    "LinkSpec",
    "NetworkSection",
    "Node",
    "RateChange",
    "Report",
    "Scenario",
    "SimulatedLink",
    "Simulation",
    "SimulationError",
    "Straggler",
    "TimersSection",
    "Train",
    "parse_scenario",
    "read_scenario",
    "rows",
    "simulate",
]
