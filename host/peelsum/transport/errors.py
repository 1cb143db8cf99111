"""Errors of the transport, split by whose fault they are."""


class TransportError(Exception):
    """Base of the transport's errors. Messages name field, value and remedy in one line."""


class TransportConfigError(TransportError, ValueError):
    """The caller passed a value out of range or made a call out of order."""


class SwitchUnreachableError(TransportError):
    """The switch does not answer at its address, or the socket to it failed."""


class StalledError(TransportError):
    """The job made no progress; the message names the job, its oldest chunk and the missing workers."""
