"""Errors of the all-reduce, split by whose fault they are."""


class AllreduceError(Exception):
    """Base of every error raised here. Says field, value and remedy in one line."""


class PlanMismatchError(AllreduceError):
    """The workers do not sum the same tensors in the same way. Every worker raises it, in the same step."""


class InvalidRequestError(AllreduceError, ValueError):
    """The caller asked for what cannot be done: a form or type of tensor that does not exist here."""


class SummationStalledError(AllreduceError, TimeoutError):
    """Some workers did not contribute in time; the message names the oldest chunk and the workers."""
