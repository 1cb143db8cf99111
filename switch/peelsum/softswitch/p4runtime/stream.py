"""One open StreamChannel: the messages that wait to be sent to its client, and its end."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

from finsy.proto import p4r

from peelsum.softswitch.p4runtime.status import RequestError

#: Most messages that may wait for a slow client; further PacketIns are dropped.
_WAITING_PACKETS = 8192


class ControllerStream:
    """The server's end of a stream. Any thread may send; one thread iterates over `responses`."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[p4r.StreamMessageResponse | RequestError | None] = SimpleQueue()

    def send(self, response: p4r.StreamMessageResponse) -> None:
        """Queue a message."""
        self._waiting.put(response)

    def send_packet(self, packet: p4r.PacketIn) -> bool:
        """Queue a PacketIn; return False if too many messages wait and the PacketIn is dropped."""
        if self._waiting.qsize() >= _WAITING_PACKETS:
            return False
        self._waiting.put(p4r.StreamMessageResponse(packet=packet))
        return True

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
            yield item
