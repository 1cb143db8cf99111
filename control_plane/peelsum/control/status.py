"""Read the state of a switch: its jobs, counters and slots."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from finsy.p4entity import P4CounterEntry, P4TableAction

from peelsum.control.drivers import driver_of
from peelsum.control.session import Session, lanes, slots
from peelsum.wire import MAX_WORKERS, Level, Verdict


@dataclass(frozen=True)
class AdmittedJob:
    """A job as read from a switch's tables."""

    job_id: int
    """Number of the job."""
    generation: int
    """Number of its last admission."""
    expected_mask: int
    """The bitmap of a complete sum; 0 for a closed job."""
    server_port: int
    """The uplink."""
    worker_ports: dict[int, int]
    """Ports by worker number; empty at a spine."""
    rack_ports: dict[int, int]
    """Ports by rack number; empty except at a spine."""
    level: str
    """The switch's place: 'only', 'leaf' or 'spine'."""


@dataclass(frozen=True)
class SwitchStatus:
    """The state of a switch."""

    address: str
    """The P4Runtime server, host:port."""
    lanes: int
    """32-bit values per packet in the running pipeline."""
    slots: int
    """Chunks that the running pipeline sums at once."""
    jobs: tuple[AdmittedJob, ...]
    """The admitted jobs, by number."""
    verdicts: dict[Verdict, int]
    """Packets that met each verdict since the pipeline was loaded."""
    slots_in_use: dict[int, int] | None
    """Slots in use by each job, by number; None if the switch does not let registers be read."""


def read_status(session: Session) -> SwitchStatus:
    """Return everything that an operator wants to see at once. Raises SwitchError."""
    return SwitchStatus(
        address=session.address,
        lanes=lanes(session),
        slots=slots(session),
        jobs=tuple(read_jobs(session)),
        verdicts=read_verdicts(session),
        slots_in_use=driver_of(session).slots_in_use(),
    )


def read_verdicts(session: Session) -> dict[Verdict, int]:
    """Return how many packets met each verdict since the pipeline was loaded."""
    counted = dict.fromkeys(Verdict, 0)
    for entity in session.read(P4CounterEntry("verdicts")):
        index = entity.counter_entry.index.index
        if index < len(counted):
            counted[Verdict(index)] = entity.counter_entry.data.packet_count
    return counted


def read_jobs(session: Session) -> list[AdmittedJob]:
    """Return the admitted jobs, by number; closed ones are left out."""
    workers: defaultdict[int, dict[int, int]] = defaultdict(dict)
    racks: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for entry in session.entries("members"):
        action, job_id, port = entry.action, entry["job_id"], entry["ingress_port"]
        if isinstance(action, P4TableAction) and action.name == "admit_worker":
            workers[job_id][action.args["worker_id"]] = port
        elif isinstance(action, P4TableAction) and action.name == "admit_rack":
            racks[job_id][action.args["first_worker"] // MAX_WORKERS] = port
    jobs = []
    for entry in session.entries("jobs"):
        action, job_id = entry.action, entry["job_id"]
        if isinstance(action, P4TableAction) and action.args["expected_mask"]:
            jobs.append(_admitted(job_id, action, workers[job_id], racks[job_id]))
    return sorted(jobs, key=lambda job: job.job_id)


def _admitted(job_id: int, row: P4TableAction, workers: dict[int, int], racks: dict[int, int]) -> AdmittedJob:
    return AdmittedJob(
        job_id=job_id,
        generation=row.args["generation"],
        expected_mask=row.args["expected_mask"],
        server_port=row.args["up_port"],
        worker_ports=dict(sorted(workers.items())),
        rack_ports=dict(sorted(racks.items())),
        level=Level(row.name).name.lower(),
    )
