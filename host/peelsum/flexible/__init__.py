"""Flexible communication: which collective and which ratio on this network, decided as the network changes.

The idea comes from "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks"
(arXiv 2312.02493). The package computes and decides; it has no sockets, threads or clock.
"""

from peelsum.flexible.agreement import Measurement
from peelsum.flexible.collectives import COLLECTIVES, LinkModel, SwitchPath
from peelsum.flexible.events import (
    DecidedStep,
    Event,
    ExplorationEnded,
    ExplorationStarted,
    LinkChanged,
    MethodChosen,
    Next,
    Traffic,
    draw,
    told,
)
from peelsum.flexible.front import Candidate, chosen, loss
from peelsum.flexible.methods import (
    AXES,
    CARRIERS,
    DENSE,
    METHODS,
    Carrier,
    Crossover,
    Method,
    Step,
    carrier_of,
    cost,
    costs,
    crossovers,
)
from peelsum.flexible.probing import Timed
from peelsum.flexible.settings import Flexible
from peelsum.flexible.strategy import Decider

__all__ = [
    "AXES",
    "CARRIERS",
    "COLLECTIVES",
    "DENSE",
    "METHODS",
    "Candidate",
    "Carrier",
    "Crossover",
    "DecidedStep",
    "Decider",
    "Event",
    "ExplorationEnded",
    "ExplorationStarted",
    "Flexible",
    "LinkChanged",
    "LinkModel",
    "Measurement",
    "Method",
    "MethodChosen",
    "Next",
    "Step",
    "SwitchPath",
    "Timed",
    "Traffic",
    "carrier_of",
    "chosen",
    "cost",
    "costs",
    "crossovers",
    "draw",
    "loss",
    "told",
]
