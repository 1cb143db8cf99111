"""The host as a device that computes in NumPy, slowly."""

from __future__ import annotations

from peelsum.codec.cpu.memory import HostMemory
from peelsum.codec.reference.index import ReferenceIndex
from peelsum.codec.reference.segments import ReferenceSegments
from peelsum.codec.reference.sketch import ReferenceSketch


class ReferenceDevice(ReferenceIndex, ReferenceSketch, HostMemory):
    """The codec in NumPy: what every other device does, bit for bit."""

    segments = ReferenceSegments
