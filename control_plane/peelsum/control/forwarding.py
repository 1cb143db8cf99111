"""Where a switch forwards other traffic than jobs'. It outlives jobs, with which it has nothing to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from finsy.p4entity import P4MulticastGroupEntry, P4TableEntry

from peelsum.control.description import SwitchSection
from peelsum.control.entries import FLOOD_GROUP, bridge_entries, flood_entry, route_entries
from peelsum.control.session import Session


def forward_others(session: Session, switch: SwitchSection) -> None:
    """Replace the switch's bridge and its routes, each if the section has one."""
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
    """Give a table these rows and no others; those that stay are there all the time."""
    present = {_key(session, entry): entry for entry in session.entries(table)}
    keys = [_key(session, entry) for entry in wanted]
    stale = [entry for key, entry in present.items() if key not in keys]
    for entry in stale:
        entry.action = None
    session.write([-entry for entry in stale])
    session.write([~entry if key in present else +entry for key, entry in zip(keys, wanted, strict=True)])


def _key(session: Session, entry: P4TableEntry) -> str:
    """The same for the same match, also of a route to everywhere, which is no match."""
    return str(entry.encode(session.loaded()).table_entry.match)
