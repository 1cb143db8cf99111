"""What a controller has to say about jobs and switches: values, for participants and operators."""

from __future__ import annotations

from dataclasses import dataclass

from peelsum.wire import Verdict


@dataclass(frozen=True)
class Admission:
    """What participants of an admitted job have to know.

    `worker_ports` is in the order of the workers' numbers, each at its own switch; `racks` is how many
    workers each rack has, empty with one switch; `slots` is what the smallest switch has.
    """

    job_id: int
    generation: int
    workers: int
    window: int
    lanes: int
    slots: int
    server_port: int
    worker_ports: tuple[int, ...]
    racks: tuple[int, ...] = ()


@dataclass(frozen=True)
class AdmittedJob:
    """A job as a switch's tables have it.

    `server_port` is the way up, `worker_ports` is by worker number, `rack_ports` by rack; a spine has racks.
    """

    job_id: int
    generation: int
    expected_mask: int
    server_port: int
    worker_ports: dict[int, int]
    rack_ports: dict[int, int]
    level: str


@dataclass(frozen=True)
class SwitchStatus:
    """What a switch does at the moment. `slots_in_use` is by job; None where registers cannot be read."""

    address: str
    lanes: int
    slots: int
    jobs: tuple[AdmittedJob, ...]
    verdicts: dict[Verdict, int]
    slots_in_use: dict[int, int] | None
