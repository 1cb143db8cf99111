"""Errors of the embedded target."""


class TargetError(Exception):
    """Base of everything the embedded target raises."""
