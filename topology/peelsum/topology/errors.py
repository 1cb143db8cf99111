"""Errors of a network that this machine plays."""


class TopologyError(Exception):
    """Base of everything that can go wrong with a network of processes."""


class ProcessError(TopologyError):
    """A process of the network did not start, did not answer, or ended with a complaint."""
