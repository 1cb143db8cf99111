"""Tools to measure the codec: supports, one worker's timed rounds, peeling in rounds, and LHC's layout.

Only benchmarks and their tests import this package.
"""

from peelsum.bench.codec.device import Device, NotEnoughMemoryError, require_memory
from peelsum.bench.codec.lhc import LARGEST_FAN_IN, LHC_LANES, LhcLayout, smallest_lhc
from peelsum.bench.codec.peeling import Peeled, peel, peel_sketch
from peelsum.bench.codec.supports import SUPPORTS, Support, seen, tensor
from peelsum.bench.codec.timing import Measured, NotExactError, fastest, lhc_step, one_step, taught
from peelsum.bench.devices import NoDeviceError

__all__ = [
    "LARGEST_FAN_IN",
    "LHC_LANES",
    "SUPPORTS",
    "Device",
    "LhcLayout",
    "Measured",
    "NoDeviceError",
    "NotEnoughMemoryError",
    "NotExactError",
    "Peeled",
    "Support",
    "fastest",
    "lhc_step",
    "one_step",
    "peel",
    "peel_sketch",
    "require_memory",
    "seen",
    "smallest_lhc",
    "taught",
    "tensor",
]
