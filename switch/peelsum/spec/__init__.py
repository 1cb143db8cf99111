"""The executable specification of the switch."""

from peelsum.spec.packet import Packet
from peelsum.spec.switch import SpecSwitch

__all__ = ["Packet", "SpecSwitch"]
