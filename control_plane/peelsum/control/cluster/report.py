"""Compares a cluster's desired jobs, from its controller, with the actual ones, from its switches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from peelsum.control.drivers import open_session
from peelsum.control.errors import ControlError
from peelsum.control.sections import TofinoSection
from peelsum.control.status import SwitchStatus, read_status
from peelsum.tls import Identity


@dataclass(frozen=True)
class SeenSwitch:
    """A switch, as the controller and as the switch itself has it."""

    p4runtime: str
    """Where it answers, host:port."""
    device_id: int
    """Its device_id."""
    state: str
    """`up`, or why the controller cannot use it."""
    status: SwitchStatus | None
    """State of the job at the switch; None if it does not answer here."""
    trouble: str
    """Why it does not answer here; empty if it does."""


@dataclass(frozen=True)
class SeenJob:
    """A job on one of its switches."""

    job_id: int
    """Number of the job."""
    p4runtime: str
    """The switch."""
    device_id: int
    """Its device_id."""
    desired: int | None
    """The generation that the controller has admitted; None if it has not."""
    actual: int | None
    """The generation that the switch lets in; None if it does not, or does not answer."""
    state: str
    """State of the job at the controller; empty if it has not admitted it."""

    @property
    def agrees(self) -> bool:
        """Whether the switch has the job as the controller wants it."""
        return self.desired == self.actual


@dataclass(frozen=True)
class Report:
    """A cluster at one time."""

    address: str
    """The primary controller, host:port."""
    epoch: int
    """How often the primary has changed."""
    switches: tuple[SeenSwitch, ...]
    """The switches of its file."""
    jobs: tuple[SeenJob, ...]
    """Every job on every switch that has it or should have it."""


def observed(listed: Mapping[str, Any], identity: Identity | None = None) -> Report:
    """Ask every switch that a controller lists. A switch that does not answer is no error.

    listed: what `ControllerClient.list` returned. identity: this client's, of role viewer or operator.
    """
    switches = tuple(_seen(one, identity) for one in listed["switches"])
    jobs = tuple(job for switch in switches for job in _jobs(switch, listed["jobs"]))
    return Report(
        listed["address"], listed["epoch"], switches, tuple(sorted(jobs, key=lambda job: job.job_id))
    )


def _seen(listed: Mapping[str, Any], identity: Identity | None) -> SeenSwitch:
    tofino = TofinoSection.model_validate(listed["tofino"]) if listed["tofino"] else None
    place, status, trouble = (listed["p4runtime"], listed["device_id"]), None, ""
    try:
        with open_session(*place, tofino, identity=identity) as session:
            status = read_status(session)
    except ControlError as error:
        trouble = str(error)
    return SeenSwitch(*place, listed["state"], status, trouble)


def _jobs(switch: SeenSwitch, listed: list[Mapping[str, Any]]) -> Iterator[SeenJob]:
    """Yield the jobs that a switch has, or should have."""
    place = (switch.p4runtime, switch.device_id)
    actual = {job.job_id: job.generation for job in switch.status.jobs} if switch.status else {}
    desired = {
        job["job_id"]: job for job in listed if place in zip(job["switches"], job["device_ids"], strict=True)
    }
    for job_id in sorted(actual.keys() | desired.keys()):
        wanted = desired.get(job_id)
        generation, state = (wanted["generation"], wanted["state"]) if wanted else (None, "")
        yield SeenJob(job_id, *place, generation, actual.get(job_id), state)
