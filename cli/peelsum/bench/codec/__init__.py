"""`peelsum bench codec`, and its parts: tensors by support, timed steps, peeling in rounds."""

from peelsum.bench.codec.device import NotEnoughMemoryError, TimedDevice, require_memory
from peelsum.bench.codec.peeling import Peeled, peel, peel_sketch
from peelsum.bench.codec.supports import SUPPORTS, expected_statistics, tensor
from peelsum.bench.codec.timing import Measured, NotExactError, add_to_history, fastest, measure_step
from peelsum.bench.devices import NoDeviceError
from peelsum.bench.point import Support

__all__ = [
    "SUPPORTS",
    "Measured",
    "NoDeviceError",
    "NotEnoughMemoryError",
    "NotExactError",
    "Peeled",
    "Support",
    "TimedDevice",
    "add_to_history",
    "expected_statistics",
    "fastest",
    "measure_step",
    "peel",
    "peel_sketch",
    "require_memory",
    "tensor",
]
