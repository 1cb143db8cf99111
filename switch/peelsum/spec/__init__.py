"""The executable specification of the switch."""

from peelsum.spec.switch import SpecSwitch

__all__ = ["SpecSwitch"]
