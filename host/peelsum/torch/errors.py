"""Errors of the PyTorch side, split by whose fault they are. Errors of a sum are raised unchanged."""


class HookError(Exception):
    """The base of all errors of this package. The message names field, value and remedy in one line."""


class HookConfigError(HookError, ValueError):
    """An argument that cannot be used: a backend, a compressor or a checkpoint that does not fit."""


class HookFailedError(HookError):
    """An earlier sum failed on this worker, so the workers are out of step; see the exception's cause."""


class CallTimeoutError(HookError, RuntimeError):
    """A call of the process group did not complete within its timeout."""
