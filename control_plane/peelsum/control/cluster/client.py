"""A client of a cluster's controllers, and a comparison of the desired jobs with those on the switches."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing
from time import monotonic, sleep
from typing import Any

from peelsum.addresses import parse_address
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
        host, port = parse_address(address)
        if len(encode_line(values)) > MAX_REQUEST_BYTES:
            raise ControlError(
                f"controller: a request has at most {MAX_REQUEST_BYTES:,} bytes; shorten the description"
            )
        try:
            require_tls("controller", host, self._identity)
            connection, line, _ = ask(
                (host, port),
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


def observe_cluster(listed: Mapping[str, Any], identity: TlsIdentity | None = None) -> dict[str, Any]:
    """Read the status of every switch of a cluster, and compare it with the controller's desired jobs.

    listed: what `ControllerClient.list` returned. identity: this client's, of role viewer or operator.
    A switch that does not answer is no error. Returns what `peelsum status --json` prints:

    - `primary`, `epoch`: the primary controller's address, and the number of changes of the primary.
    - `switches`: of each switch, `state`, the controller's view: `up`, or why it cannot use the switch;
      `lanes`, `slots` and `slots_in_use`, what the switch itself reports, or None; and `trouble`, why it does
      not answer.
    - `jobs`: of each job, on each switch that has it or should have it, `desired`, the generation that the
      controller has admitted, or None; `actual`, the generation on the switch, or None; `agrees`, whether
      both are the same; and `state`, the job's state at the controller.
    """
    switches, jobs = list[dict[str, Any]](), list[dict[str, Any]]()
    for switch in listed["switches"]:
        status, trouble = _read_status(switch, identity)
        observed = {name: getattr(status, name, None) for name in ("lanes", "slots", "slots_in_use")}
        place = {name: switch[name] for name in ("p4runtime", "device_id")}
        switches.append({**place, "state": switch["state"], "trouble": trouble, **observed})
        actual = {job.job_id: job.generation for job in status.jobs} if status else {}
        desired = {
            job["job_id"]: job
            for job in listed["jobs"]
            if tuple(place.values()) in zip(job["switches"], job["device_ids"], strict=True)
        }
        for job_id in sorted(actual.keys() | desired.keys()):
            job = desired.get(job_id, {"generation": None, "state": ""})
            both = {"desired": job["generation"], "actual": actual.get(job_id)}
            agrees = both["desired"] == both["actual"]
            jobs.append({"job_id": job_id, **place, **both, "state": job["state"], "agrees": agrees})
    jobs.sort(key=lambda job: int(job["job_id"]))
    return {"primary": listed["address"], "epoch": listed["epoch"], "switches": switches, "jobs": jobs}


def _read_status(switch: Mapping[str, Any], identity: TlsIdentity | None) -> tuple[SwitchStatus | None, str]:
    """Read the status of a switch that a controller has listed; return it, or None and why there is none."""
    tofino = TofinoSection.model_validate(switch["tofino"]) if switch["tofino"] else None
    try:
        with open_session(switch["p4runtime"], switch["device_id"], tofino, identity=identity) as session:
            return read_status(session), ""
    except ControlError as error:
        return None, str(error)
