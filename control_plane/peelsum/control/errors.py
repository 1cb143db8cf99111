"""The errors of the control plane, split by whose fault they are. Every message is one line."""


class ControlError(Exception):
    """Base class of the control plane's errors."""


class DescriptionError(ControlError):
    """The job description is wrong. The message names file, field, value and remedy."""


class SwitchError(ControlError):
    """The switch cannot be reached, refused a request, or runs something else."""


class NotPrimaryError(SwitchError):
    """Another controller is the switch's primary."""


class RefusedError(SwitchError):
    """The switch refused an update."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        #: The switch's own words.
        self.reason = reason


class UnsupportedError(SwitchError):
    """The switch does not implement a request, e.g. BMv2 reading registers."""
