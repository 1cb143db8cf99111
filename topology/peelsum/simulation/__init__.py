"""Simulation of sums through switches, packet by packet in virtual time.

The worker's endpoint, the aggregation server and the switch are those that run on a network; links, queues,
losses and cross traffic are modelled.
"""

from peelsum.simulation.scenario import Job, NetworkSection, Scenario, TimersSection
from peelsum.simulation.simulation import Report, Simulation, simulate
from peelsum.simulation.trains import SimulationError, Train

__all__ = [
    "Job",
    "NetworkSection",
    "Report",
    "Scenario",
    "Simulation",
    "SimulationError",
    "TimersSection",
    "Train",
    "simulate",
]
