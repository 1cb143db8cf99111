"""Requests to a controller: a JSON object in a line each way, over TCP or TLS.

After a start, the open connection is the lease on the job. It ends with the process that holds it, however
that ends.
"""

from __future__ import annotations

import errno
import json
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from peelsum.forks import keep_from_children
from peelsum.reading import parse_json
from peelsum.tls import Identity
from peelsum.tls.identity import CLOSED_EARLY, closed_early

#: Bytes of the longest request and response, with their line ends.
LONGEST_REQUEST, LONGEST_RESPONSE = 1 << 20, 16 << 20
#: What each call's request may contain beside `call`, with the type of each value; `token` may be left out.
CALLS: Mapping[str, Mapping[str, type]] = {
    "start": {"process": int, "ranks": int, "token": str},
    "admit": {"description": str, "source": str, "token": str},
    "evict": {"job_id": int, "token": str},
    "list": {},
}
_OPTIONAL = {"ranks", "token", "source"}


def encoded(values: Mapping[str, Any]) -> bytes:
    """Return an object as a line."""
    return json.dumps(values).encode() + b"\n"


def decoded(line: bytes) -> dict[str, Any]:
    """Return the object in a line. Raises ValueError for anything else."""
    values = parse_json(line, LONGEST_RESPONSE)
    if not isinstance(values, dict):
        raise ValueError("is not a JSON object")
    return values


def parsed_request(line: bytes) -> dict[str, Any] | None:
    """Return the request in a line: `call` and its values, of the right types; None if it is not one."""
    try:
        values = decoded(line)
    except ValueError:
        return None
    call = values.get("call")
    fields = CALLS.get(call) if isinstance(call, str) else None
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
    identity: Identity | None,
) -> tuple[socket.socket, bytes]:
    """Send a request; return the connection and the line of the response, empty if the other end closed it.

    connect_s, answer_s: seconds for the connection, and for the response, the TLS handshake included.
    identity: the client's, for TLS. Raises OSError if there is no connection or no response in time, or if
    one end refuses the other's certificate.
    """
    link = socket.create_connection(controller, connect_s)
    try:
        link.settimeout(answer_s)
        if identity is not None:
            link = _secured(link, identity, controller[0])
        keep_from_children(link)
        return link, _response(link, encoded(values), secured=identity is not None)
    except BaseException:
        link.close()
        raise


def _secured(link: socket.socket, identity: Identity, host: str) -> ssl.SSLSocket:
    try:
        return identity.context(server=False).wrap_socket(link, server_hostname=host)
    except OSError as error:
        if not closed_early(error):
            raise
        raise ConnectionAbortedError(errno.ECONNABORTED, CLOSED_EARLY) from None


def _response(link: socket.socket, request: bytes, *, secured: bool) -> bytes:
    try:
        link.sendall(request)
        with link.makefile("rb") as lines:
            response = lines.readline(LONGEST_RESPONSE)
    except ConnectionError:
        if not secured:
            raise
        response = b""
    if secured and not response:
        # A refused certificate ends the connection, perhaps by a reset that overtakes the alert.
        raise ssl.SSLZeroReturnError
    return response
