"""Read the state of a switch: its jobs, counters and slots."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from finsy.p4entity import P4CounterEntry, P4TableAction, P4TableEntry

from peelsum.control.drivers import driver_of
from peelsum.control.session import Session, lanes, slots
from peelsum.control.tables import TableSnapshot, action_args, is_closed
from peelsum.wire import MAX_WORKERS, Level, Verdict


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
    return SwitchStatus(
        address=session.address,
        lanes=lanes(session),
        slots=slots(session),
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
    jobs = [
        _admitted_job(row, workers[row["job_id"]], racks[row["job_id"]])
        for row in snapshot.rows["jobs"]
        if not is_closed(row)
    ]
    return sorted(jobs, key=lambda job: job.job_id)


def _admitted_job(row: P4TableEntry, workers: dict[int, int], racks: dict[int, int]) -> AdmittedJob:
    """Return the job of a row in `jobs`, with its workers' or racks' ports."""
    values = action_args(row)
    assert isinstance(row.action, P4TableAction)
    return AdmittedJob(
        job_id=row["job_id"],
        generation=values["generation"],
        expected_mask=values["expected_mask"],
        server_port=values["up_port"],
        worker_ports=dict(sorted(workers.items())),
        rack_ports=dict(sorted(racks.items())),
        level=Level(row.action.name).name.lower(),
    )
