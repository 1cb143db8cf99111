"""Errors of a network that runs on this machine."""


class TopologyError(Exception):
    """The base of all errors of a network of processes."""


class ProcessError(TopologyError):
    """A process of the network did not start, did not answer, or ended with an error."""
