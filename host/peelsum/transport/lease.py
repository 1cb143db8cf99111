"""Ask a controller over TCP to start a job: one line each way, then an open connection.

The open connection is the lease on the job. It ends with the process that holds it, however that ends.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import ssl
import threading
from contextlib import suppress
from typing import NamedTuple

from peelsum.forks import keep_from_children
from peelsum.reading import MOST_BYTES
from peelsum.tls import Identity, require_tls
from peelsum.tls.identity import CLOSED_EARLY
from peelsum.tls.tokens import LONGEST_TOKEN
from peelsum.wire.datagrams import Address

#: The longest request, in bytes, with its line end.
LONGEST_REQUEST = 48 + LONGEST_TOKEN
#: How long the connection to a controller may take, in seconds.
CONNECT_S = 30.0
#: Seconds without a response after which the wait is logged.
_TELL_AFTER_S = 2.0
_log = logging.getLogger("peelsum")
_REQUEST = re.compile(
    rb"peelsum start ([0-9]{1,10})(?: for ([0-9]{1,4}) ranks)?(?: ([\w-]{16,%d}))?" % LONGEST_TOKEN, re.ASCII
)


class Request(NamedTuple):
    """A client's request to a controller, to start the job."""

    process: int
    """The client's process id."""
    token: str
    """The job's token; empty if the client has none."""
    ranks: int | None = None
    """The number of workers, for a further group's job; None for the job that is described."""


class Lease:
    """A lease on a job: until `close`, no other process may start the job. `response` is the controller's."""

    def __init__(
        self,
        controller: Address,
        patience_s: float,
        *,
        identity: Identity | None = None,
        token: str = "",
        ranks: int | None = None,
    ) -> None:
        """Request a start.

        ranks: request a job for a further group of so many ranks; None requests the job that is described.
        identity: this worker's certificate, without which only controllers on loopback are asked.
        token: the job's.
        Raises OSError if there is no connection within CONNECT_S, if the controller, which may have to
        compile, does not respond within `patience_s` seconds, or if one end refuses the other's certificate;
        TlsError if an identity is missing.
        """
        host = controller[0]
        group = "" if ranks is None else f" for {ranks} ranks"
        require_tls("controller", host, identity, "set PEELSUM_TLS to a folder")
        self._link = socket.create_connection(controller, CONNECT_S)
        self._link.settimeout(patience_s)  # for the handshake, too: the controller may be busy
        if identity is not None:
            try:
                self._link = identity.context(server=False).wrap_socket(self._link, server_hostname=host)
            except (ssl.SSLEOFError, ConnectionError):
                self._link.close()
                raise ConnectionAbortedError(errno.ECONNABORTED, CLOSED_EARLY) from None
            except BaseException:
                self._link.close()
                raise
        keep_from_children(self._link)
        waiting = "controller %s:%d: admits the job; waiting up to %g s"
        told = threading.Timer(_TELL_AFTER_S, _log.warning, (waiting, *controller, patience_s))
        told.daemon = True
        told.start()
        try:
            self._link.sendall(f"peelsum start {os.getpid()}{group} {token}".rstrip().encode() + b"\n")
            with self._link.makefile(encoding="utf-8") as lines:
                self.response = lines.readline(MOST_BYTES)
            if identity is not None and not self.response:
                raise ssl.SSLZeroReturnError
        except ConnectionError:
            self.close()
            if identity is None:
                raise
            # A refused certificate ends the connection, perhaps by a reset that overtakes the alert.
            raise ssl.SSLZeroReturnError from None
        except BaseException:
            self.close()
            raise
        finally:
            told.cancel()

    def close(self) -> None:
        """End the lease; in a forked child, do nothing."""
        with suppress(OSError):  # the controller may have closed it first
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()


def parsed_request(line: bytes) -> Request | None:
    """Return the request in a line (without its line end), or None if it is not one."""
    request = _REQUEST.fullmatch(line)
    if request is None:
        return None
    return Request(int(request[1]), (request[3] or b"").decode(), int(request[2]) if request[2] else None)
