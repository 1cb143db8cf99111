"""Admit a job to its switches, in an order that never exposes a half-configured job.

One switch and several take the same steps.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from peelsum.control.description import AnyDescription
from peelsum.control.errors import ControlError
from peelsum.control.session import Session, lanes, slots
from peelsum.control.status import read_jobs
from peelsum.control.tables import Placement, close_job
from peelsum.wire import SECRET_BYTES

_GENERATIONS = 1 << 16
#: Seconds per generation of the clock that numbers jobs no switch remembers; it wraps after 4.5 hours.
_GENERATION_S = 0.25


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
    secret: str = field(default="", repr=False)
    """What the job's hosts must prove at ports that are UDP sockets: 16 bytes in hexadecimal."""


def admit(
    description: AnyDescription,
    placements: Sequence[Placement],
    now: float,
    *,
    free: bool = True,
    known: Sequence[int] = (),
    secret: str | None = None,
) -> Admission:
    """Admit a job to its switches, the upper one first, in one new generation.

    The job is closed from the workers upwards, its slots are freed, its rows written, and it is opened from
    the server downwards. If a switch fails on the way, the job stays closed at least in part; the next
    admission starts over in another generation.
    now: seconds since the epoch. free: False leaves the slots as they are, for switches that just started.
    known: generations that the job had earlier, from records other than the switches' tables.
    secret: the job's, in hexadecimal; by default a random one. With an empty one, any host may take the job's
    ports, if the switch permits that.
    Raises DescriptionError before anything is changed, SwitchError if a switch refuses.
    """
    remembered = [placement.check() for placement in placements]
    generation = next_generation([*known, *(number for number in remembered if number is not None)], now)
    secret = secrets.token_hex(SECRET_BYTES) if secret is None else secret
    _write(placements, generation, secret, free)
    return admission_of(description, generation, [placement.session for placement in placements], secret)


def put_back(placement: Placement, generation: int, secret: str, *, free: bool = True) -> None:
    """Admit a running job again to a switch that lost its tables. Raises ControlError.

    Workers and server go on in `generation`, with `secret`; they retransmit the slots' chunks. If the switch
    fails on the way, call this again.
    free: False leaves the slots as they are, for a switch on which all have been freed since it started.
    """
    placement.check()
    _write([placement], generation, secret, free)


def _write(placements: Sequence[Placement], generation: int, secret: str, free: bool) -> None:
    for placement in reversed(placements):
        placement.close(generation)
    if free:
        for placement in placements:
            placement.free_slots()
    for placement in placements:
        placement.prepare(secret)
    for placement in placements:
        placement.open(generation)


def evict(session: Session, job_id: int) -> None:
    """Stop letting a job's packets in. Raises ControlError if the job is not admitted."""
    admitted = {job.job_id: job.generation for job in read_jobs(session)}
    if job_id not in admitted:
        known = ", ".join(map(str, admitted)) or "none"
        raise ControlError(f"job: {job_id}: is not admitted; admitted: {known}")
    close_job(session, job_id, admitted[job_id])


def next_generation(known: Sequence[int], now: float) -> int:
    """Return a generation after those that switches remember; without any, one from the clock."""
    if not known:
        return int(now / _GENERATION_S) % _GENERATIONS
    ahead = (max(known) + 1 + step for step in range(len(known) + 1))
    return next(one % _GENERATIONS for one in ahead if one % _GENERATIONS not in known)


def admission_of(
    description: AnyDescription, generation: int, sessions: Sequence[Session], secret: str = ""
) -> Admission:
    """Return an admission as its participants need it."""
    return Admission(
        description.job.id,
        generation,
        description.job.workers,
        description.job.window,
        lanes(sessions[0]),
        min(slots(session) for session in sessions),
        description.server_port,
        description.worker_ports,
        description.rack_sizes,
        secret,
    )
