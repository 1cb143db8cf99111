"""Errors of the PyTorch side, split by whose fault they are. What summing raises passes through unchanged."""


class HookError(Exception):
    """Base of every error raised here. Says field, value and remedy in one line."""


class HookConfigError(HookError, ValueError):
    """The caller asked for what cannot be: a way to sum, a sparsifier or a checkpoint that does not fit."""


class HookFailedError(HookError):
    """An earlier sum failed on this worker, so that the workers are out of step; the cause says why."""


class CallTimeoutError(HookError, RuntimeError):
    """A call of the process group was not done in the time given for it, of whichever rank the fault is."""
