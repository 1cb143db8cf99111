"""Ask a controller to start a job, or to let a rank join its run, and hold the lease: the open connection.

By the leases the controller knows which ranks live. It notifies the others as soon as one is lost.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from peelsum.requests import ask, decode_line, encode_line
from peelsum.tls import TlsIdentity, require_tls
from peelsum.transport.errors import TransportError
from peelsum.wire.datagrams import Address

#: How long the connection to a controller may take, in seconds.
CONNECT_S = 30.0
#: Seconds without a response after which the wait is logged.
_TELL_AFTER_S = 2.0
#: The largest message of a controller, in bytes, and how much is read at once.
_MAX_MESSAGE_BYTES, _READ_BYTES = 1 << 20, 1 << 14
#: How much of an error is reported. A quotation mark takes two bytes, and controllers take lines of 1 KiB.
_MAX_REASON_CHARACTERS = 400
#: A step that is never reached.
_NEVER = 1 << 62
_log = logging.getLogger("peelsum")


@dataclass(frozen=True)
class LostRank:
    """A rank whose connection to the controller was closed."""

    rank: int
    """The rank, as it was at the start of the run."""
    process: int
    """Its process id."""
    host: str
    """The address of its host."""
    reason: str = ""
    """Its error, if it has reported one."""

    def __str__(self) -> str:
        name = f"rank {self.rank} (process {self.process} of {self.host})"
        return f"{name} has failed: {self.reason}" if self.reason else name


@dataclass(frozen=True)
class Generation:
    """A further generation of a run, whose workers are the ranks that are left."""

    admission: Mapping[str, Any]
    """The job's admission, for `job_config`."""
    members: tuple[int, ...]
    """The ranks, as they were at the start of the run; worker i is rank members[i]."""
    completed: tuple[int, ...]
    """The number of sums that each of them has completed; of those that enter, the largest of these."""
    entered: tuple[int, ...]
    """The ranks that enter in this generation."""
    switch: tuple[str, ...] = ()
    """The address of each rank's switch port, HOST:PORT, in the order of the ranks at the start."""
    wire: str = "udp-port"
    """The kind of connection, as for `SwitchSummation`."""

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Generation:
        """Return the generation in a message. Raises TransportError if it is malformed."""
        try:
            names = ("members", "completed", "entered")
            members, completed, entered = (tuple(map(int, message[name])) for name in names)
            if len(members) == len(completed):
                addresses, wire = tuple(map(str, message["switch"])), str(message.get("wire", "udp-port"))
                return cls(message["admission"], members, completed, entered, addresses, wire)
            reason = "members and sums differ in number"
        except (KeyError, TypeError, ValueError) as error:
            reason = repr(error)
        raise TransportError(f"controller: sent a malformed message ({reason})")


class RankLostError(TransportError):
    """Another rank of the run was lost: its connection to the controller was closed."""

    def __init__(self, lost: Sequence[LostRank], waiting: str) -> None:
        """lost: the ranks; empty if they have left. waiting: what this rank waited for, for the message."""
        self.lost, self.waiting = tuple(lost), waiting
        if failed := [rank for rank in self.lost if rank.reason]:
            super().__init__(f"{waiting}: {'; '.join(map(str, failed))}")
            return
        names = ", ".join(map(str, self.lost)) or "a rank that has left"
        was, it = ("were", "the processes") if len(self.lost) > 1 else ("was", "the process")
        super().__init__(
            f"{waiting}: {names} {was} lost; see in the output and the kernel's log there why {it} ended, "
            "then start all ranks again from a checkpoint"
        )

    def during(self, step: str) -> RankLostError:
        """Return the same error with the step in its message."""
        return RankLostError(self.lost, f"{self.waiting}, {step}")


class RankEntersError(TransportError):
    """A rank enters while this one leaves: the others wait for this rank's report, see `Lease.report`."""


class Lease:
    """A rank's lease in a run of a job: until it is closed, the run counts on the rank.

    That of rank 0 is also the lease on the job: no other process may start it. `response` is the controller's
    to the request.
    """

    def __init__(
        self,
        controller: Address,
        patience_s: float,
        *,
        identity: TlsIdentity | None = None,
        token: str = "",
        connect_s: float = CONNECT_S,
        **request: Any,
    ) -> None:
        """Request a start, or to join.

        request: the fields of the request other than its process. `ranks` requests a job for a further group
        of so many ranks; without it, the job that is described is requested. `rank` and `run` let this rank
        join the run whose start had that `run` in its response; `call="enter"` a run that goes on.
        identity: this worker's certificate, without which only controllers on loopback are asked.
        token: the job's.
        Raises OSError if there is no connection within `connect_s`, if the controller, which may have to
        compile, does not respond within `patience_s` seconds, or if one end refuses the other's certificate;
        TlsError if an identity is missing.
        """
        require_tls("controller", controller[0], identity, "set PEELSUM_TLS to a folder")
        fields = {name: value for name, value in request.items() if value is not None}
        values = {
            "call": "join" if "run" in fields else "start",
            "process": os.getpid(),
            **fields,
            **({"token": token} if token else {}),
        }
        waiting = "controller %s:%d: admits the job; waiting up to %g s"
        waiting_timer = threading.Timer(_TELL_AFTER_S, _log.warning, (waiting, *controller, patience_s))
        waiting_timer.daemon = True
        waiting_timer.start()
        try:
            self._link, response, received = ask(
                controller, values, connect_s=connect_s, answer_s=patience_s, identity=identity
            )
        finally:
            waiting_timer.cancel()
        self.response = response.decode()
        self._received = b""
        self._messages: list[dict[str, Any]] = []
        self._ended = False
        #: The last step that has begun, which is reported when a rank enters.
        self._step = -1
        #: Whether a rank enters before a step that is not known yet; that step, once it is known; and the
        #: number of that change.
        self._step_is_due, self._entry_step, self._entry_change = False, _NEVER, 0
        #: Held while messages are read: several threads may wait for sums and begin steps.
        self._lock = threading.RLock()
        self._arrived = select.poll()
        self._arrived.register(self._link, select.POLLIN)
        self._take(received)

    def check(self, waiting: str, *, leaving: bool = False) -> None:
        """Raise RankLostError if the controller has reported a loss, or TransportError if it has gone.

        A rank that has left is reported, too. If `leaving`, this rank has all its sums: then neither that
        nor the end of the connection is an error, but RankEntersError is raised if a rank enters. waiting:
        what this rank waits for, as the begin of the message. It takes a microsecond.
        """
        if not self._lock.acquire(blocking=False):
            return  # another thread reads the messages, and this one checks again soon
        try:
            if self._arrived.poll(0):
                self._receive(0.0)
            if leaving and self._entry_step < _NEVER:
                self._entry_step = _NEVER
                raise RankEntersError("member: a rank enters while this one leaves")
            for message in self._messages:
                if message.get("lost") or ("lost" in message and not leaving):
                    raise RankLostError(_lost_ranks(message), waiting)
            if not leaving and (self._messages or self._ended):
                self._require_connection()
        finally:
            self._lock.release()

    @property
    def is_withdrawn(self) -> bool:
        """Whether the controller has sent why this rank is no longer a member, or a new generation.

        A rank that leaves need not enter that: all others have reported that they have all results.
        """
        return any("end" in message or "members" in message for message in self._messages)

    def report(self, sums: int, chunk: int) -> None:
        """Report as `agree` does when ranks enter, but do not wait for the generation."""
        self.send(call="completed", change=self._entry_change, sums=sums, chunk=chunk)

    def begin_step(self, step: int, patience_s: float) -> bool:
        """Return whether ranks enter before this step; then call `agree` before its first sum.

        If a rank enters and the controller has not told before which step, wait for that up to `patience_s`
        seconds. Raises TransportError.
        """
        with self._lock:
            if self._arrived.poll(0):
                self._receive(0.0)
            deadline = time.monotonic() + patience_s
            if self._step_is_due:
                self.send(call="waiting", change=self._entry_change)
            while self._step_is_due and not any("lost" in message for message in self._messages):
                self._require_connection()
                if (left_s := deadline - time.monotonic()) <= 0:
                    raise TransportError(f"controller: no answer in {patience_s:g} s when a rank entered")
                self._receive(left_s)
            self._step = step
            if step < self._entry_step:
                return False
            self._entry_step = _NEVER
            return True

    def agree(self, sums: int, chunk: int, patience_s: float, *, entry: bool = False) -> Generation:
        """Report the number of completed sums after a loss; return the generation of those that are left.

        chunk: the id of the first chunk that this rank has not submitted. entry: whether ranks enter.
        Further losses in the meantime are answered by the same numbers. Raises TransportError if there is no
        generation within `patience_s` seconds, or if it has this rank no more.
        """
        deadline, report = time.monotonic() + patience_s, {"sums": sums, "chunk": chunk}
        change = self._entry_change if entry else 0
        with self._lock:
            if entry:
                self.send(call="completed", change=change, **report)
            while True:
                message = self.next_message(deadline - time.monotonic())
                if "lost" in message:
                    change = message.get("change", 0)
                    self.send(call="completed", change=change, **report)
                elif message.get("change") == change and "members" in message:
                    return Generation.of(message)

    def enter(self, rank: int, patience_s: float) -> Generation:
        """Enter the run, now that this process is ready to sum; return the generation that has it.

        The others wait for this process from now on. Raises TransportError.
        """
        deadline = time.monotonic() + patience_s
        self.send(call="ready")
        while True:
            message = self.next_message(deadline - time.monotonic())
            if "members" in message and rank in (generation := Generation.of(message)).members:
                return generation

    def leave(self) -> None:
        """Report that this rank has completed all its sums, so that its end is no loss."""
        self.send(call="leave")

    def fail(self, reason: str) -> None:
        """Report the error for which this rank leaves a run that does not survive losses."""
        characters = [c if c.isascii() and c.isprintable() else "?" for c in " ".join(reason.split())]
        self.send(call="failed", reason="".join(characters[:_MAX_REASON_CHARACTERS]))

    def send(self, **message: Any) -> None:
        """Send a message to the controller; do nothing if it has gone."""
        with suppress(OSError):
            self._link.sendall(encode_line(message))

    def next_message(self, timeout_s: float) -> dict[str, Any]:
        """Return the controller's next message, which may take up to `timeout_s` seconds.

        Raises TransportError if there is none, or if the controller has gone.
        """
        deadline = time.monotonic() + timeout_s
        self._require_connection()
        while not self._messages:
            self._receive(left_s := deadline - time.monotonic())
            self._require_connection()
            if left_s <= 0 and not self._messages:
                raise TransportError(
                    f"controller: no answer in {timeout_s:g} s; see whether `peelsum job serve` is running"
                )
        return self._messages.pop(0)

    def close(self) -> None:
        """End the lease; in a forked child, do nothing."""
        with suppress(OSError):  # the controller may have closed it first
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()

    def _receive(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for data, and read the messages that have arrived."""
        pending = isinstance(self._link, ssl.SSLSocket) and self._link.pending()
        if not pending and not self._arrived.poll(max(0.0, 1000 * timeout_s)):
            return
        self._link.setblocking(False)
        try:
            data = self._link.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError:
            data = b""
        finally:
            self._link.settimeout(CONNECT_S)
        self._ended |= not data
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Handle the messages that are complete with these bytes; end the lease if one is none."""
        *lines, self._received = (self._received + data).split(b"\n")
        try:
            for line in lines:
                self._handle(decode_line(line))
        except (KeyError, TypeError, ValueError):
            self._ended = True
        self._ended |= len(self._received) > _MAX_MESSAGE_BYTES

    def _handle(self, message: dict[str, Any]) -> None:
        """Answer a message about a rank that enters; store any other."""
        if "entering" in message:
            self._step_is_due, self._entry_change = True, int(message["change"])
            self.send(call="step", change=self._entry_change, step=self._step)
        elif "before_step" in message:
            self._step_is_due, self._entry_step = False, int(message["before_step"])
        else:
            if "lost" in message:  # the controller begins the entry again after this change
                self._step_is_due, self._entry_step = False, _NEVER
            self._messages.append(message)

    def _require_connection(self) -> None:
        """Raise TransportError if the controller has closed the connection, with the reason it gave."""
        reasons = [str(message["end"]) for message in self._messages if "end" in message]
        if reasons:
            raise TransportError(f"member: this rank is no longer a member of its run: {reasons[0]}")
        if self._ended:
            raise TransportError(
                "controller: has closed the connection of this rank, so the run has ended; see whether "
                "`peelsum job serve` is running, and start all ranks again"
            )


def _lost_ranks(message: dict[str, Any]) -> list[LostRank]:
    """Return the ranks that a message reports as lost. Raises TransportError if it is malformed."""
    try:
        return [
            LostRank(int(rank["rank"]), int(rank["process"]), str(rank["host"]), str(rank.get("reason", "")))
            for rank in message["lost"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise TransportError(f"controller: sent a malformed message ({error!r})") from None
