"""Errors of the allreduce, split by whose fault they are."""


class AllreduceError(Exception):
    """Base of the allreduce's errors. Messages name field, value and remedy in one line."""


class PlanMismatchError(AllreduceError):
    """The workers' tensors or settings differ. Every worker raises this in the same step."""


class InvalidRequestError(AllreduceError, ValueError):
    """The caller asked for something unsupported, e.g. an unknown form or dtype."""


class SummationStalledError(AllreduceError, TimeoutError):
    """Some workers did not contribute in time; the message names the oldest chunk and the workers."""
