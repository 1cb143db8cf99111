"""The transport's errors, split by whose fault they are."""


class TransportError(Exception):
    """Anything that keeps tensors from being summed. One line: field, value, remedy."""


class TransportConfigError(TransportError, ValueError):
    """The caller asked for something that cannot be: a value out of range, a call out of order."""


class SwitchUnreachableError(TransportError):
    """Nothing answers at the switch's address, or the socket to it failed."""


class StalledError(TransportError):
    """Other participants are missing: names the job, the oldest chunk and the workers waited for."""
