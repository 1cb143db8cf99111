"""Asks a cluster's primary controller by gRPC, wherever it is among several addresses.

Both ends encode messages as JSON objects, so no compiler is needed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from time import monotonic, sleep
from typing import Any

import grpc

from peelsum.control.errors import ControlError
from peelsum.reading import parse_json
from peelsum.tls import Identity, TlsError
from peelsum.tls.grpc_ends import open_channel

#: The gRPC service.
SERVICE = "peelsum.Controller"
#: Bytes of the largest request and response.
LONGEST_REQUEST, LONGEST_RESPONSE = 1 << 20, 16 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", LONGEST_RESPONSE),
    ("grpc.use_local_subchannel_pool", 1),
)
#: How long to look for a primary while a backup answers: it takes over within a few polls.
_PATIENCE_S = 10.0
_AGAIN_S = 0.2
#: A switch may have to build its pipeline before it takes a job.
_ANSWER_S = 600.0
_CONNECT_S = 4.0


def encoded(values: dict[str, Any]) -> bytes:
    """Return an object as a message."""
    return json.dumps(values).encode()


def decoded(message: bytes) -> dict[str, Any]:
    """Return a message's object. Raises ValueError for anything else."""
    values = parse_json(message, LONGEST_RESPONSE)
    if not isinstance(values, dict):
        raise ValueError("is not a JSON object")
    return values


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
        return self._ask("Admit", description=description, source=source, token=token)

    def evict(self, job_id: int, token: str = "") -> dict[str, Any]:
        """Evict a job; return the switches that are away, as `waiting`. Raises ControlError."""
        return self._ask("Evict", job_id=job_id, token=token)

    def list(self) -> dict[str, Any]:
        """Return the epoch, the switches and the admitted jobs. Raises ControlError."""
        return self._ask("List")

    def _ask(self, method: str, **values: object) -> dict[str, Any]:
        """Return the primary's response."""
        deadline = monotonic() + self._patience_s
        while True:
            errors = []
            for address in self._addresses:
                try:
                    return self._call(address, method, values)
                except _OtherError as error:
                    errors.append(error)
            if not any(error.backup for error in errors) or monotonic() >= deadline:
                raise ControlError(str(errors[-1]))
            sleep(_AGAIN_S)

    def _call(self, address: str, method: str, values: dict[str, object]) -> dict[str, Any]:
        with closing(self._channel(address)) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/{method}")
            try:
                grpc.channel_ready_future(channel).result(timeout=_CONNECT_S)
                return decoded(call(encoded(values), timeout=_ANSWER_S))
            except grpc.FutureTimeoutError:
                raise _OtherError(_nobody(address)) from None
            except grpc.RpcError as error:
                code = error.code()
                if code == grpc.StatusCode.UNAVAILABLE:
                    raise _OtherError(_nobody(address)) from None
                if code == grpc.StatusCode.ABORTED:
                    raise _OtherError(_told(error), backup=True) from None
                raise ControlError(_told(error)) from None

    def _channel(self, address: str) -> grpc.Channel:
        try:
            return open_channel("controller", address, self._identity, _OPTIONS, _CONNECT_S)
        except TlsError as error:
            raise ControlError(str(error)) from None


class _OtherError(Exception):
    """This controller does not answer, or is a backup: another may."""

    def __init__(self, message: str, *, backup: bool = False) -> None:
        super().__init__(message)
        self.backup = backup


def _nobody(address: str) -> str:
    return f"controller: nothing answers at {address}; is `peelsum controller run` running there?"


def _told(error: Any) -> str:
    return str(error.details() or error.code().name)
