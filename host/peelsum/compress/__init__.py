"""Gradient compression: compressors, error-feedback memory, and sums of compressed tensors over workers.

`CompressedSum(summation, TopK(0.01)).sum({"name": array})` returns the average of what all workers sent. A
`Compressor` says how its payloads add up: in a switch as they are, through a shared index, or not at all.
"""

from importlib import import_module
from pkgutil import iter_modules

from peelsum.compress import methods
from peelsum.compress.collectives import Collectives, SummationCollectives
from peelsum.compress.compressed_sum import CompressedSum
from peelsum.compress.compressor import Compressor, Kind, Payload, Scope, TensorState, registered
from peelsum.compress.errors import CompressConfigError, CompressError
from peelsum.compress.memory import Exact, Memory, Residual
from peelsum.compress.methods.ar_top_k import StarTopK, VarTopK
from peelsum.compress.methods.dense import Dense
from peelsum.compress.methods.ef_sign import EFSignSGD
from peelsum.compress.methods.floats import Brain, Half, Single
from peelsum.compress.methods.int8_blocks import Int8Blocks
from peelsum.compress.methods.natural import NaturalCompression
from peelsum.compress.methods.packed import PackedIntegers, SignSGD, TernGrad
from peelsum.compress.methods.power_sgd import PowerSGD
from peelsum.compress.methods.qsgd import QSGD
from peelsum.compress.methods.random_k import RandomK
from peelsum.compress.methods.threshold import Threshold
from peelsum.compress.methods.top_k import DGC, TopK
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

for _module in iter_modules(methods.__path__):
    import_module(f"{methods.__name__}.{_module.name}")
for _one in registered().values():
    if _one.__name__ not in __all__:
        raise ImportError(f"{_one.__module__}: {_one.__name__} is not exported; list it in {__file__}")
