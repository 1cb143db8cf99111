"""The rows of jobs on one switch, and one job's steps: check that it fits, close, free, write rows, open.

The switch's limits, and the bridge and routes of other traffic, outlive the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import methodcaller
from typing import Any

from finsy.p4entity import P4MulticastGroupEntry, P4TableAction, P4TableEntry

from peelsum.control.drivers import driver_of
from peelsum.control.entries import (
    FLOOD_GROUP,
    PROBE_GROUP,
    bridge_entries,
    closed_job_entry,
    flood_entry,
    group_entry,
    group_of,
    host_entry,
    job_entry,
    participant_entries,
    route_entries,
)
from peelsum.control.errors import DescriptionError, RefusedError
from peelsum.control.plan import SwitchPlan
from peelsum.control.session import Session, for_program, lanes, slots

_bytes = methodcaller("SerializeToString")
_JOB_TABLES = ("jobs", "members", "return_paths", "hosts")


class Tables:
    """The rows and groups of all jobs on a switch, as they were when this was made."""

    def __init__(self, session: Session) -> None:
        """Read them, in one request. Raises SwitchError."""
        schema = session.loaded()
        #: Rows by table.
        self.rows: dict[str, list[P4TableEntry]] = {name: [] for name in _JOB_TABLES}
        #: Ports of multicast groups by number, those of other traffic included.
        self.groups: dict[int, set[str]] = {}
        for entity in session.read(*map(P4TableEntry, _JOB_TABLES), P4MulticastGroupEntry()):
            if entity.HasField("table_entry"):
                entry = P4TableEntry.decode(entity, schema)
                self.rows[entry.table_id].append(entry)
            else:
                group = P4MulticastGroupEntry.decode(entity, schema)
                self.groups[group.multicast_group_id] = {str(replica) for replica in group.replicas}
        #: The last generation of each job, by number, closed jobs included.
        self.generations: dict[int, int] = {
            row["job_id"]: args(row)["generation"] for row in self.rows["jobs"]
        }

    def participants(self, job_id: int) -> list[P4TableEntry]:
        """Return a job's rows, except the one in `jobs`."""
        tables = ("members", "return_paths")
        return [row for table in tables for row in self.rows[table] if row["job_id"] == job_id]

    def present(self) -> dict[int, list[P4TableEntry]]:
        """Return the rows of each job, but not a closed job's in `jobs`; a job may have a group only."""
        found: dict[int, list[P4TableEntry]] = {number: [] for number in self.groups if number < PROBE_GROUP}
        for table in ("jobs", "members", "return_paths"):
            for row in self.rows[table]:
                if table != "jobs" or not is_closed(row):
                    found.setdefault(row["job_id"], []).append(row)
        return found

    def has_group(self, plan: SwitchPlan) -> bool:
        """Return whether a job has its multicast group, with these ports."""
        return self.groups.get(group_of(plan.job_id)) == {str(port) for port in plan.group}

    def other_ports(self, job_id: int) -> dict[int, int]:
        """Return each port that jobs other than this one use, with one of those jobs."""
        return {row["ingress_port"]: row["job_id"] for row in self.rows["members"] if row["job_id"] != job_id}

    def idle_ports(self, job_id: int) -> set[int]:
        """Return the ports of a job that no other job uses."""
        used = {row["ingress_port"] for row in self.rows["members"] if row["job_id"] == job_id}
        return used - self.other_ports(job_id).keys()

    def idle_hosts(self, job_id: int) -> list[P4TableEntry]:
        """Return the addresses of hosts behind ports that no job except this one uses."""
        others = self.other_ports(job_id)
        return [row for row in self.rows["hosts"] if row["egress_port"] not in others]


class Placement:
    """One job on one switch, and the steps of its admission, each of which takes one Write."""

    def __init__(self, session: Session, plan: SwitchPlan) -> None:
        """session: the primary's."""
        self.session, self.plan = session, plan

    def check(self) -> int | None:
        """Return the last generation that the switch remembers, if it knows the job.

        Raises DescriptionError if pipeline or ports cannot hold the job, or another controller holds it. Two
        jobs may share a port, as packets carry the job's number, if they give the same address for the host
        behind it. They may not share a port with a secret, a UDP socket, behind which is one host of one job.
        """
        session, plan = self.session, self.plan
        session.check_unheld(plan.job_id)
        self._check_size()
        self._driver = driver_of(session)
        self._driver.check(plan)
        self._check_ports()
        self._tables, self._secret_ports = Tables(session), self._driver.secret_ports()
        others = self._tables.other_ports(plan.job_id)
        for port in set(plan.host_ports) & others.keys() & (self._secret_ports or set()):
            raise DescriptionError(
                f"{plan.prefix}ports: {port}: belongs to job {others[port]}; use another, or evict that job "
                "first"
            )
        for row in self._tables.rows["hosts"]:
            port = row["egress_port"]
            host = plan.hosts.get(port)
            if host and port in others and (args(row)["dst_mac"], args(row)["dst_ip"]) != (host.mac, host.ip):
                raise DescriptionError(
                    f"{plan.prefix}hosts.{port}: has another address for job {others[port]}; evict that job "
                    "first"
                )
        return self._tables.generations.get(plan.job_id)

    def close(self, generation: int) -> None:
        """Refuse the job's packets from now on."""
        self.session.write([_closing(self._tables, self.plan.job_id, generation)])

    def free_slots(self) -> None:
        """Free the slots that the job's earlier generations hold. Raises SwitchError."""
        self._driver.free_slots(self.plan)

    def prepare(self, secret: str) -> None:
        """Replace all rows of the closed job except the one that opens it, and the switch's own.

        secret: the job's, for its hosts' ports if these are UDP sockets; empty for none.
        """
        session, plan, tables = self.session, self.plan, self._tables
        self._driver.bring_up(plan.switch.tofino, plan.section)
        hosts = [row for row in tables.rows["hosts"] if row["egress_port"] in plan.hosts]
        present = [*tables.participants(plan.job_id), *tables.idle_hosts(plan.job_id), *hosts]
        updates = changes(session, present, [*participant_entries(plan), *host_entries(plan)])
        group = group_entry(plan)
        updates.append(~group if group.multicast_group_id in tables.groups else +group)
        secrets = dict.fromkeys(tables.idle_ports(plan.job_id), "")
        if secret:
            secrets |= dict.fromkeys(plan.host_ports, secret)
        updates += self._driver.secret_updates(secrets, self._secret_ports)
        updates += self._driver.limit_updates(plan.switch.age_limit_ms, plan.switch.queue_depth)
        session.write([*updates, *self._other_traffic()])

    def open(self, generation: int) -> None:
        """Accept the prepared job's packets from now on."""
        self.session.write([~job_entry(self.plan, generation)])

    def _check_size(self) -> None:
        plan, have = self.plan, lanes(self.session)
        if plan.switch.pipeline_lanes != have:
            raise DescriptionError(
                f"{plan.section}.pipeline_lanes: {plan.switch.pipeline_lanes}: the switch runs {have} lanes; "
                f"load that pipeline or ask for {have}"
            )
        if 2 * plan.window > (have := slots(self.session)):
            raise DescriptionError(
                f"job.window: {plan.window}: at most half of the switch's {have} slots; "
                f"use {have // 2} or less"
            )

    def _check_ports(self) -> None:
        """Raise DescriptionError for ports that the switch refuses. BMv2 refuses none.

        P4Runtime has no list of ports, but a switch may refuse to put a missing port into a multicast group.
        """
        plan, missing = self.plan, {}
        if self._refusal(*plan.ports):
            missing = {port: reason for port in plan.ports if (reason := self._refusal(port))}
        if missing:
            ports, reason = ", ".join(map(str, missing)), next(iter(missing.values()))
            raise DescriptionError(
                f"{plan.prefix}ports: {ports}: {plan.switch.p4runtime} refuses them ({reason}); use its own"
            )

    def _refusal(self, *ports: int) -> str:
        """Return why the switch refuses a multicast group of these ports; empty if it does not."""
        try:
            self.session.write(
                [+P4MulticastGroupEntry(PROBE_GROUP, replicas=ports), -P4MulticastGroupEntry(PROBE_GROUP)]
            )
        except RefusedError as error:
            return error.reason
        return ""

    def _other_traffic(self) -> list[Any]:
        """Return what replaces the switch's bridge and its routes, each if the description gives one."""
        switch, updates = self.plan.switch, []
        if switch.bridge:
            group = flood_entry(switch.bridge)
            updates.append(~group if FLOOD_GROUP in self._tables.groups else +group)
            present = self.session.entries("bridge")
            updates += changes(self.session, present, bridge_entries(switch.bridge))
        if switch.routes:
            assert switch.address is not None  # the description's own check
            routes = route_entries(switch.routes, switch.address.mac)
            updates += changes(self.session, self.session.entries("routes"), routes)
        return updates


def known_generation(session: Session, job_id: int, *, closed: bool = True) -> int | None:
    """Return a job's last generation; None if the switch does not know the job. Reads one row.

    closed: whether a closed job counts as known.
    """
    for row in session.entries("jobs", {"job_id": job_id}):
        if closed or not is_closed(row):
            generation: int = args(row)["generation"]
            return generation
    return None


def close_job(session: Session, job_id: int, generation: int) -> None:
    """Refuse a job's packets from now on, and remove its ports' secrets and its rows, except that in `jobs`.

    That row remembers the generation. If a generation were used twice, late packets of its first use would
    be accepted.
    """
    tables, driver = Tables(session), driver_of(session)
    session.write([_closing(tables, job_id, generation)])
    secrets = dict.fromkeys(tables.idle_ports(job_id), "")
    updates = changes(session, [*tables.participants(job_id), *tables.idle_hosts(job_id)], [])
    updates += driver.secret_updates(secrets, driver.secret_ports() if secrets else None)
    if group_of(job_id) in tables.groups:
        updates.append(-P4MulticastGroupEntry(group_of(job_id)))
    session.write(updates)


def _closing(tables: Tables, job_id: int, generation: int) -> Any:
    row = closed_job_entry(job_id, generation)
    return ~row if job_id in tables.generations else +row


def host_entries(plan: SwitchPlan) -> list[P4TableEntry]:
    """Return the rows with the addresses of a job's hosts."""
    address = plan.switch.address
    return [host_entry(port, host, address) for port, host in plan.hosts.items() if address is not None]


def changes(session: Session, present: Iterable[P4TableEntry], wanted: Iterable[P4TableEntry]) -> list[Any]:
    """Return the updates that turn some rows into others. Equal rows stay, and no row is missing in between.

    Raises SwitchError for what the program does not take.
    """
    before, after = by_key(session, present), by_key(session, wanted)
    updates: list[Any] = [
        -P4TableEntry(row.table_id, match=row.match) for key, (row, _) in before.items() if key not in after
    ]
    for key, (row, value) in after.items():
        if key not in before:
            updates.append(+row)
        elif before[key][1] != value:
            updates.append(~row)
    return updates


def by_key(
    session: Session, rows: Iterable[P4TableEntry]
) -> dict[tuple[object, ...], tuple[P4TableEntry, tuple[object, ...]]]:
    """Return rows by their keys, each with its value; keys and values are equal for equal rows.

    P4Runtime leaves the match of the default route out. Raises SwitchError as `changes`.
    """
    schema, found = session.loaded(), {}
    with for_program():
        for row in rows:
            encoded = row.encode_entry(schema)
            action = encoded.action.action
            key = (encoded.table_id, *sorted(map(_bytes, encoded.match)))
            found[key] = row, (action.action_id, *sorted(map(_bytes, action.params)))
    return found


def values(session: Session, rows: Iterable[P4TableEntry]) -> set[object]:
    """Return rows in a form in which equal rows are equal."""
    return {(key, value) for key, (_, value) in by_key(session, rows).items()}


def is_closed(row: P4TableEntry) -> bool:
    """Return whether a row of table `jobs` is a closed job's."""
    return not args(row)["expected_mask"]


def args(row: P4TableEntry) -> dict[str, Any]:
    """Return the parameters of a row's action."""
    assert isinstance(row.action, P4TableAction)
    return row.action.args
