"""The switch's executable specification."""

from peelsum.spec.packet import Packet
from peelsum.spec.switch import EPOCH_TICKS, NEVER, TICK_US, Level, SpecSwitch

__all__ = ["EPOCH_TICKS", "NEVER", "TICK_US", "Level", "Packet", "SpecSwitch"]
