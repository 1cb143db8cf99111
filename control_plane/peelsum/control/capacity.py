"""The capacity of the running pipeline, from its P4Info."""

from __future__ import annotations

from peelsum.control.errors import SwitchError
from peelsum.control.session import Session
from peelsum.wire import lanes_in


def peelsum_lanes(session: Session) -> int:
    """Return the pipeline's 32-bit values per packet; 0 if the pipeline is not peelsum's.

    Raises SwitchError if the switch has no pipeline.
    """
    # On a Tofino, a lane's register stands in a control of its own.
    return lanes_in(register.name.removesuffix(".sums") for register in session.loaded().registers)


def lanes(session: Session) -> int:
    """Return the pipeline's 32-bit values per packet. Raises SwitchError if it is not peelsum's."""
    found = peelsum_lanes(session)
    if not found:
        raise SwitchError(f"switch: the pipeline of {session.address} is not peelsum's; load that first")
    return found


def slots(session: Session) -> int:
    """Return how many chunks the pipeline sums at once. Raises SwitchError if it is not peelsum's."""
    lanes(session)
    return min(register.size for register in session.loaded().registers)
