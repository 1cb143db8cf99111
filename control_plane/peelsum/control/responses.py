"""Responses of controllers about jobs and switches, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from peelsum.wire import Verdict


@dataclass(frozen=True)
class Admission:
    """The facts that participants of an admitted job need."""

    job_id: int
    """Number of the job."""
    generation: int
    """Number of this admission, which every packet carries."""
    workers: int
    """Number of workers."""
    window: int
    """Chunks that a worker keeps in flight."""
    lanes: int
    """32-bit values per packet."""
    slots: int
    """Slots of the switch, or of the smallest one."""
    server_port: int
    """The aggregation server's port, at its switch."""
    worker_ports: tuple[int, ...]
    """The workers' ports, each at its own switch, in the order of the workers' numbers."""
    racks: tuple[int, ...] = ()
    """Workers per rack; empty for one switch."""


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
