"""Gradient compression: compressors, error-feedback memory, and sums of compressed tensors over workers.

`CompressedSum(summation, TopK(0.01)).sum({"name": array})` returns the average of what all workers sent. A
`Compressor` says how its payloads add up: in a switch as they are, through a shared index, or not at all.
"""

from peelsum.compress.arguments import CompressConfigError, CompressError
from peelsum.compress.collectives import Collectives, SummationCollectives
from peelsum.compress.compressed_sum import CompressedSum
from peelsum.compress.compressor import Compressor, Kind, Payload, Scope, TensorState, registered
from peelsum.compress.memory import Exact, Memory, Residual
from peelsum.compress.methods.ar_top_k import StarTopK, VarTopK
from peelsum.compress.methods.gathered import (
    QSGD,
    Brain,
    EFSignSGD,
    Half,
    Int8Blocks,
    NaturalCompression,
    Single,
)
from peelsum.compress.methods.packed import Dense, PackedIntegers, SignSGD, TernGrad
from peelsum.compress.methods.power_sgd import PowerSGD
from peelsum.compress.methods.top_k import DGC, RandomK, Threshold, TopK
from peelsum.compress.result import CompressedResult, CompressedTensor
from peelsum.compress.sparsifier import Sparsifier

__all__ = [
    "DGC",
    "QSGD",
    "Brain",
    "Collectives",
    "CompressConfigError",
    "CompressError",
    "CompressedResult",
    "CompressedSum",
    "CompressedTensor",
    "Compressor",
    "Dense",
    "EFSignSGD",
    "Exact",
    "Half",
    "Int8Blocks",
    "Kind",
    "Memory",
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
    "SummationCollectives",
    "TensorState",
    "TernGrad",
    "Threshold",
    "TopK",
    "VarTopK",
    "registered",
]
