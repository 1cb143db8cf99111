"""The election among clients: their election ids, and which stream is the primary and may write.

It follows section 5 of the P4Runtime specification for the default role, and runs without gRPC.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import RLock

from finsy.proto import U128, p4r, rpc_status

from peelsum.softswitch.p4runtime.status import Code, RequestError, code_number, invalid, unimplemented
from peelsum.softswitch.p4runtime.stream import ControllerStream

# Theory of operation.
# `highest` is the highest election id that streams have bid since the last time none was open.
#
#   a stream bids e             | then
#   ----------------------------+--------------------------------------------------------------
#   another stream holds e      | the bidding stream ends: INVALID_ARGUMENT
#   e >= highest                | it becomes the primary, highest = e, all are notified
#   e < highest, was primary    | there is no primary, all are notified
#   e < highest                 | it becomes a backup and is notified
#   no e                        | likewise: it can never be the primary
#
#   a stream ends               | then
#   ----------------------------+--------------------------------------------------------------
#   it was the primary          | there is none, all are notified; a bid of `highest` or more wins
#   it was the last             | highest is reset: a new controller need not know the old one's


class Arbiter:
    """The election among the open streams of one device."""

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._lock = RLock()
        self._open: set[ControllerStream] = set()
        self._bids: dict[ControllerStream, int] = {}
        self._primary: ControllerStream | None = None
        self._highest = 0

    def enter(self, stream: ControllerStream) -> None:
        """Add a stream that has opened and not bid yet."""
        with self._lock:
            self._open.add(stream)

    def bid(self, stream: ControllerStream, update: p4r.MasterArbitrationUpdate) -> None:
        """Handle a stream's arbitration message. Raises RequestError if the stream has to end."""
        if update.device_id != self._device_id:
            raise RequestError(
                Code.NOT_FOUND, f"device_id: no device {update.device_id}; this is device {self._device_id}"
            )
        if update.role.name or update.role.id:
            raise unimplemented(f"role {update.role.name or update.role.id}")
        election_id = U128.decode(update.election_id)
        with self._lock:
            if stream not in self._open:
                return  # it ended before its message was handled
            if election_id and any(
                held == election_id for other, held in self._bids.items() if other is not stream
            ):
                raise invalid(f"Election id {election_id} already exists; bid another")
            self._bids[stream] = election_id
            before = self._primary
            if election_id and election_id >= self._highest:
                self._primary, self._highest = stream, election_id
            elif self._primary is stream:
                self._primary = None
            changed = before is not self._primary or self._primary is stream
            self._tell(self._bids if changed else [stream])

    def leave(self, stream: ControllerStream) -> None:
        """Remove a stream that has ended."""
        with self._lock:
            self._open.discard(stream)
            self._bids.pop(stream, None)
            if self._primary is stream:
                self._primary = None
                self._tell(self._bids)
            if not self._bids:
                self._highest = 0

    @property
    def primary(self) -> ControllerStream | None:
        """The stream that may write and that receives PacketIns."""
        return self._primary

    def require_primary(self, election_id: p4r.Uint128, role: str) -> None:
        """Raise RequestError unless `election_id` is the primary's."""
        if role:
            raise unimplemented(f"role {role}")
        wanted = U128.decode(election_id)
        with self._lock:
            if self._primary is None or self._bids[self._primary] != wanted:
                raise RequestError(
                    Code.PERMISSION_DENIED,
                    f"election_id: {wanted} is not the primary's; bid for it on a stream first",
                )

    def _tell(self, streams: Iterable[ControllerStream]) -> None:
        for stream in streams:
            stream.send(p4r.StreamMessageResponse(arbitration=self._answer(stream)))

    def _answer(self, stream: ControllerStream) -> p4r.MasterArbitrationUpdate:
        if self._primary is stream:
            code, message = Code.OK, "you are the primary"
        elif self._primary is not None:
            code, message = Code.ALREADY_EXISTS, "you are a backup"
        else:
            code, message = Code.NOT_FOUND, "you are a backup, and there is no primary"
        return p4r.MasterArbitrationUpdate(
            device_id=self._device_id,
            election_id=U128.encode(self._highest),
            status=rpc_status.Status(code=code_number(code), message=message),
        )
