"""Gradient compression: compressors, error-feedback memory, and sums of compressed tensors over workers.

`CompressedSum(summation, TopK(0.01)).sum({"name": array})` returns the average of what all workers sent. A
`Compressor` says how its payloads add up: in a switch as they are, through a shared index, or not at all.
"""

from peelsum.compress.collectives import Collectives, SummationCollectives
from peelsum.compress.combined import Combined
from peelsum.compress.compressed_sum import CompressedSum
from peelsum.compress.compressor import Compressor, Kind, Payload, Scope, SharedIndex, TensorState
from peelsum.compress.dense import Dense
from peelsum.compress.elected import StarTopK, VarTopK
from peelsum.compress.errors import CompressConfigError, CompressError
from peelsum.compress.lanes import PackedIntegers, SignSGD, TernGrad
from peelsum.compress.low_rank import PowerSGD
from peelsum.compress.memory import Exact, Memory, Residual
from peelsum.compress.quantizers import (
    QSGD,
    Brain,
    EFSignSGD,
    Half,
    Int8Blocks,
    NaturalCompression,
    Single,
)
from peelsum.compress.result import CompressedResult, CompressedTensor
from peelsum.compress.sparsifiers import DGC, Chooser, Indexed, RandomK, Sparsifier, Threshold, TopK

__all__ = [
    "DGC",
    "QSGD",
    "Brain",
    "Chooser",
    "Collectives",
    "Combined",
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
    "Indexed",
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
    "SharedIndex",
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
]
