"""Errors of child processes."""


class ProcessError(Exception):
    """A process did not start, did not answer, or ended with an error."""
