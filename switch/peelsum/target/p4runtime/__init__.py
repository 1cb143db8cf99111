"""A P4Runtime server for the embedded target: what a controller talks to."""

from peelsum.target.p4runtime.server import RunningServer, serve

__all__ = ["RunningServer", "serve"]
