"""Errors of a network that runs on this machine."""


class TopologyError(Exception):
    """A network that cannot be described, started or found. A process that fails raises ProcessError."""
