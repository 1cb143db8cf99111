"""Write the tables that outlive jobs: the switch's limits, and the bridge and routes of other traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from finsy.p4entity import P4MulticastGroupEntry, P4TableEntry

from peelsum.control.drivers import driver_of
from peelsum.control.entries import FLOOD_GROUP, bridge_entries, flood_entry, route_entries
from peelsum.control.errors import ControlError
from peelsum.control.sections import SwitchSection
from peelsum.control.session import Session


def set_limits(session: Session, age_limit_ms: float | None, queue_depth: int | None) -> None:
    """Change limits; None keeps one. Raises ControlError for a negative age limit."""
    if age_limit_ms is not None and not age_limit_ms >= 0:
        raise ControlError(f"age_limit_ms: {age_limit_ms}: must be 0 or more, or infinite")
    driver_of(session).set_limits(age_limit_ms, queue_depth)


def forward_others(session: Session, switch: SwitchSection) -> None:
    """Replace the switch's bridge and its routes, each if the description gives one."""
    if switch.bridge:
        _set_bridge(session, switch.bridge)
    if switch.routes:
        assert switch.address is not None  # the description's own check
        _replace(session, "routes", route_entries(switch.routes, switch.address.mac))


def _set_bridge(session: Session, bridge: Mapping[int, int]) -> None:
    group = flood_entry(bridge)
    known = list(session.read(P4MulticastGroupEntry(FLOOD_GROUP)))
    session.write([~group if known else +group])
    _replace(session, "bridge", bridge_entries(bridge))


def _replace(session: Session, table: str, wanted: Sequence[P4TableEntry]) -> None:
    """Make `wanted` a table's rows. A row that stays is modified, and never missing in between."""
    present = {_key(session, entry): entry for entry in session.entries(table)}
    keys = [_key(session, entry) for entry in wanted]
    stale = [entry for key, entry in present.items() if key not in keys]
    for entry in stale:
        entry.action = None
    session.write([-entry for entry in stale])
    session.write([~entry if key in present else +entry for key, entry in zip(keys, wanted, strict=True)])


def _key(session: Session, entry: P4TableEntry) -> str:
    """Return a text that is equal for equal matches. The default route's match is empty in P4Runtime."""
    return str(entry.encode(session.loaded()).table_entry.match)
