"""The open StreamChannels of controllers: messages that wait for each, and which one is the primary.

Arbitration follows section 5 of the P4Runtime specification, and does not depend on gRPC. The primary of each
role may write everything, because roles have no configuration. As in BMv2, everybody may write as long as no
controller has bid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Condition, Lock
from typing import NamedTuple

from finsy.proto import U128, p4r, rpc_status

from peelsum.softswitch.p4runtime.status import (
    Code,
    RequestError,
    denied,
    invalid,
    unimplemented,
)

#: Seconds in which a stream with the same election id may still end. A client that closes its stream and
#: opens another does not wait until the server knows of the end of the first.
ENDING_S = 1.0
#: Most messages, and most bytes, that may wait for a slow client. Beyond them, PacketIns and notifications
#: are dropped; beyond twice as many, the call is cancelled.
MOST_WAITING = 8192
MOST_BYTES = 16 << 20


class ControllerStream:
    """The server's end of a stream. Any thread may send; one thread iterates over `responses`.

    Messages that the client has not read wait here, up to a limit. Beyond it, PacketIns, digests and idle
    notifications are dropped, as in a port's queue. Other messages are answers that the client needs: for
    them the limit is twice as high, and beyond it the call is cancelled.
    """

    def __init__(
        self,
        cancel: Callable[[], object] = lambda: None,
        client_name: Callable[[], str] = lambda: "another client",
    ) -> None:
        """cancel: ends the call at once, even while a message is being sent. client_name: for messages."""
        self.client_name = client_name
        self._waiting: SimpleQueue[p4r.StreamMessageResponse | RequestError | None] = SimpleQueue()
        self._cancel = cancel
        self._lock = Lock()
        self._bytes = 0

    def send(self, response: p4r.StreamMessageResponse) -> None:
        """Queue a message; cancel the call if too much waits."""
        if not self._queue(response, 2):
            self.end()
            self._cancel()

    def send_or_drop(self, response: p4r.StreamMessageResponse) -> bool:
        """Queue a message that may be lost; return False if too much waits and it is dropped."""
        return self._queue(response, 1)

    def end(self, error: RequestError | None = None) -> None:
        """End the stream after the queued messages, with an error if one is given."""
        self._waiting.put(error)

    def responses(self) -> Iterator[p4r.StreamMessageResponse]:
        """Yield messages as they are queued, until the end. Raises the RequestError that ends the stream."""
        while True:
            item = self._waiting.get()
            if item is None:
                return
            if isinstance(item, RequestError):
                raise item
            with self._lock:
                self._bytes -= item.ByteSize()
            yield item

    def _queue(self, response: p4r.StreamMessageResponse, limit_factor: int) -> bool:
        """Queue a message; return False if `limit_factor` times the limits would be exceeded."""
        size = response.ByteSize()
        with self._lock:
            is_long = self._waiting.qsize() >= limit_factor * MOST_WAITING
            if is_long or self._bytes + size > limit_factor * MOST_BYTES:
                return False
            self._bytes += size
            self._waiting.put(response)
        return True


# Theory of operation.
# Each role has its own election. `highest` is the highest election id of all bids since the role had its
# first open stream.
#
#   a stream bids e             | then
#   ----------------------------+--------------------------------------------------------------
#   another stream holds e      | if that one does not end soon, the bidding stream ends: INVALID_ARGUMENT
#   e >= highest                | it becomes the primary, highest = e, all are notified
#   e < highest, was primary    | there is no primary, all are notified
#   e < highest                 | it becomes a backup and is notified
#   no e                        | likewise: it can never be the primary
#
#   a stream ends               | then
#   ----------------------------+--------------------------------------------------------------
#   it was the primary          | there is none, all are notified; a bid of `highest` or more wins
#   it was the last             | highest is reset: a new controller need not know the old one's


class _Role(NamedTuple):
    """A role as the specification has it: a name or, before version 1.4, a number."""

    name: str = ""
    number: int = 0

    def __str__(self) -> str:
        """Return how messages name the role."""
        if not self.number:
            return repr(self.name)
        return f"{self.name!r} with number {self.number}" if self.name else str(self.number)


_DEFAULT = _Role()


@dataclass
class _Election:
    bids: dict[ControllerStream, int] = field(default_factory=dict)
    primary: ControllerStream | None = None
    highest: int = 0


class Arbiter:
    """The elections of one device, one per role."""

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        #: Notified when a stream has ended.
        self._lock = Condition()
        #: The role of each open stream; None before its first bid.
        self._roles: dict[ControllerStream, _Role | None] = {}
        self._elections: defaultdict[_Role, _Election] = defaultdict(_Election)

    def open(self, stream: ControllerStream) -> None:
        """Add an open stream, which has not bid yet."""
        with self._lock:
            self._roles[stream] = None

    def bid(self, stream: ControllerStream, update: p4r.MasterArbitrationUpdate) -> None:
        """Handle a stream's arbitration message. Raises RequestError if the stream has to end.

        Waits for the end of another stream with this election id, at most for ENDING_S.
        """
        if update.device_id != self._device_id:
            raise RequestError(
                Code.NOT_FOUND, f"device_id: no device {update.device_id}; this is device {self._device_id}"
            )
        if update.role.HasField("config"):
            raise unimplemented("role with a config")
        role, election_id = _Role(update.role.name, update.role.id), U128.decode(update.election_id)
        with self._lock:
            if stream not in self._roles:
                return  # the stream ended before its message was handled
            if self._roles[stream] not in (None, role):
                raise invalid(f"role: {role}: this stream has another; open a stream for each role")
            self._roles[stream] = role
            if not self._lock.wait_for(lambda: self._holder(role, election_id, stream) is stream, ENDING_S):
                name = self._holder(role, election_id, stream).client_name()
                raise invalid(f"Election id {election_id} already exists, of {name}; bid another")
            if stream not in self._roles:
                return
            election = self._elections[role]
            election.bids[stream] = election_id
            previous_primary = election.primary
            if election_id and election_id >= election.highest:
                election.primary, election.highest = stream, election_id
            elif election.primary is stream:
                election.primary = None
            is_changed = previous_primary is not election.primary or election.primary is stream
            self._notify(role, election.bids if is_changed else [stream])

    def _holder(self, role: _Role, election_id: int, stream: ControllerStream) -> ControllerStream:
        """Return the other stream that has bid this number, or `stream` if there is none."""
        bids = self._elections[role].bids if election_id and role in self._elections else {}
        return next((other for other, bid in bids.items() if bid == election_id), stream)

    def close(self, stream: ControllerStream) -> None:
        """Remove a stream that has ended."""
        with self._lock:
            role = self._roles.pop(stream, None)
            if role is None:
                return
            election = self._elections[role]
            election.bids.pop(stream, None)
            self._lock.notify_all()
            if election.primary is stream:
                election.primary = None
                self._notify(role, election.bids)
            if not election.bids:
                del self._elections[role]

    def is_primary(self, stream: ControllerStream) -> bool:
        """Return whether a stream is the primary of its role."""
        with self._lock:
            return any(election.primary is stream for election in self._elections.values())

    @property
    def packet_receivers(self) -> list[ControllerStream]:
        """The streams that get PacketIns: the primary of the default role, or without one all primaries.

        A controller that uses another role as a lock does not expect packets there.
        """
        with self._lock:
            primaries = {role: election.primary for role, election in self._elections.items()}
        if (default := primaries.get(_DEFAULT)) is not None:
            return [default]
        return [primary for primary in primaries.values() if primary is not None]

    def require_primary(self, request: p4r.WriteRequest | p4r.SetForwardingPipelineConfigRequest) -> None:
        """Raise RequestError unless the request's election id is that of its role's primary.

        If no stream has bid, requests without an election id and a role are permitted, as in BMv2.
        """
        requested_id = U128.decode(request.election_id)
        role = _Role(request.role, request.role_id)
        with self._lock:
            if not self._elections and role == _DEFAULT and not request.HasField("election_id"):
                return
            election = self._elections.get(role)
            if election is None and role != _DEFAULT:
                raise denied(f"role: no stream has bid for role {role}; bid for it with this role first")
            if (
                election is None
                or election.primary is None
                or election.bids[election.primary] != requested_id
            ):
                raise denied(
                    f"election_id: {requested_id} is not the primary's; bid for it on a stream first"
                )

    def _notify(self, role: _Role, streams: Iterable[ControllerStream]) -> None:
        """Tell streams whether they are the primary of a role."""
        election = self._elections[role]
        for stream in streams:
            if election.primary is stream:
                code, message = Code.OK, "you are the primary"
            elif election.primary is not None:
                code, message = Code.ALREADY_EXISTS, "you are a backup"
            else:
                code, message = Code.NOT_FOUND, "you are a backup, and there is no primary"
            update = p4r.MasterArbitrationUpdate(
                device_id=self._device_id,
                role=None if role == _DEFAULT else p4r.Role(name=role.name, id=role.number),
                election_id=U128.encode(election.highest),
                status=rpc_status.Status(code=code.value[0], message=message),
            )
            stream.send(p4r.StreamMessageResponse(arbitration=update))
