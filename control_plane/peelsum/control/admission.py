"""Admit a job to one or several switches, in an order in which no packet meets a half-configured job."""

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
#: The first generation of a job that no switch remembers is the time, in units of so many seconds, modulo
#: _GENERATIONS. It repeats after 4.5 hours.
_GENERATION_S = 0.25


@dataclass(frozen=True)
class JobAdmission:
    """An admitted job, as its workers and its server need to know it."""

    job_id: int
    """The job's number."""
    generation: int
    """The number of this admission, which every packet carries."""
    workers: int
    """Number of workers."""
    window: int
    """Chunks that a worker keeps in flight."""
    lanes: int
    """32-bit values per packet."""
    slots: int
    """Slots of the switch; of several switches, the smallest number."""
    server_port: int
    """The aggregation server's port, at its switch."""
    worker_ports: tuple[int, ...]
    """The workers' ports, each at its own switch, in the order of the workers' numbers."""
    racks: tuple[int, ...] = ()
    """Workers per rack; empty for one switch."""
    secret: str = field(default="", repr=False)
    """The secret that the job's hosts must prove to have at UDP ports: 16 bytes in hexadecimal."""


def admit(
    description: AnyDescription,
    placements: Sequence[Placement],
    now: float,
    *,
    free: bool = True,
    known: Sequence[int] = (),
    secret: str | None = None,
) -> JobAdmission:
    """Admit a job to all its switches in a new generation.

    The steps are: close the job, from the workers' switches to the server's; free its slots; write its rows;
    open it, from the server's switch to the workers'. If a switch fails in between, the job stays closed on
    some switches, and has to be admitted again.
    placements: one for each switch, the server's switch first. now: seconds since the epoch.
    free: whether to free slots; False is for switches that have just started.
    known: generations that the job had earlier, according to the caller's records.
    secret: the job's secret in hexadecimal, by default a random one. If it is empty, any host can use the
    job's ports, if the switch permits that.
    Raises DescriptionError before anything is changed, SwitchError if a switch refuses a request.
    """
    previous_generations = [placement.check() for placement in placements]
    generation = next_generation(
        [*known, *(number for number in previous_generations if number is not None)], now
    )
    secret = secrets.token_hex(SECRET_BYTES) if secret is None else secret
    _configure(placements, generation, secret, free)
    return admission_of(description, generation, [placement.session for placement in placements], secret)


def restore(placement: Placement, generation: int, secret: str, *, free: bool = True) -> None:
    """Write a running job to a switch that has lost its tables. Raises ControlError.

    The workers and the server continue in the same `generation` with the same `secret`, and retransmit the
    chunks that were in slots. If the switch fails in between, call this again.
    free: whether to free the job's slots; False is for a switch on which all slots are free.
    """
    placement.check()
    _configure([placement], generation, secret, free)


def _configure(placements: Sequence[Placement], generation: int, secret: str, free: bool) -> None:
    """Close a job, free its slots, write its rows and open it, on all its switches."""
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
    """Evict a job from one switch. Raises ControlError if it is not admitted there."""
    admitted = {job.job_id: job.generation for job in read_jobs(session)}
    if job_id not in admitted:
        admitted_ids = ", ".join(map(str, admitted)) or "none"
        raise ControlError(f"job: {job_id}: is not admitted; admitted: {admitted_ids}")
    close_job(session, job_id, admitted[job_id])


def next_generation(known: Sequence[int], now: float) -> int:
    """Return the generation after all known ones, modulo 2^16; if none is known, one from the time `now`."""
    if not known:
        return int(now / _GENERATION_S) % _GENERATIONS
    candidates = (max(known) + 1 + step for step in range(len(known) + 1))
    return next(candidate % _GENERATIONS for candidate in candidates if candidate % _GENERATIONS not in known)


def admission_of(
    description: AnyDescription, generation: int, sessions: Sequence[Session], secret: str = ""
) -> JobAdmission:
    """Return the `JobAdmission` of a job on the switches of these sessions."""
    return JobAdmission(
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
