"""Constants of the clock that expires slots, for the specification, the controller and the P4 program.

A slot's stamp is a 32-bit count of ticks. It has expired if `now - limit - stamp` is not negative, as a
signed 32-bit number.
"""

from __future__ import annotations

#: A tick is a power of two of microseconds, so that v1model's clock need only be shifted.
TICK_SHIFT = 6
#: One tick, in microseconds.
TICK_US = 1 << TICK_SHIFT
#: Added to the clock, so that a register that was never written looks long expired.
EPOCH_TICKS = 1 << 30
#: The longest age limit. The controller uses it for slots that never expire.
NEVER_TICKS = 1 << 30
#: The age limit of a switch until the controller sets another: one second.
DEFAULT_AGE_TICKS = 1_000_000 // TICK_US
#: How far a freed slot's stamp lies behind the clock. It has expired under every limit.
FREED_TICKS = 1 << 30
