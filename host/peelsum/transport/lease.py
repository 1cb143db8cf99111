"""Ask a controller over TCP to start a job: one line each way, then an open connection.

The open connection is the lease on the job. It ends with the process that holds it, however that ends.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from contextlib import suppress

from peelsum.wire.datagrams import Address

#: The longest request, in bytes.
LONGEST_REQUEST = 64
#: Seconds without a response after which the wait is logged.
_TELL_AFTER_S = 2.0
_log = logging.getLogger("peelsum")
_REQUEST = re.compile(rb"peelsum start ([0-9]{1,10})")


class Lease:
    """A lease on a job: until `close`, no other process may start the job. `response` is the controller's."""

    def __init__(self, controller: Address, patience_s: float) -> None:
        """Request a start. Raises OSError if the controller does not respond within `patience_s` seconds."""
        self._link = socket.create_connection(controller, patience_s)
        waiting = "controller %s:%d: admits the job; waiting up to %g s"
        told = threading.Timer(_TELL_AFTER_S, _log.warning, (waiting, *controller, patience_s))
        told.daemon = True
        told.start()
        try:
            self._link.sendall(f"peelsum start {os.getpid()}\n".encode())
            with self._link.makefile(encoding="utf-8") as lines:
                self.response = lines.readline()
        except BaseException:
            self.close()
            raise
        finally:
            told.cancel()

    def close(self) -> None:
        """End the lease, also for forked processes that inherited the connection."""
        with suppress(OSError):  # the controller may have closed it first
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()


def requesting_process(line: bytes) -> int | None:
    """Return the process id in a request line (without its line end), or None if it is not a request."""
    request = _REQUEST.fullmatch(line)
    return int(request[1]) if request else None
