"""A P4Runtime StreamChannel to a switch: arbitration, and packets through the switch's CPU port."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterable, Iterator
from threading import Thread
from time import monotonic

import grpc
from finsy.proto import U128, p4r, p4r_grpc, rpc_code

from peelsum.control.errors import NotPrimaryError, SwitchError, UnsupportedError, not_primary, switch_error


class StreamChannel:
    """A stream to one switch. A thread puts the messages that arrive into a queue."""

    def __init__(self, stub: p4r_grpc.P4RuntimeStub, address: str, device_id: int, role: str = "") -> None:
        """Open the stream as a backup, in the default role or in one with a name."""
        self._address, self._device_id, self._role = address, device_id, role
        #: The election id of the last bid.
        self.election_id = 0
        self._outgoing: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[p4r.StreamMessageResponse | SwitchError] = queue.SimpleQueue()
        calls: Iterator[p4r.StreamMessageResponse] = stub.StreamChannel(
            iter(self._outgoing.get, None), metadata=(("process", str(os.getpid())),)
        )
        Thread(target=self._receive, args=(calls,), daemon=True).start()

    def close(self) -> None:
        """Close the stream, which ends its role of primary."""
        self._outgoing.put(None)

    def become_primary(self, election_id: int, timeout_s: float) -> None:
        """Bid to be the primary, and wait for the switch's response.

        If the switch has no primary but has seen a higher election id, bid that one. Raises NotPrimaryError
        if another controller is the primary, SwitchError if there is no response within `timeout_s`.
        """
        deadline = monotonic() + timeout_s
        response = self._send_bid(election_id, deadline)
        if response.status.code == rpc_code.NOT_FOUND:
            response = self._send_bid(U128.decode(response.election_id), deadline)
        if response.status.code != rpc_code.OK:
            raise not_primary(self._address, U128.decode(response.election_id))

    def sees_primary(self, timeout_s: float) -> bool:
        """Return whether another stream is the primary. Raises SwitchError if there is no response in time.

        The bid is 0, which cannot win. If there is no other stream, some switches nevertheless report that it
        has won.
        """
        return bool(self._send_bid(0, monotonic() + timeout_s).status.code == rpc_code.ALREADY_EXISTS)

    def acquire_lease(self, timeout_s: float) -> None:
        """Become the primary of this stream's role, which is named after a job.

        Raises NotPrimaryError if another stream is the role's primary, UnsupportedError if the switch has no
        roles. BMv2 ignores roles, so that a bid could win the only election. So the first bid is 0, which
        cannot win.
        """
        try:
            has_roles = self._send_bid(0, monotonic() + timeout_s).role.name == self._role
        except NotPrimaryError:  # the switch ignores roles, and another stream has bid 0, too
            has_roles = False
        if not has_roles:
            raise UnsupportedError(f"switch: {self._address} has no roles; use one election for all")
        self.become_primary(1, timeout_s)

    def send_packet(self, frame: bytes) -> None:
        """Send a frame to the switch's CPU port, by PacketOut."""
        self._outgoing.put(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=frame)))

    def next_packet(self, deadline: float) -> bytes | None:
        """Wait for the next frame from the switch's CPU port; return None if there is none by `deadline`.

        deadline: a time by `time.monotonic`. Raises SwitchError if the switch refused a packet, or if another
        controller has become the primary.
        """
        while (message := self._next_message(deadline)) is not None:
            match message.WhichOneof("update"):
                case "packet":
                    return message.packet.payload
                case "error":
                    raise SwitchError(f"switch: {self._address} refused a packet: {message.error.message}")
                case "arbitration" if message.arbitration.status.code != rpc_code.OK:
                    raise SwitchError(
                        f"switch: another controller became the primary of {self._address}; connect again"
                    )
        return None

    def _receive(self, responses: Iterable[p4r.StreamMessageResponse]) -> None:
        """Put responses into the queue, and at last the error that ends the stream; in a thread."""
        try:
            for response in responses:
                self._incoming.put(response)
            self._incoming.put(SwitchError(f"switch: {self._address} ended the session; connect again"))
        except grpc.RpcError as error:
            self._incoming.put(switch_error(error, self._address, "in session", election_id=self.election_id))

    def _send_bid(self, election_id: int, deadline: float) -> p4r.MasterArbitrationUpdate:
        """Send an election id, and wait for the switch's response. Raises SwitchError."""
        self.election_id = election_id
        bid = p4r.MasterArbitrationUpdate(
            device_id=self._device_id,
            role=p4r.Role(name=self._role) if self._role else None,
            election_id=U128.encode(election_id),
        )
        self._outgoing.put(p4r.StreamMessageRequest(arbitration=bid))
        while (message := self._next_message(deadline)) is not None:
            if message.WhichOneof("update") == "arbitration":
                return message.arbitration
        raise SwitchError(f"switch: {self._address} does not answer arbitration; is it a P4Runtime switch?")

    def _next_message(self, deadline: float) -> p4r.StreamMessageResponse | None:
        """Wait for the next message until `deadline`; raise the error that has ended the stream."""
        try:
            message = self._incoming.get(timeout=max(0.0, deadline - monotonic()))
        except queue.Empty:
            return None
        if isinstance(message, SwitchError):
            self._incoming.put(message)  # the next caller must get it, too
            raise message
        return message
