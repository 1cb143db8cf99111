"""Asks a cluster's primary controller, wherever it is among several addresses."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import closing
from time import monotonic, sleep
from typing import Any

from peelsum.control.errors import ControlError
from peelsum.requests import LONGEST_REQUEST, ask, decoded, encoded
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
        if len(encoded(values)) > LONGEST_REQUEST:
            raise ControlError(
                f"controller: a request has at most {LONGEST_REQUEST:,} bytes; shorten the description"
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
                response = decoded(line)
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
