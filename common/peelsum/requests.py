"""The protocol between a controller and its clients: one line of JSON in each direction, over TCP or TLS.

After a request `start`, `join` or `enter`, the open connection is a lease: rank 0's on the job, any other
rank's on its seat. The kernel closes it when the process that holds it ends, for whatever reason. Over this
connection the controller and the rank send each other further lines: `MESSAGE_FIELDS` has those of the rank.
"""

from __future__ import annotations

import errno
import json
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from peelsum.forks import close_in_forked_children
from peelsum.reading import parse_json
from peelsum.tls import TlsIdentity
from peelsum.tls.identity import CLOSED_EARLY, closed_early

#: Size limits of a request and of a response, including the line end.
MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES = 1 << 20, 16 << 20
#: How much of a response is read at once, in bytes.
_READ_BYTES = 1 << 20
#: The fields of each call's request beside `call`, with their types. Those in _OPTIONAL may be missing.
REQUEST_FIELDS: Mapping[str, Mapping[str, type]] = {
    "start": {"process": int, "ranks": int, "on_lost": str, "token": str},
    "join": {"process": int, "rank": int, "run": str, "token": str},
    "enter": {"process": int, "token": str},
    "admit": {"description": str, "source": str, "token": str},
    "evict": {"job_id": int, "token": str},
    "list": {},
}
_OPTIONAL = {"ranks", "on_lost", "token", "source"}
#: The fields of the lines that a rank sends on its open connection, in the same form.
MESSAGE_FIELDS: Mapping[str, Mapping[str, type]] = {
    "ready": {},
    "leave": {},
    "failed": {"reason": str},
    "step": {"change": int, "step": int},
    "waiting": {"change": int},
    "completed": {"change": int, "sums": int, "chunk": int},
    "stalled": {"silent": list},
}


def encode_line(values: Mapping[str, Any]) -> bytes:
    """Encode an object as a line of JSON."""
    return json.dumps(values).encode() + b"\n"


def decode_line(line: bytes) -> dict[str, Any]:
    """Decode the JSON object in a line. Raises ValueError if the line is not a JSON object."""
    values = parse_json(line, MAX_RESPONSE_BYTES)
    if not isinstance(values, dict):
        raise ValueError("is not a JSON object")
    return values


def parsed_request(
    line: bytes, calls: Mapping[str, Mapping[str, type]] = REQUEST_FIELDS
) -> dict[str, Any] | None:
    """Decode a request, which is `call` with the fields of that call; return None for an invalid line.

    calls: the fields of each call; `MESSAGE_FIELDS` for a line of a rank that has its lease.
    """
    try:
        values = decode_line(line)
    except ValueError:
        return None
    call = values.get("call")
    fields = calls.get(call) if isinstance(call, str) else None
    if fields is None or not fields.keys() - _OPTIONAL <= values.keys() <= {"call", *fields}:
        return None
    if any(type(values[name]) is not kind for name, kind in fields.items() if name in values):
        return None
    return values


def ask(
    controller: tuple[str, int],
    values: Mapping[str, Any],
    *,
    connect_s: float,
    answer_s: float,
    identity: TlsIdentity | None,
) -> tuple[socket.socket, bytes, bytes]:
    """Connect to a controller and send a request; return the open connection and the line of the response.

    The line is empty if the controller closed the connection without a response. The last item is what has
    already arrived of the lines after it.
    connect_s, answer_s: time limits in seconds of the connection, and of the TLS handshake and the response.
    identity: the client's certificate; None for a connection without TLS.
    Raises OSError if the connection fails, a time limit passes, or one end rejects the other's certificate.
    """
    connection = socket.create_connection(controller, connect_s)
    try:
        connection.settimeout(answer_s)
        if identity is not None:
            try:
                context = identity.context(server=False)
                connection = context.wrap_socket(connection, server_hostname=controller[0])
            except OSError as error:
                if not closed_early(error):
                    raise
                raise ConnectionAbortedError(errno.ECONNABORTED, CLOSED_EARLY) from None
        close_in_forked_children(connection)
        return connection, *_exchange(connection, encode_line(values), secured=identity is not None)
    except BaseException:
        connection.close()
        raise


def _exchange(connection: socket.socket, request: bytes, *, secured: bool) -> tuple[bytes, bytes]:
    """Send a request; return the line of the response, and what has already arrived after it.

    The line is empty if a plain connection was closed.
    """
    response, rest = b"", b""
    try:
        connection.sendall(request)
        while not response.endswith(b"\n") and len(response) < MAX_RESPONSE_BYTES:
            if not (data := connection.recv(_READ_BYTES)):
                break
            line, end, rest = data.partition(b"\n")
            response += line + end
    except ConnectionError:
        if not secured:
            raise
        response = b""
    if secured and not response:
        # A server that rejects the certificate closes the connection; a reset may overtake its TLS alert.
        raise ssl.SSLZeroReturnError
    return response, rest
