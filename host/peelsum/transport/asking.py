"""How a job's rank 0 asks a controller to start the job, over TCP: a line each way, then an open connection.

The connection is the claim to the job: whoever holds it open trains, however the holder ends. Refuses to know
what a start is.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from contextlib import suppress

from peelsum.wire.datagrams import Address

#: A longer first line is no request.
LONGEST_REQUEST = 64
#: Seconds without an answer after which the wait is talked of.
_TELL_AFTER_S = 2.0
_log = logging.getLogger("peelsum")
_REQUEST = re.compile(rb"peelsum start ([0-9]{1,10})")


class Claim:
    """A job that was asked for, and the controller's `answer`. Until `close`, nobody else may start it."""

    def __init__(self, controller: Address, patience_s: float) -> None:
        """Raises OSError if nobody answers there within so many seconds."""
        self._link = socket.create_connection(controller, patience_s)
        waiting = "controller %s:%d: admits the job; waiting up to %g s"
        told = threading.Timer(_TELL_AFTER_S, _log.warning, (waiting, *controller, patience_s))
        told.daemon = True
        told.start()
        try:
            self._link.sendall(f"peelsum start {os.getpid()}\n".encode())
            with self._link.makefile(encoding="utf-8") as lines:
                self.answer = lines.readline()
        except BaseException:
            self.close()
            raise
        finally:
            told.cancel()

    def close(self) -> None:
        """Give the job up. Forked processes that have the connection, too, keep it no longer."""
        with suppress(OSError):  # the controller has gone first
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()


def asking_process(line: bytes) -> int | None:
    """The number of the process whose request this is, without its line's end; None if it is none."""
    request = _REQUEST.fullmatch(line)
    return int(request[1]) if request else None
