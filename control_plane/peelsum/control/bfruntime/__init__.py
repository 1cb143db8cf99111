"""BF Runtime: the gRPC service of bf_switchd, for Tofino switches without a P4Runtime server."""

from peelsum.control.bfruntime.rows import row
from peelsum.control.bfruntime.session import BfRuntimeSession

__all__ = ["BfRuntimeSession", "row"]
