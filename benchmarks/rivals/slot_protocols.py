"""Rivals that sum in a switch, as published, as models: SwitchML's pool, ATP, OmniReduce's blocks."""

from __future__ import annotations

from itertools import islice

import numpy as np

from benchmarks.rivals.slot_model import (
    EVERYBODY,
    SERVER,
    Endpoint,
    Message,
    SlotJob,
    SlotProgram,
    SlotProtocol,
    Words,
    Worker,
)
from peelsum.transport.congestion import CongestionWindow

_WORD, _GOLDEN = 0xFFFFFFFF, 0x9E3779B1
_SUM, _RESEND, _RESULT = 1, 2, 3
#: Later results after which a chunk counts as lost (ATP, section 3.4).
_LATER = 3
#: Slots of ATP's switch (its aggregators), as published.
ATP_SLOTS = 40_000


class PoolWorker(Worker):
    """SwitchML's worker: slot k takes chunks k, k + s, k + 2 s and so on; a result lets the next one go."""

    def __init__(self, job: SlotJob, number: int) -> None:
        super().__init__(job, number)
        self._due: dict[int, tuple[float, Message]] = {}
        self._slots = max(1, min(job.slots // job.jobs // 2, job.window))

    def start(self, now: float) -> list[Message]:
        """Fill the pool."""
        return [self._sent(chunk, now) for chunk in range(min(self._slots, self.job.chunks))]

    def receive(self, message: Message, now: float) -> list[Message]:
        """Take a result, and use its slot for the next chunk."""
        if message.chunk in self.results:
            return []
        self.results[message.chunk] = message.words
        self._due.pop(message.slot, None)
        following = message.chunk + self._slots
        return [self._sent(following, now)] if following < self.job.chunks else []

    def next_timer(self) -> float | None:
        """Return the time-out of the oldest packet, which is the first: packets keep the order of sending."""
        return next((due for due, _ in self._due.values()), None)

    def expire(self, now: float) -> list[Message]:
        """Send packets again that were not answered in time."""
        late = [message for due, message in self._due.values() if due <= now]
        for message in late:
            del self._due[message.slot]
            self._due[message.slot] = now + self.job.timers.resend_least, message
        self.resends += len(late)
        return late

    def _sent(self, chunk: int, now: float) -> Message:
        turn, slot = divmod(chunk, self._slots)
        message = Message(_SUM, self.number, chunk, self.words[chunk], slot, turn & 1)
        self._due[slot] = now + self.job.timers.resend_least, message
        return message


class PoolSwitch(SlotProgram):
    """SwitchML's switch with its shadow copies (algorithm 3): two versions of each slot."""

    def __init__(self, job: SlotJob) -> None:
        super().__init__(job)
        self._seen: dict[tuple[int, int], int] = {}
        self._count: dict[tuple[int, int], int] = {}
        self._sums: dict[tuple[int, int], Words] = {}

    def process(self, message: Message, *, from_server: bool) -> list[tuple[int, Message]]:
        """Add a packet, or answer one that was added before."""
        version, other = (message.extra, message.slot), (1 - message.extra, message.slot)
        bit, seen = 1 << message.sender, self._seen.get(version, 0)
        if seen & bit:
            if self._count[version]:
                return []
            return [(message.sender, message._replace(kind=_RESULT, words=self._sums[version], ce=False))]
        self._seen[version] = seen | bit
        self._seen[other] = self._seen.get(other, 0) & ~bit
        count = (self._count.get(version, 0) + 1) % self.job.workers
        self._count[version] = count
        fresh = count == 1 % self.job.workers
        self._sums[version] = message.words if fresh else message.words + self._sums[version]
        if count:
            return []
        self.in_switch += 1
        return [(EVERYBODY, message._replace(kind=_RESULT, words=self._sums[version]))]


class AtpWorker(Worker):
    """ATP's worker: a congestion window, ECN, and a resend after three later results or a time-out."""

    def __init__(self, job: SlotJob, number: int) -> None:
        super().__init__(job, number)
        self._window = CongestionWindow(job.window, job.initial_window)
        #: Chunks without a result, in the order of their last transmission, which is numbered.
        self._out: dict[int, int] = {}
        self._again: set[int] = set()
        self._next = self._transmissions = self._backoff = 0
        self._moved_at = 0.0

    def start(self, now: float) -> list[Message]:
        """Fill the window."""
        sent = []
        while self._next < self.job.chunks and len(self._out) < self._window.size:
            sent.append(self._sent(_SUM, self._next, now))
            self._next += 1
        return sent

    def receive(self, message: Message, now: float) -> list[Message]:
        """Take a result; send new chunks, and those again that three later results passed."""
        if message.chunk in self.results:
            return []
        self.results[message.chunk] = message.words
        answered = self._out.pop(message.chunk)
        self._moved_at, self._backoff = now, 0
        base = min(self._out, default=self._next) if message.ce else self._next
        self._window.on_results(1, message.ce, base, self._next)
        oldest = list(islice(self._out.items(), _LATER))
        # A chunk that was sent again may be answered for its first packet, which says nothing of later ones.
        clear = message.chunk not in self._again
        late = [chunk for chunk, number in oldest if clear and number + _LATER <= answered]
        if late:
            self.resends += len(late)
            self._window.on_losses(len(late), min(self._out), self._next)
        return [self._sent(_RESEND, chunk, now) for chunk in late] + self.start(now)

    def next_timer(self) -> float | None:
        """Return when the oldest chunk is sent again: a time-out after the last result, backing off."""
        wait = self.job.timers.resend_least * 2**self._backoff
        return self._moved_at + min(wait, self.job.timers.resend_most) if self._out else None

    def expire(self, now: float) -> list[Message]:
        """Send the oldest chunk again."""
        self._backoff += 1
        self._moved_at = now
        self.resends += 1
        return [self._sent(_RESEND, next(iter(self._out)), now)]

    def _sent(self, kind: int, chunk: int, now: float) -> Message:
        self._out.pop(chunk, None)
        if not self._out:
            self._moved_at = now
        if kind == _RESEND:
            self._again.add(chunk)
        self._transmissions += 1
        self._out[chunk] = self._transmissions
        return Message(kind, self.number, chunk, self.words[chunk], extra=1 << self.number)


class AtpSwitch(SlotProgram):
    """ATP's switch: a chunk's hash selects its slot; a chunk that finds another there goes to the server."""

    def process(self, message: Message, *, from_server: bool) -> list[tuple[int, Message]]:
        """Add, pass on or, for a result, free the slot."""
        job, taken = self.job, self.job.shared
        slot = _mixed((message.chunk + job.number * _GOLDEN) & _WORD) % job.slots
        owner, held = taken.get(slot, (job.number, None))
        holds = held is not None and (owner, held.chunk) == (job.number, message.chunk)
        if from_server:
            if holds:
                del taken[slot]
            return [(EVERYBODY if message.sender == SERVER else message.sender, message)]
        if held is None and message.kind == _SUM:
            held, holds = message._replace(extra=0, words=np.zeros_like(message.words)), True
        if held is None or not holds:
            return [(SERVER, message)]
        fresh = not held.extra & message.extra
        if not fresh and message.kind == _SUM:
            return []
        added = held._replace(
            extra=held.extra | message.extra,
            words=held.words + message.words if fresh else held.words,
            ce=held.ce or message.ce,
        )
        if message.kind == _RESEND:
            del taken[slot]
            return [(SERVER, added._replace(kind=_RESEND, sender=message.sender))]
        taken[slot] = job.number, added
        if added.extra != (1 << job.workers) - 1:
            return []
        self.in_switch += 1
        return [(SERVER, added)]


def _mixed(chunk: int) -> int:
    """Return a hash of a chunk that behaves as random (murmur3's finalizer)."""
    x = (chunk ^ chunk >> 16) * 0x85EBCA6B & _WORD
    x = (x ^ x >> 13) * 0xC2B2AE35 & _WORD
    return x ^ x >> 16


class AtpServer(Endpoint):
    """ATP's parameter server: it adds the switch's leftovers, and sends every result."""

    def __init__(self, job: SlotJob) -> None:
        self._all = (1 << job.workers) - 1
        self._held: dict[int, tuple[int, Words, bool]] = {}

    def receive(self, message: Message, now: float) -> list[Message]:
        """Add a packet whose workers are new; send the result when all are in, and when asked later."""
        bitmap, words, ce = self._held.get(message.chunk, (0, message.words, False))
        if bitmap == self._all:
            return [Message(_RESULT, message.sender, message.chunk, words)]
        if message.extra & bitmap == bitmap:
            bitmap, words = message.extra, message.words
        elif not bitmap & message.extra:
            bitmap, words = bitmap | message.extra, words + message.words
        self._held[message.chunk] = bitmap, words, ce or message.ce
        if bitmap != self._all:
            return []
        return [Message(_RESULT, SERVER, message.chunk, words, ce=ce or message.ce)]


_END = 1 << 40


class BlockWorker(Worker):
    """OmniReduce's worker (algorithm 1): in each stream of blocks it sends those that are not zero."""

    def __init__(self, job: SlotJob, number: int) -> None:
        super().__init__(job, number)
        self._streams = max(1, min(job.slots // job.jobs, job.window, job.chunks))
        self._open = self._streams
        self._has = self.words.any(1).tolist()
        self._next = [_END] * len(self._has)
        following = [_END] * self._streams
        for chunk in reversed(range(len(self._has))):
            self._next[chunk] = following[chunk % self._streams]
            if self._has[chunk]:
                following[chunk % self._streams] = chunk

    @property
    def done(self) -> bool:
        """Whether every stream has ended."""
        return not self._open

    def start(self, now: float) -> list[Message]:
        """Send the first block of each stream, zero or not."""
        return [self._sent(stream) for stream in range(self._streams)]

    def receive(self, message: Message, now: float) -> list[Message]:
        """Take a block's sum; send the next block of the stream if this worker has it."""
        self.results[message.chunk] = message.words
        if message.extra == _END:
            self._open -= 1
            return []
        return [self._sent(message.extra)] if self._has[message.extra] else []

    def _sent(self, chunk: int) -> Message:
        return Message(_SUM, self.number, chunk, self.words[chunk], chunk % self._streams, self._next[chunk])


class BlockSwitch(SlotProgram):
    """OmniReduce's aggregator in a switch: a slot for each stream, and each worker's next block."""

    def __init__(self, job: SlotJob) -> None:
        super().__init__(job)
        self._next: dict[int, list[int]] = {}
        self._sums: dict[int, Words] = {}

    def process(self, message: Message, *, from_server: bool) -> list[tuple[int, Message]]:
        """Add a block; once no worker's next block is this one, send the sum and say which is next."""
        slot = message.slot
        following = self._next.setdefault(slot, [message.chunk] * self.job.workers)
        following[message.sender] = message.extra
        self._sums[slot] = self._sums[slot] + message.words if slot in self._sums else message.words
        first = min(following)
        if first <= message.chunk:
            return []
        self.in_switch += 1
        return [(EVERYBODY, message._replace(kind=_RESULT, extra=first, words=self._sums.pop(slot)))]


#: The models by name.
PROTOCOLS: dict[str, SlotProtocol] = {
    # Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation" (NSDI'21), sections 3.4
    # and 3.5. Left out: conversion of floats, several racks, one pool per CPU core.
    "switchml": SlotProtocol(PoolWorker, PoolSwitch),
    # Lao et al., "ATP: In-network Aggregation for Multi-tenant Learning" (NSDI'21), sections 3.2 to 3.6. Left
    # out: saturation (values wrap), rehashing of colliding chunks, several racks.
    "atp": SlotProtocol(AtpWorker, AtpSwitch, AtpServer),
    # Fei et al., "Efficient Sparse Collective Communication and its application to Accelerate Distributed
    # Deep Learning" (SIGCOMM'21; OmniReduce), algorithm 1, with the switch as aggregator: a packet is
    # a block of as many elements as a chunk has lanes. Left out: loss (algorithm 2), several blocks in a
    # packet (fusion), GPU-direct.
    "omnireduce": SlotProtocol(BlockWorker, BlockSwitch, survives_loss=False),
}
