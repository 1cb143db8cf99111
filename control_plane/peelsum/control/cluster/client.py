"""A client of a cluster's controllers, and a comparison of the desired jobs with those on the switches."""

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
from peelsum.control.tables import SwitchStatus, read_status
from peelsum.requests import MAX_REQUEST_BYTES, ask, decode_line, encode_line
from peelsum.tls import TlsError, TlsIdentity, require_tls
from peelsum.tls.identity import tls_reason

#: Seconds to wait for a primary if only a backup answers, which takes over within a few polls.
_PATIENCE_S = 10.0
_RETRY_S = 0.2
#: The time limit of a response: a switch may have to compile its pipeline before a job is admitted.
_ANSWER_S = 600.0
_CONNECT_S = 4.0


class ControllerClient:
    """A client of a cluster's controllers, which sends requests to the one that is the primary."""

    def __init__(
        self,
        addresses: Sequence[str],
        identity: TlsIdentity | None = None,
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """addresses: the controllers', each host:port. identity: this client's certificate.

        patience_s: seconds to wait for a primary if only a backup answers.
        """
        self._addresses, self._identity, self._patience_s = tuple(addresses), identity, patience_s

    def admit(self, description: str, source: str = "job description", token: str = "") -> dict[str, Any]:
        """Admit a job; return its admission. Raises ControlError.

        description: TOML. source: where the description is from, for errors. token: what later changes of
        the job need.
        """
        return self._send_to_primary("admit", description=description, source=source, token=token)

    def evict(self, job_id: int, token: str = "") -> dict[str, Any]:
        """Evict a job; return the switches that did not answer, as `waiting`. Raises ControlError."""
        return self._send_to_primary("evict", job_id=job_id, token=token)

    def list(self) -> dict[str, Any]:
        """Return the primary's epoch, its switches and the admitted jobs. Raises ControlError."""
        return self._send_to_primary("list")

    def _send_to_primary(self, call: str, **values: object) -> dict[str, Any]:
        """Send a request to each controller until one responds as the primary; return the response."""
        deadline = monotonic() + self._patience_s
        while True:
            errors = []
            for address in self._addresses:
                try:
                    return self._send(address, {"call": call, **values})
                except _UnavailableError as error:
                    errors.append(error)
            if not any(isinstance(error, _BackupError) for error in errors) or monotonic() >= deadline:
                raise ControlError(str(errors[-1]))
            sleep(_RETRY_S)

    def _send(self, address: str, values: dict[str, object]) -> dict[str, Any]:
        """Send a request to one controller; return the response. Raises ControlError or _UnavailableError."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if len(encode_line(values)) > MAX_REQUEST_BYTES:
            raise ControlError(
                f"controller: a request has at most {MAX_REQUEST_BYTES:,} bytes; shorten the description"
            )
        try:
            require_tls("controller", host, self._identity)
            connection, line = ask(
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
            raise _UnavailableError(_no_answer(address)) from None
        with closing(connection):
            try:
                response = decode_line(line)
            except ValueError:
                raise _UnavailableError(_no_answer(address)) from None
        if "error" in response:
            raise (_BackupError if response.get("backup") else ControlError)(str(response["error"]))
        return response


class _UnavailableError(Exception):
    """This controller does not answer. Another one may."""


class _BackupError(_UnavailableError):
    """This controller is a backup. It may become the primary."""


def _no_answer(address: str) -> str:
    return f"controller: nothing answers at {address}; is `peelsum controller run` running there?"


@dataclass(frozen=True)
class ObservedSwitch:
    """A switch, according to the controller and to the switch itself."""

    p4runtime: str
    """The address, host:port."""
    device_id: int
    """The device_id."""
    state: str
    """The controller's view: `up`, or why it cannot use the switch."""
    status: SwitchStatus | None
    """The state that the switch itself reports; None if it does not answer this client."""
    trouble: str
    """Why the switch does not answer this client; empty if it does."""


@dataclass(frozen=True)
class ObservedJob:
    """A job on one of its switches."""

    job_id: int
    """The job's number."""
    p4runtime: str
    """The switch's address."""
    device_id: int
    """The switch's device_id."""
    desired: int | None
    """The generation that the controller has admitted; None if the job is not admitted."""
    actual: int | None
    """The generation on the switch; None if the job is not open there, or the switch does not answer."""
    state: str
    """The job's state at the controller; empty if the job is not admitted."""

    @property
    def agrees(self) -> bool:
        """Whether the switch has the job in the desired generation."""
        return self.desired == self.actual


@dataclass(frozen=True)
class ClusterReport:
    """The desired and the observed state of a cluster."""

    address: str
    """The address of the primary controller, host:port."""
    epoch: int
    """The number of changes of the primary."""
    switches: tuple[ObservedSwitch, ...]
    """The switches of the cluster."""
    jobs: tuple[ObservedJob, ...]
    """All jobs, on each switch that has the job or should have it."""


def observe_cluster(listed: Mapping[str, Any], identity: TlsIdentity | None = None) -> ClusterReport:
    """Read the status of every switch of a cluster, and compare it with the controller's desired jobs.

    listed: what `ControllerClient.list` returned. identity: this client's, of role viewer or operator.
    A switch that does not answer is no error.
    """
    switches = tuple(_observe_switch(switch, identity) for switch in listed["switches"])
    jobs = tuple(job for switch in switches for job in _observe_jobs(switch, listed["jobs"]))
    return ClusterReport(
        listed["address"], listed["epoch"], switches, tuple(sorted(jobs, key=lambda job: job.job_id))
    )


def _observe_switch(listed: Mapping[str, Any], identity: TlsIdentity | None) -> ObservedSwitch:
    """Read the status of a switch that a controller has listed."""
    tofino = TofinoSection.model_validate(listed["tofino"]) if listed["tofino"] else None
    place, status, trouble = (listed["p4runtime"], listed["device_id"]), None, ""
    try:
        with open_session(*place, tofino, identity=identity) as session:
            status = read_status(session)
    except ControlError as error:
        trouble = str(error)
    return ObservedSwitch(*place, listed["state"], status, trouble)


def _observe_jobs(switch: ObservedSwitch, listed: list[Mapping[str, Any]]) -> Iterator[ObservedJob]:
    """Yield the jobs that a switch has or should have."""
    place = (switch.p4runtime, switch.device_id)
    actual = {job.job_id: job.generation for job in switch.status.jobs} if switch.status else {}
    desired_jobs = {
        job["job_id"]: job for job in listed if place in zip(job["switches"], job["device_ids"], strict=True)
    }
    for job_id in sorted(actual.keys() | desired_jobs.keys()):
        desired = desired_jobs.get(job_id)
        generation, state = (desired["generation"], desired["state"]) if desired else (None, "")
        yield ObservedJob(job_id, *place, generation, actual.get(job_id), state)
