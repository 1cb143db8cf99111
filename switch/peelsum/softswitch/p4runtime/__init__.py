"""A P4Runtime server for the softswitch."""

from peelsum.softswitch.p4runtime.service import THREAD_PREFIX, serve

__all__ = ["THREAD_PREFIX", "serve"]
