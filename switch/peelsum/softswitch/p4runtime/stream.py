"""One open StreamChannel: what waits to be sent to its client, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

from finsy.proto import p4r

from peelsum.softswitch.p4runtime.status import RequestError

#: PacketIns that may wait for a slow client before more are dropped.
_WAITING_PACKETS = 8192


class ControllerStream:
    """The server's end of a stream. Anyone may send; one thread takes `responses`."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[p4r.StreamMessageResponse | RequestError | None] = SimpleQueue()

    def send(self, response: p4r.StreamMessageResponse) -> None:
        """Queue a message."""
        self._waiting.put(response)

    def send_packet(self, packet: p4r.PacketIn) -> bool:
        """Queue a PacketIn, unless the client is too far behind: then drop it and return False."""
        if self._waiting.qsize() >= _WAITING_PACKETS:
            return False
        self._waiting.put(p4r.StreamMessageResponse(packet=packet))
        return True

    def end(self, error: RequestError | None = None) -> None:
        """End the stream after what is queued, with an error if one is given."""
        self._waiting.put(error)

    def responses(self) -> Iterator[p4r.StreamMessageResponse]:
        """The queued messages as they come, until the end. Raises the RequestError that ends it."""
        while True:
            item = self._waiting.get()
            if item is None:
                return
            if isinstance(item, RequestError):
                raise item
            yield item
