"""Digests over P4Runtime: their configuration, and the lists in which the controller receives them.

A list is sent when it is full or when its oldest digest has waited long enough. The same data is not sent
again until the controller has acknowledged the list, or until the time for that is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from time import time_ns

from finsy.proto import p4r

from peelsum.softswitch.p4runtime.info import DigestInfo, encode_digest
from peelsum.softswitch.p4runtime.status import Change, check_change, invalid
from peelsum.softswitch.runtime.messages import Digest

#: Most digests in a list, and most of one kind that wait for acknowledgements, beyond which the oldest lists
#: count as acknowledged.
_MOST_IN_LIST, _MOST_UNACKNOWLEDGED = 1024, 16 * 1024


@dataclass(slots=True)
class _Stream:
    """The configuration of an enabled digest, its next list, and the lists that are not acknowledged."""

    config: p4r.DigestEntry.Config
    buffer: dict[tuple[int, ...], None] = field(default_factory=dict)
    first_at: int = 0
    unacknowledged: dict[int, tuple[int, tuple[tuple[int, ...], ...]]] = field(default_factory=dict)
    """By list id, in the order of sending: when the list was sent, and its digests."""
    sent: set[tuple[int, ...]] = field(default_factory=set)
    """The digests in all lists that are not acknowledged."""

    def is_known(self, values: tuple[int, ...]) -> bool:
        """Return whether the same data waits or was sent and not acknowledged."""
        return values in self.buffer or values in self.sent

    def acknowledge(self, list_id: int) -> None:
        """Forget a list, if it is not acknowledged yet."""
        _, digests = self.unacknowledged.pop(list_id, (0, ()))
        self.sent.difference_update(digests)

    def expire(self, now: int) -> None:
        """Forget the lists that have waited too long, or the oldest ones if too many digests wait."""
        for list_id, (sent_at, _) in list(self.unacknowledged.items()):
            if now - sent_at < self.config.ack_timeout_ns and len(self.sent) <= _MOST_UNACKNOWLEDGED:
                return
            self.acknowledge(list_id)

    def is_due(self, now: int) -> bool:
        """Return whether to send the buffer now."""
        if not self.buffer:
            return False
        limit = min(self.config.max_list_size or _MOST_IN_LIST, _MOST_IN_LIST)
        return len(self.buffer) >= limit or now - self.first_at >= self.config.max_timeout_ns


class DigestEntries:
    """The digests of one pipeline. Any thread may call the methods.

    clock: returns nanoseconds.
    """

    def __init__(
        self, digests: Mapping[int, DigestInfo], sent: deque[Digest], clock: Callable[[], int]
    ) -> None:
        """sent: the digests that the data plane has sent, which `lists` takes."""
        self._digests, self._sent, self._clock, self._lock = digests, sent, clock, Lock()
        self._ids = {digest.name: number for number, digest in digests.items()}
        self._streams: dict[int, _Stream] = {}
        self._list_id = 0

    def write(self, change: Change, entry: p4r.DigestEntry) -> None:
        """Enable, configure or disable a digest. Raises RequestError."""
        name = self._digests[entry.digest_id].name
        if min(entry.config.max_timeout_ns, entry.config.max_list_size, entry.config.ack_timeout_ns) < 0:
            raise invalid(f"digest {name}: times and sizes must not be negative")
        check_change(change, entry.digest_id in self._streams, f"digest {name}: its configuration")
        with self._lock:
            if change == p4r.Update.DELETE:
                del self._streams[entry.digest_id]
                return
            config = p4r.DigestEntry.Config()
            config.CopyFrom(entry.config)
            self._streams.setdefault(entry.digest_id, _Stream(config)).config = config

    def read(self, selector: p4r.DigestEntry) -> Iterator[p4r.DigestEntry]:
        """Return the configuration of the selected digest, if it is enabled; id 0 selects all."""
        ids = [self._digests[selector.digest_id].id] if selector.digest_id else sorted(self._digests)
        selected = [number for number in ids if number in self._streams]
        return iter([p4r.DigestEntry(digest_id=n, config=self._streams[n].config) for n in selected])

    def acknowledge(self, ack: p4r.DigestListAck) -> None:
        """Forget the digests of a list, so that the same data may be sent again. Raises RequestError."""
        number = self._digests[ack.digest_id].id
        with self._lock:
            if number in self._streams:
                self._streams[number].acknowledge(ack.list_id)

    def lists(self) -> list[p4r.DigestList]:
        """Take the digests that the data plane has sent; return the lists that are due."""
        lists = []
        with self._lock:
            now = self._clock()
            for stream in self._streams.values():
                stream.expire(now)
            while self._sent:
                name, values = self._sent.popleft()
                number = self._ids.get(name, 0)
                enabled = self._streams.get(number)
                if enabled is None or enabled.is_known(values):
                    continue
                if not enabled.buffer:
                    enabled.first_at = now
                enabled.buffer[values] = None
                if enabled.is_due(now):
                    lists.append(self._list(number, enabled, now))
            for number, stream in self._streams.items():
                if stream.is_due(now):
                    lists.append(self._list(number, stream, now))
        return lists

    def _list(self, number: int, stream: _Stream, now: int) -> p4r.DigestList:
        """Return the buffer as a list, which is then not acknowledged."""
        self._list_id += 1
        data = [encode_digest(self._digests[number], values) for values in stream.buffer]
        if stream.config.ack_timeout_ns:
            stream.unacknowledged[self._list_id] = now, tuple(stream.buffer)
            stream.sent.update(stream.buffer)
        stream.buffer.clear()
        return p4r.DigestList(digest_id=number, list_id=self._list_id, data=data, timestamp=time_ns())
