"""One open StreamChannel: the queue of messages to its client, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Lock

from finsy.proto import p4r

from peelsum.softswitch.p4runtime.status import RequestError

#: Most messages, and most bytes, that may wait for a slow client. Beyond them, PacketIns are dropped; beyond
#: twice as many, the call is cancelled.
MOST_WAITING = 8192
MOST_BYTES = 16 << 20


class ControllerStream:
    """The server's end of a stream. Any thread may send; one thread iterates over `responses`.

    Messages that the client has not read wait here, up to a limit. Beyond it, PacketIns are dropped, as in a
    port's queue. Other messages are answers that the client needs: for them the limit is twice as high, and
    beyond it the call is cancelled.
    """

    def __init__(self, cancel: Callable[[], object] = lambda: None, client: str = "another client") -> None:
        """cancel: ends the call at once, even while a message is being sent. client: its name in messages."""
        self.client = client
        self._waiting: SimpleQueue[p4r.StreamMessageResponse | RequestError | None] = SimpleQueue()
        self._cancel = cancel
        self._lock = Lock()
        self._bytes = 0

    def send(self, response: p4r.StreamMessageResponse) -> None:
        """Queue a message; cancel the call if too much waits."""
        if not self._queue(response, 2):
            self.end()
            self._cancel()

    def send_packet(self, packet: p4r.PacketIn) -> bool:
        """Queue a PacketIn; return False if too much waits and the PacketIn is dropped."""
        return self._queue(p4r.StreamMessageResponse(packet=packet), 1)

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
            if (
                self._waiting.qsize() >= limit_factor * MOST_WAITING
                or self._bytes + size > limit_factor * MOST_BYTES
            ):
                return False
            self._bytes += size
            self._waiting.put(response)
        return True
