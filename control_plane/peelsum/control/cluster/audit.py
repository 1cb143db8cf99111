"""Compare a switch's tables with the jobs that it should have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from finsy.p4entity import P4MulticastGroupEntry, P4TableAction, P4TableEntry

from peelsum.control.entries import FLOOD_GROUP, group_entry, host_entry, job_entry, participant_entries
from peelsum.control.plan import SwitchPlan
from peelsum.control.session import Session

#: A row or a group in a form that can be compared.
_Row = tuple[object, ...]


class Wanted(NamedTuple):
    """A job that a switch should have."""

    plan: SwitchPlan
    """What the switch gets."""
    generation: int
    """The generation that runs."""


@dataclass(frozen=True)
class Differences:
    """What has to change on a switch."""

    stale: Mapping[int, int]
    """Jobs whose rows have to go, with the generation that the switch remembers."""
    missing: tuple[int, ...]
    """Jobs that have to be put back."""
    idle_hosts: tuple[P4TableEntry, ...]
    """Addresses of hosts behind ports that no wanted job uses."""


def jobs_agree(session: Session, wanted: Mapping[int, Wanted]) -> bool:
    """Return whether the wanted jobs are open, and no others. Reads one table. Raises SwitchError."""
    expected = {_row(job_entry(one.plan, one.generation)) for one in wanted.values()}
    return {_row(entry) for entry in session.entries("jobs") if not _closed(entry)} == expected


def differences(session: Session, wanted: Mapping[int, Wanted]) -> Differences:
    """Compare all rows and groups of jobs, except other traffic's and limits. Raises SwitchError."""
    present, generations = _present(session)
    entries = session.entries("hosts")
    hosts = {_row(entry) for entry in entries}
    missing = tuple(
        job_id
        for job_id, one in wanted.items()
        if present.get(job_id, set()) != _expected(one) or not _hosts(one.plan) <= hosts
    )
    stale = {job_id: generations.get(job_id, 0) for job_id in present if job_id not in wanted}
    used = {port for one in wanted.values() for port in one.plan.ports}
    idle = tuple(entry for entry in entries if entry["egress_port"] not in used)
    return Differences(stale, missing, idle)


def _present(session: Session) -> tuple[dict[int, set[_Row]], dict[int, int]]:
    """Return the rows and groups of each job, but not a closed job's row; and all jobs' generations."""
    rows: defaultdict[int, set[_Row]] = defaultdict(set)
    generations: dict[int, int] = {}
    for table in ("jobs", "members", "return_paths"):
        for entry in session.entries(table):
            job_id: int = entry["job_id"]
            if table == "jobs" and isinstance(entry.action, P4TableAction):
                generations[job_id] = entry.action.args["generation"]
            if table != "jobs" or not _closed(entry):
                rows[job_id].add(_row(entry))
    schema = session.loaded()
    for entity in session.read(P4MulticastGroupEntry()):
        group = P4MulticastGroupEntry.decode(entity, schema)
        if group.multicast_group_id < FLOOD_GROUP - 1:
            rows[group.multicast_group_id].add(_group(group))
    return dict(rows), generations


def _expected(one: Wanted) -> set[_Row]:
    entries = [job_entry(one.plan, one.generation), *participant_entries(one.plan)]
    return {*map(_row, entries), _group(group_entry(one.plan))}


def _hosts(plan: SwitchPlan) -> set[_Row]:
    address = plan.switch.address
    return {_row(host_entry(port, host, address)) for port, host in plan.hosts.items() if address is not None}


def _closed(entry: P4TableEntry) -> bool:
    return isinstance(entry.action, P4TableAction) and not entry.action.args.get("expected_mask")


def _row(entry: P4TableEntry) -> _Row:
    assert isinstance(entry.action, P4TableAction)
    assert entry.match is not None
    return (
        entry.table_id,
        tuple(sorted(entry.match.items())),
        entry.action.name,
        tuple(sorted(entry.action.args.items())),
    )


def _group(group: P4MulticastGroupEntry) -> _Row:
    return ("group", tuple(sorted(str(replica) for replica in group.replicas)))
