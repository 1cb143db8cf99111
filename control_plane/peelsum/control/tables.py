"""The rows of jobs in a switch's tables: build, read, compare and remove them; and a switch's state.

The switch's limits, and its bridge and routes for other traffic, remain when a job is evicted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from finsy.p4entity import P4CounterEntry, P4MulticastGroupEntry, P4TableAction, P4TableEntry, P4TableMatch

from peelsum.control.description import SwitchPlan
from peelsum.control.drivers import driver_of
from peelsum.control.sections import NextHop, Prefix
from peelsum.control.session import Session, lanes_and_slots, schema_errors
from peelsum.wire import MAX_WORKERS, Level, Verdict

_bytes = methodcaller("SerializeToString")
_JOB_TABLES = ("jobs", "members", "return_paths", "hosts")
#: Because the factor is odd, all jobs get different salts; because it is large, consecutive job numbers get
#: distant ones.
_SALT_FACTOR = 0x9E3779B1
_WORD = 0xFFFFFFFF
_BROADCAST = 0xFFFFFFFFFFFF
#: Multicast groups that are no job's: one to test whether ports exist, one for broadcasts.
PROBE_GROUP = 1 << 8
FLOOD_GROUP = PROBE_GROUP + 1


def salt(job_id: int) -> int:
    """Return the slot of a job's chunk 0, before reduction modulo the number of slots."""
    return job_id * _SALT_FACTOR & _WORD


def job_entry(plan: SwitchPlan, generation: int) -> P4TableEntry:
    """Return the row that opens a job: the switch accepts its packets from then on. It is written last."""
    action = P4TableAction(
        plan.level.value,
        generation=generation,
        salt=salt(plan.job_id),
        expected_mask=plan.expected_mask,
        up_port=plan.up_port,
        group=plan.job_id,
    )
    return P4TableEntry("jobs", match=P4TableMatch(job_id=plan.job_id), action=action)


def participant_entries(plan: SwitchPlan) -> list[P4TableEntry]:
    """Return the rows that map ports to workers, racks or server, and workers to return ports."""
    up = P4TableMatch(job_id=plan.job_id, ingress_port=plan.up_port)
    entries = [P4TableEntry("members", match=up, action=P4TableAction("admit_server"))]
    for member in plan.members:
        port = P4TableMatch(job_id=plan.job_id, ingress_port=member.port)
        first = member.first_worker
        if member.is_rack:
            action = P4TableAction("admit_rack", rack_mask=member.mask, first_worker=first)
        else:
            action = P4TableAction("admit_worker", worker_mask=member.mask, worker_id=first)
        entries.append(P4TableEntry("members", match=port, action=action))
    for worker_id, return_port in plan.return_ports.items():
        match = P4TableMatch(job_id=plan.job_id, sender=worker_id)
        action = P4TableAction("return_to", port=return_port)
        entries.append(P4TableEntry("return_paths", match=match, action=action))
    return entries


def host_entries(plan: SwitchPlan) -> list[P4TableEntry]:
    """Return the rows with the addresses of packets that leave by a job's ports, to the hosts there."""
    entries: list[P4TableEntry] = []
    switch = plan.switch.address
    if switch is None:
        return entries
    for port, host in plan.hosts.items():
        addresses = {"src_mac": switch.mac, "dst_mac": host.mac, "src_ip": switch.ip, "dst_ip": host.ip}
        action = P4TableAction("readdress", **addresses)
        entries.append(P4TableEntry("hosts", match=P4TableMatch(egress_port=port), action=action))
    return entries


def bridge_entries(bridge: Mapping[int, int]) -> list[P4TableEntry]:
    """Return the rows that forward frames to the port of their MAC address, and broadcasts to FLOOD_GROUP."""
    actions = {mac: P4TableAction("forward", port=port) for mac, port in bridge.items()}
    actions[_BROADCAST] = P4TableAction("flood", group=FLOOD_GROUP)
    return [
        P4TableEntry("bridge", match=P4TableMatch(dst_mac=mac), action=action)
        for mac, action in actions.items()
    ]


def route_entries(routes: Mapping[Prefix, NextHop], src_mac: int) -> list[P4TableEntry]:
    """Return the rows that route IPv4 packets by prefix."""
    return [
        P4TableEntry(
            "routes",
            match=P4TableMatch(dst_ip=prefix),
            action=P4TableAction("route", port=hop.port, src_mac=src_mac, dst_mac=hop.mac),
        )
        for prefix, hop in routes.items()
    ]


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
        return self.groups.get(plan.job_id) == {str(port) for port in plan.group}

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
    session.write([close_update(snapshot, job_id, generation)])
    secrets = dict.fromkeys(snapshot.exclusive_ports(job_id), "")
    updates = row_updates(session, [*snapshot.participants(job_id), *snapshot.exclusive_hosts(job_id)], [])
    updates += driver.secret_updates(secrets, driver.secret_ports() if secrets else None)
    if job_id in snapshot.groups:
        updates.append(-P4MulticastGroupEntry(job_id))
    session.write(updates)


def close_update(snapshot: TableSnapshot, job_id: int, generation: int) -> Any:
    """Return the update that closes a job: with an empty mask, the switch accepts no packet of it."""
    action = P4TableAction("admit_job", generation=generation, salt=0, expected_mask=0, up_port=0, group=0)
    row = P4TableEntry("jobs", match=P4TableMatch(job_id=job_id), action=action)
    return ~row if job_id in snapshot.generations else +row


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
    with schema_errors():
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


@dataclass(frozen=True)
class AdmittedJob:
    """A job, as read from a switch's tables."""

    job_id: int
    """The job's number."""
    generation: int
    """The number of its last admission."""
    expected_mask: int
    """The bitmap of a sum that has all contributions."""
    server_port: int
    """The port to the aggregation server or the spine."""
    worker_ports: dict[int, int]
    """Ports by worker number; empty at a spine."""
    rack_ports: dict[int, int]
    """Ports by rack number; empty except at a spine."""
    level: str
    """The switch's position: 'only', 'leaf' or 'spine'."""


@dataclass(frozen=True)
class SwitchStatus:
    """The state of a switch."""

    address: str
    """The address of the P4Runtime server, host:port."""
    lanes: int
    """32-bit values per packet of the running pipeline."""
    slots: int
    """The number of slots of the running pipeline."""
    jobs: tuple[AdmittedJob, ...]
    """The admitted jobs, in the order of their numbers."""
    verdicts: dict[Verdict, int]
    """The number of packets with each verdict since the pipeline was loaded."""
    slots_in_use: dict[int, int] | None
    """The number of slots in use, by job number; None if the switch does not support reading registers."""


def read_status(session: Session) -> SwitchStatus:
    """Read the state of a switch: jobs, verdict counters and slots. Raises SwitchError."""
    lanes, slots = lanes_and_slots(session)
    return SwitchStatus(
        address=session.address,
        lanes=lanes,
        slots=slots,
        jobs=tuple(read_jobs(session)),
        verdicts=read_verdicts(session),
        slots_in_use=driver_of(session).slots_in_use(),
    )


def read_verdicts(session: Session) -> dict[Verdict, int]:
    """Read the number of packets with each verdict since the pipeline was loaded. Raises SwitchError."""
    counts = dict.fromkeys(Verdict, 0)
    for entity in session.read(P4CounterEntry("verdicts")):
        index = entity.counter_entry.index.index
        if index < len(counts):
            counts[Verdict(index)] = entity.counter_entry.data.packet_count
    return counts


def read_jobs(session: Session) -> list[AdmittedJob]:
    """Read the admitted jobs, without closed ones, in the order of their numbers. Raises SwitchError."""
    snapshot = TableSnapshot(session)
    workers: defaultdict[int, dict[int, int]] = defaultdict(dict)
    racks: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for row in snapshot.rows["members"]:
        job_id, port, values = row["job_id"], row["ingress_port"], action_args(row)
        if "worker_id" in values:
            workers[job_id][values["worker_id"]] = port
        elif "first_worker" in values:
            racks[job_id][values["first_worker"] // MAX_WORKERS] = port
    jobs = []
    for row in snapshot.rows["jobs"]:
        job_id, values = row["job_id"], action_args(row)
        if values["expected_mask"]:
            assert isinstance(row.action, P4TableAction)
            jobs.append(
                AdmittedJob(
                    job_id=job_id,
                    generation=values["generation"],
                    expected_mask=values["expected_mask"],
                    server_port=values["up_port"],
                    worker_ports=dict(sorted(workers[job_id].items())),
                    rack_ports=dict(sorted(racks[job_id].items())),
                    level=Level(row.action.name).name.lower(),
                )
            )
    return sorted(jobs, key=lambda job: job.job_id)
