"""Ask a controller to start a job, and hold the lease on it: the open connection of the request."""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import suppress
from typing import Any

from peelsum.requests import ask
from peelsum.tls import TlsIdentity, require_tls
from peelsum.wire.datagrams import Address

#: How long the connection to a controller may take, in seconds.
CONNECT_S = 30.0
#: Seconds without a response after which the wait is logged.
_TELL_AFTER_S = 2.0
_log = logging.getLogger("peelsum")


class Lease:
    """A lease on a job: until `close`, no other process may start the job. `response` is the controller's."""

    def __init__(
        self,
        controller: Address,
        patience_s: float,
        *,
        identity: TlsIdentity | None = None,
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
        require_tls("controller", controller[0], identity, "set PEELSUM_TLS to a folder")
        request: dict[str, Any] = {"call": "start", "process": os.getpid()}
        request |= {"token": token} if token else {}
        request |= {"ranks": ranks} if ranks is not None else {}
        waiting = "controller %s:%d: admits the job; waiting up to %g s"
        told = threading.Timer(_TELL_AFTER_S, _log.warning, (waiting, *controller, patience_s))
        told.daemon = True
        told.start()
        try:
            self._link, response = ask(
                controller, request, connect_s=CONNECT_S, answer_s=patience_s, identity=identity
            )
        finally:
            told.cancel()
        self.response = response.decode()

    def close(self) -> None:
        """End the lease; in a forked child, do nothing."""
        with suppress(OSError):  # the controller may have closed it first
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()
