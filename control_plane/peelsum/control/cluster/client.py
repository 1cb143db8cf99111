"""Asks a cluster's primary controller, and compares its desired jobs with those of its switches."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from peelsum.control.drivers import open_session
from peelsum.control.errors import ControlError
from peelsum.control.sections import TofinoSection
from peelsum.control.status import SwitchStatus, read_status
from peelsum.requests import MAX_REQUEST_BYTES, ask, decode_line, encode_line
from peelsum.tls import Identity, TlsError, require_tls
from peelsum.tls.identity import tls_reason

#: How long to look for a primary while a backup answers: it takes over within a few polls.
_PATIENCE_S = 10.0
_AGAIN_S = 0.2
#: A switch may have to build its pipeline before it takes a job.
_ANSWER_S = 600.0
_CONNECT_S = 4.0


class ControllerClient:
    """A client of the controllers at several addresses, of which it asks the primary."""

    def __init__(
        self, addresses: Sequence[str], identity: Identity | None = None, *, patience_s: float = _PATIENCE_S
    ) -> None:
        """addresses: each host:port. patience_s: how long to look for a primary if a backup answers."""
        self._addresses, self._identity, self._patience_s = tuple(addresses), identity, patience_s

    def admit(self, description: str, source: str = "job description", token: str = "") -> dict[str, Any]:
        """Admit a job; return its admission, for its participants. Raises ControlError.

        description: its description, TOML; source: where it is from, for errors.
        """
        return self._ask("admit", description=description, source=source, token=token)

    def evict(self, job_id: int, token: str = "") -> dict[str, Any]:
        """Evict a job; return the switches that are away, as `waiting`. Raises ControlError."""
        return self._ask("evict", job_id=job_id, token=token)

    def list(self) -> dict[str, Any]:
        """Return the epoch, the switches and the admitted jobs. Raises ControlError."""
        return self._ask("list")

    def _ask(self, call: str, **values: object) -> dict[str, Any]:
        """Return the primary's response."""
        deadline = monotonic() + self._patience_s
        while True:
            errors = []
            for address in self._addresses:
                try:
                    return self._call(address, {"call": call, **values})
                except _OtherError as error:
                    errors.append(error)
            if not any(isinstance(error, _BackupError) for error in errors) or monotonic() >= deadline:
                raise ControlError(str(errors[-1]))
            sleep(_AGAIN_S)

    def _call(self, address: str, values: dict[str, object]) -> dict[str, Any]:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if len(encode_line(values)) > MAX_REQUEST_BYTES:
            raise ControlError(
                f"controller: a request has at most {MAX_REQUEST_BYTES:,} bytes; shorten the description"
            )
        try:
            require_tls("controller", host, self._identity)
            link, line = ask(
                (host, int(port)),
                values,
                connect_s=_CONNECT_S,
                answer_s=_ANSWER_S,
                identity=self._identity,
            )
        except TlsError as error:
            raise ControlError(str(error)) from None
        except ssl.SSLError as error:
            raise ControlError(
                f"controller: {address}: TLS failed ({tls_reason(error)}); check that both ends' "
                "certificates are of one CA, valid today, and the controller's for this host"
            ) from None
        except OSError:
            raise _OtherError(_nobody(address)) from None
        with closing(link):
            try:
                response = decode_line(line)
            except ValueError:
                raise _OtherError(_nobody(address)) from None
        if "error" in response:
            raise (_BackupError if response.get("backup") else ControlError)(str(response["error"]))
        return response


class _OtherError(Exception):
    """This controller does not answer; another may."""


class _BackupError(_OtherError):
    """This controller is a backup, which may become the primary."""


def _nobody(address: str) -> str:
    return f"controller: nothing answers at {address}; is `peelsum controller run` running there?"


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
