"""The rows of jobs in a switch's tables, and the steps of a job's admission to one switch.

The switch's limits, and its bridge and routes for other traffic, remain when the job is evicted.
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
from peelsum.control.errors import DescriptionError, UpdateRefusedError
from peelsum.control.plan import SwitchPlan
from peelsum.control.session import Session, lanes, schema_errors_translated, slots

_bytes = methodcaller("SerializeToString")
_JOB_TABLES = ("jobs", "members", "return_paths", "hosts")


class TableSnapshot:
    """The rows and multicast groups of all jobs on a switch, as of one read."""

    def __init__(self, session: Session) -> None:
        """Read the tables in one request. Raises SwitchError."""
        schema = session.running_schema()
        #: The rows of each table.
        self.rows: dict[str, list[P4TableEntry]] = {name: [] for name in _JOB_TABLES}
        #: The ports of each multicast group, by number, including the groups of other traffic.
        self.groups: dict[int, set[str]] = {}
        for entity in session.read(*map(P4TableEntry, _JOB_TABLES), P4MulticastGroupEntry()):
            if entity.HasField("table_entry"):
                entry = P4TableEntry.decode(entity, schema)
                self.rows[entry.table_id].append(entry)
            else:
                group = P4MulticastGroupEntry.decode(entity, schema)
                self.groups[group.multicast_group_id] = {str(replica) for replica in group.replicas}
        #: The last generation of each job, by number, including closed jobs.
        self.generations: dict[int, int] = {
            row["job_id"]: action_args(row)["generation"] for row in self.rows["jobs"]
        }

    def participants(self, job_id: int) -> list[P4TableEntry]:
        """Return a job's rows in `members` and `return_paths`."""
        snapshot = ("members", "return_paths")
        return [row for table in snapshot for row in self.rows[table] if row["job_id"] == job_id]

    def job_rows(self) -> dict[int, list[P4TableEntry]]:
        """Return the rows of each job, by number, without the rows in `jobs` that only close a job.

        A job of which the switch has only the multicast group has no rows.
        """
        rows: dict[int, list[P4TableEntry]] = {number: [] for number in self.groups if number < PROBE_GROUP}
        for table in ("jobs", "members", "return_paths"):
            for row in self.rows[table]:
                if table != "jobs" or not is_closed(row):
                    rows.setdefault(row["job_id"], []).append(row)
        return rows

    def has_group(self, plan: SwitchPlan) -> bool:
        """Return whether the switch has the multicast group of a plan's job, with the plan's ports."""
        return self.groups.get(group_of(plan.job_id)) == {str(port) for port in plan.group}

    def other_ports(self, job_id: int) -> dict[int, int]:
        """Return the ports of all other jobs, each with the number of a job that uses it."""
        return {row["ingress_port"]: row["job_id"] for row in self.rows["members"] if row["job_id"] != job_id}

    def exclusive_ports(self, job_id: int) -> set[int]:
        """Return the ports that only this job uses."""
        used = {row["ingress_port"] for row in self.rows["members"] if row["job_id"] == job_id}
        return used - self.other_ports(job_id).keys()

    def exclusive_hosts(self, job_id: int) -> list[P4TableEntry]:
        """Return the rows in `hosts` for ports that no other job uses."""
        others = self.other_ports(job_id)
        return [row for row in self.rows["hosts"] if row["egress_port"] not in others]


class Placement:
    """One job on one switch, and the steps of its admission, each with one Write request."""

    def __init__(self, session: Session, plan: SwitchPlan) -> None:
        """session: a primary's session with the switch."""
        self.session, self.plan = session, plan

    def check(self) -> int | None:
        """Check that the switch can run the job; return its last generation there, None if there is none.

        Raises DescriptionError if the pipeline or the ports do not fit, LeaseHeldError if another controller
        holds the lease. Two jobs may use the same port, because packets carry the job's number, if they
        give the same address for the host behind it. They cannot both use a UDP port with a secret, which
        belongs to one host of one job.
        """
        session, plan = self.session, self.plan
        session.check_lease_is_free(plan.job_id)
        self._check_size()
        self._driver = driver_of(session)
        self._driver.check(plan)
        self._check_ports()
        self._snapshot, self._secret_ports = TableSnapshot(session), self._driver.secret_ports()
        others = self._snapshot.other_ports(plan.job_id)
        for port in set(plan.host_ports) & others.keys() & (self._secret_ports or set()):
            raise DescriptionError(
                f"{plan.prefix}ports: {port}: belongs to job {others[port]}; use another, or evict that job "
                "first"
            )
        for row in self._snapshot.rows["hosts"]:
            port = row["egress_port"]
            host = plan.hosts.get(port)
            if (
                host
                and port in others
                and (action_args(row)["dst_mac"], action_args(row)["dst_ip"]) != (host.mac, host.ip)
            ):
                raise DescriptionError(
                    f"{plan.prefix}hosts.{port}: has another address for job {others[port]}; evict that job "
                    "first"
                )
        return self._snapshot.generations.get(plan.job_id)

    def close(self, generation: int) -> None:
        """Close the job: the switch drops its packets from now on."""
        self.session.write([_close_update(self._snapshot, self.plan.job_id, generation)])

    def free_slots(self) -> None:
        """Free the slots of the job's earlier generations. Raises SwitchError."""
        self._driver.free_slots(self.plan)

    def prepare(self, secret: str) -> None:
        """Write all rows of the closed job except the one that opens it, and the switch's settings.

        secret: what the job's hosts must prove to have, if its ports are UDP sockets; empty for no secret.
        """
        session, plan, snapshot = self.session, self.plan, self._snapshot
        self._driver.bring_up(plan.switch.tofino, plan.section)
        hosts = [row for row in snapshot.rows["hosts"] if row["egress_port"] in plan.hosts]
        present = [*snapshot.participants(plan.job_id), *snapshot.exclusive_hosts(plan.job_id), *hosts]
        updates = row_updates(session, present, [*participant_entries(plan), *host_entries(plan)])
        group = group_entry(plan)
        updates.append(~group if group.multicast_group_id in snapshot.groups else +group)
        secrets = dict.fromkeys(snapshot.exclusive_ports(plan.job_id), "")
        if secret:
            secrets |= dict.fromkeys(plan.host_ports, secret)
        updates += self._driver.secret_updates(secrets, self._secret_ports)
        updates += self._driver.limit_updates(plan.switch.age_limit_ms, plan.switch.queue_depth)
        session.write([*updates, *self._other_traffic()])

    def open(self, generation: int) -> None:
        """Open the job: the switch accepts its packets from now on."""
        self.session.write([~job_entry(self.plan, generation)])

    def _check_size(self) -> None:
        """Raise DescriptionError if the pipeline has other lanes, or too few slots for the window."""
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
        """Raise DescriptionError for ports that the switch does not have.

        P4Runtime has no list of ports. But the softswitch, unlike BMv2, refuses a multicast group with a
        missing port.
        """
        plan, missing = self.plan, {}
        if self._port_error(*plan.ports):
            missing = {port: reason for port in plan.ports if (reason := self._port_error(port))}
        if missing:
            ports, reason = ", ".join(map(str, missing)), next(iter(missing.values()))
            raise DescriptionError(
                f"{plan.prefix}ports: {ports}: {plan.switch.p4runtime} refuses them ({reason}); use its own"
            )

    def _port_error(self, *ports: int) -> str:
        """Return why the switch refuses a multicast group of these ports; an empty string if it does not."""
        try:
            self.session.write(
                [+P4MulticastGroupEntry(PROBE_GROUP, replicas=ports), -P4MulticastGroupEntry(PROBE_GROUP)]
            )
        except UpdateRefusedError as error:
            return error.reason
        return ""

    def _other_traffic(self) -> list[Any]:
        """Return the updates that replace the switch's bridge and routes, if the description has some."""
        switch, updates = self.plan.switch, []
        if switch.bridge:
            group = flood_entry(switch.bridge)
            updates.append(~group if FLOOD_GROUP in self._snapshot.groups else +group)
            present = self.session.entries("bridge")
            updates += row_updates(self.session, present, bridge_entries(switch.bridge))
        if switch.routes:
            assert switch.address is not None  # the description's own check
            routes = route_entries(switch.routes, switch.address.mac)
            updates += row_updates(self.session, self.session.entries("routes"), routes)
        return updates


def known_generation(session: Session, job_id: int, *, closed: bool = True) -> int | None:
    """Read a job's row; return its last generation, None if the switch has no row for it.

    closed: whether to return the generation of a closed job, too.
    """
    for row in session.entries("jobs", {"job_id": job_id}):
        if closed or not is_closed(row):
            generation: int = action_args(row)["generation"]
            return generation
    return None


def close_job(session: Session, job_id: int, generation: int) -> None:
    """Close a job, and remove its rows and its ports' secrets. Only its row in `jobs` remains.

    That row stores the generation, so that it is not used again: late packets of its first use would be
    accepted.
    """
    snapshot, driver = TableSnapshot(session), driver_of(session)
    session.write([_close_update(snapshot, job_id, generation)])
    secrets = dict.fromkeys(snapshot.exclusive_ports(job_id), "")
    updates = row_updates(session, [*snapshot.participants(job_id), *snapshot.exclusive_hosts(job_id)], [])
    updates += driver.secret_updates(secrets, driver.secret_ports() if secrets else None)
    if group_of(job_id) in snapshot.groups:
        updates.append(-P4MulticastGroupEntry(group_of(job_id)))
    session.write(updates)


def _close_update(snapshot: TableSnapshot, job_id: int, generation: int) -> Any:
    row = closed_job_entry(job_id, generation)
    return ~row if job_id in snapshot.generations else +row


def host_entries(plan: SwitchPlan) -> list[P4TableEntry]:
    """Return the rows with the addresses of a job's hosts."""
    address = plan.switch.address
    return [host_entry(port, host, address) for port, host in plan.hosts.items() if address is not None]


def row_updates(
    session: Session, present: Iterable[P4TableEntry], desired: Iterable[P4TableEntry]
) -> list[Any]:
    """Return the updates that turn the rows `present` into the rows `desired`.

    Rows that do not change are not written, and a changed row is modified, not deleted and inserted.
    Raises SwitchError for rows that are invalid for the switch's program.
    """
    before, after = rows_by_key(session, present), rows_by_key(session, desired)
    updates: list[Any] = [
        -P4TableEntry(row.table_id, match=row.match) for key, (row, _) in before.items() if key not in after
    ]
    for key, (row, value) in after.items():
        if key not in before:
            updates.append(+row)
        elif before[key][1] != value:
            updates.append(~row)
    return updates


def rows_by_key(
    session: Session, rows: Iterable[P4TableEntry]
) -> dict[tuple[object, ...], tuple[P4TableEntry, tuple[object, ...]]]:
    """Return each row by its encoded key, together with its encoded action, so that rows can be compared.

    Raises SwitchError for rows that are invalid for the switch's program.
    """
    schema, encoded_rows = session.running_schema(), {}
    with schema_errors_translated():
        for row in rows:
            entry = row.encode_entry(schema)
            action = entry.action.action
            key = (entry.table_id, *sorted(map(_bytes, entry.match)))
            encoded_rows[key] = row, (action.action_id, *sorted(map(_bytes, action.params)))
    return encoded_rows


def encoded_rows(session: Session, rows: Iterable[P4TableEntry]) -> set[object]:
    """Return the encoded keys and actions of rows, so that sets of rows can be compared."""
    return {(key, value) for key, (_, value) in rows_by_key(session, rows).items()}


def is_closed(row: P4TableEntry) -> bool:
    """Return whether a row of table `jobs` belongs to a closed job."""
    return not action_args(row)["expected_mask"]


def action_args(row: P4TableEntry) -> dict[str, Any]:
    """Return the parameters of a row's action."""
    assert isinstance(row.action, P4TableAction)
    return row.action.args
