"""The switch's executable specification."""

from peelsum.spec.packet import Packet
from peelsum.spec.switch import SpecSwitch

__all__ = ["Packet", "SpecSwitch"]
