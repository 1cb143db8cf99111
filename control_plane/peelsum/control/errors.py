"""What can go wrong in the control plane, split by whose fault it is. Every message is one line."""


class ControlError(Exception):
    """Base of everything the control plane raises on purpose."""


class DescriptionError(ControlError):
    """The job description is wrong: names file, field, value and what would be right."""


class SwitchError(ControlError):
    """The switch cannot be reached, refused a request, or runs something else."""


class NotPrimaryError(SwitchError):
    """Another controller is in charge of the switch."""


class RefusedError(SwitchError):
    """The switch refused to change a part of its state. `reason` is in the switch's own words."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnsupportedError(SwitchError):
    """The switch does not implement what it was asked for, as BMv2 does not let registers be read."""
