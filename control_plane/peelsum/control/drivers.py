"""Differences between kinds of switches, and the kind of a session's switch."""

from __future__ import annotations

from typing import Protocol

from peelsum.control.plan import SwitchPlan
from peelsum.control.sections import TofinoSection
from peelsum.control.session import Session
from peelsum.control.tofino import ARCHITECTURES, Tofino
from peelsum.control.v1model import V1Model


class Driver(Protocol):
    """One switch, with the methods in which its kind differs."""

    def check(self, plan: SwitchPlan) -> None:
        """Raise DescriptionError for a plan beyond this kind of switch. Changes nothing."""

    def bring_up(self, described: TofinoSection | None, section: str) -> None:
        """Bring the described ports up. Raises ControlError; `section` is the description's table."""

    def set_limits(self, age_limit_ms: float | None, queue_depth: int | None) -> None:
        """Change limits; None keeps one.

        age_limit_ms: milliseconds, 0 to infinity; queue_depth: packets. Raises ControlError.
        """

    def free_slots(self, plan: SwitchPlan) -> None:
        """Free the slots that the job's earlier generations hold. Raises SwitchError."""

    def slots_in_use(self) -> dict[int, int] | None:
        """Return how many slots each job holds; None if the switch does not let registers be read."""


def driver_of(session: Session) -> Driver:
    """Return the driver of a session's switch, by the architecture of its pipeline."""
    if session.loaded().p4info.pkg_info.arch in ARCHITECTURES:
        return Tofino(session)
    return V1Model(session)


def free_slots(session: Session, plan: SwitchPlan) -> None:
    """Free the slots that a job's earlier generations hold. Raises SwitchError."""
    driver_of(session).free_slots(plan)
