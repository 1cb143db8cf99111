"""Sums with loss: compressors, error feedback, and a strategy that chooses method and ratio on this network.

`CompressedSum(summation, TopK(0.01)).sum({"name": array})` returns the average of the values that all workers
sent. The `kind` of a `Compressor` tells how its payloads are summed: as words in a switch, through a shared
index, or by gathering them. `Flexible` is the strategy, after "Flexible Communication for Optimal Distributed
Learning over Unpredictable Networks" (arXiv 2312.02493). `lossy_reducer` makes the reducers that
`peelsum.torch` uses.
"""

from peelsum.compress.arguments import CompressConfigError, CompressError
from peelsum.compress.collectives import Collectives, SummationCollectives
from peelsum.compress.compressed_sum import CompressedSum
from peelsum.compress.compressor import Compressor, Kind, Payload, Scope, TensorState, registered
from peelsum.compress.costs import (
    AXES,
    CARRIERS,
    COLLECTIVES,
    DENSE,
    METHODS,
    Carrier,
    Crossover,
    LinkModel,
    Method,
    SwitchPath,
    Workload,
    carrier_of,
    cost,
    costs,
    crossovers,
)
from peelsum.compress.events import (
    DecidedStep,
    Event,
    ExplorationEnded,
    ExplorationStarted,
    GainChanged,
    LinkChanged,
    Measurement,
    MethodCandidate,
    MethodChosen,
    StepPlan,
    StepTraffic,
    StrategyStats,
    describe_event,
    draw,
)
from peelsum.compress.exchange import CompressedResult, CompressedTensor
from peelsum.compress.links import TimedExchange
from peelsum.compress.memory import ExactValues, Memory, Residual
from peelsum.compress.methods.gathered import (
    QSGD,
    Brain,
    EFSignSGD,
    Half,
    Int8Blocks,
    NaturalCompression,
    Single,
)
from peelsum.compress.methods.packed import Dense, PackedIntegers, PowerSGD, SignSGD, TernGrad
from peelsum.compress.reducers import lossy_reducer
from peelsum.compress.sparsifier import DGC, RandomK, Sparsifier, StarTopK, Threshold, TopK, VarTopK
from peelsum.compress.strategy import Decider, Flexible, candidate_loss, choose_candidate

__all__ = [
    "AXES",
    "CARRIERS",
    "COLLECTIVES",
    "DENSE",
    "DGC",
    "METHODS",
    "QSGD",
    "Brain",
    "Carrier",
    "Collectives",
    "CompressConfigError",
    "CompressError",
    "CompressedResult",
    "CompressedSum",
    "CompressedTensor",
    "Compressor",
    "Crossover",
    "DecidedStep",
    "Decider",
    "Dense",
    "EFSignSGD",
    "Event",
    "ExactValues",
    "ExplorationEnded",
    "ExplorationStarted",
    "Flexible",
    "GainChanged",
    "Half",
    "Int8Blocks",
    "Kind",
    "LinkChanged",
    "LinkModel",
    "Measurement",
    "Memory",
    "Method",
    "MethodCandidate",
    "MethodChosen",
    "NaturalCompression",
    "PackedIntegers",
    "Payload",
    "PowerSGD",
    "RandomK",
    "Residual",
    "Scope",
    "SignSGD",
    "Single",
    "Sparsifier",
    "StarTopK",
    "StepPlan",
    "StepTraffic",
    "StrategyStats",
    "SummationCollectives",
    "SwitchPath",
    "TensorState",
    "TernGrad",
    "Threshold",
    "TimedExchange",
    "TopK",
    "VarTopK",
    "Workload",
    "candidate_loss",
    "carrier_of",
    "choose_candidate",
    "cost",
    "costs",
    "crossovers",
    "describe_event",
    "draw",
    "lossy_reducer",
    "registered",
]
