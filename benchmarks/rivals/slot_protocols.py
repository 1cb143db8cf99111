"""The hosts of rivals that sum in a switch: SwitchML, ATP, OmniReduce and THC.

The switch's part of each is a P4 program in switch/rivals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.program_bench import (
    COLLISION,
    ECN,
    NO_WORDS,
    RESEND,
    RESULT,
    TO_ALL,
    VERSION,
    Endpoint,
    Message,
    SlotJob,
    SlotProtocol,
    Words,
    Worker,
)
from peelsum.simulation.trains import SimulationError
from peelsum.transport import congestion

PROGRAMS = Path(__file__).parents[2] / "switch" / "rivals"
#: Slots of ATP's switch (its aggregators), as published.
ATP_SLOTS = 40_000
_WORD, _GOLDEN = 0xFFFFFFFF, 0x9E3779B1
#: Later results after which a chunk counts as lost (ATP, section 3.4).
_LATER = 3
#: Levels of THC's 4-bit indices, as in switch/rivals/thc.p4, and the workers whose sum of levels has 8 bits.
_LEVELS = np.array([0, 3, 6, 8, 10, 12, 13, 14, 16, 17, 18, 20, 22, 24, 27, 30])
THC_WORKERS = 8
#: The number of the block after a stream's last, in OmniReduce.
_END = 0xFFFFFFFF


class PoolWorker(Worker):
    """SwitchML's worker (algorithm 4): slot k takes chunks k, k + s, k + 2 s and so on.

    Each result lets the slot's next message go, in the other version.
    """

    def __init__(self, job: SlotJob, number: int) -> None:
        super().__init__(job, number)
        share = max(1, min(job.slots // job.jobs // 2, job.settings.window))
        self._first_slot = (job.number - 1) * share
        #: Slots in use, one for each stream of chunks.
        self.streams = min(share, job.chunks)
        self._outstanding: dict[int, tuple[float, Message]] = {}

    def first(self, stream: int) -> Message:
        """Return a stream's first message."""
        return Message(stream, self.words[stream])

    def take(self, result: Message) -> Message | None:
        """Take a result, and return the next message of its stream, or None."""
        self.results[result.chunk] = result.words
        chunk = result.chunk + self.streams
        return Message(chunk, self.words[chunk]) if chunk < self.job.chunks else None

    def start(self, now: float) -> list[Message]:
        """Send the first message of each stream."""
        return [
            self._sent(self.first(stream), self._first_slot + stream, 0, now)
            for stream in range(self.streams)
        ]

    def receive(self, message: Message, now: float) -> list[Message]:
        """Take the result of the slot's outstanding message, and use the slot for the next one."""
        version = message.flags & VERSION
        _, sent = self._outstanding.get(message.slot, (0.0, None))
        if sent is None or (sent.chunk, sent.flags) != (message.chunk, version):
            return []
        del self._outstanding[message.slot]
        following = self.take(message)
        return [] if following is None else [self._sent(following, message.slot, version ^ VERSION, now)]

    def next_timer(self) -> float | None:
        """Return the time-out of the oldest packet, which is the first: packets keep the order of sending."""
        return next((due for due, _ in self._outstanding.values()), None)

    def expire(self, now: float) -> list[Message]:
        """Send packets again that were not answered in time."""
        late = [message for due, message in self._outstanding.values() if due <= now]
        for message in late:
            del self._outstanding[message.slot]
            self._outstanding[message.slot] = now + self.job.settings.timers.resend_least, message
        self.resends += len(late)
        return late

    def _sent(self, message: Message, slot: int, version: int, now: float) -> Message:
        message = message._replace(slot=slot, flags=version, worker=self.number)
        self._outstanding[slot] = now + self.job.settings.timers.resend_least, message
        return message


class FloatPoolWorker(PoolWorker):
    """SwitchML's worker for float32 (section 3.7): `words` and `results` are the bits of floats.

    A stream begins with a message that has only the exponent of its first chunk. Each further message has the
    exponent of the next chunk, and its result the largest exponent of all workers, which scales that chunk.
    """

    def __init__(self, job: SlotJob, number: int) -> None:
        super().__init__(job, number)
        self._scales: dict[int, int] = {}

    def scale(self, chunk: int) -> int:
        """Return the biased exponent of a chunk's largest value."""
        return int((self.words[chunk] >> 23 & 0xFF).max())

    def encode(self, chunk: int, scale: int) -> Words:
        """Return the lanes of a chunk, scaled by the largest exponent of all workers."""
        values = self.words[chunk].view(np.float32).astype(np.float64)
        scaled = np.rint(values * float_factor(scale, self.job.workers))
        lanes: Words = scaled.astype(np.int32).view(np.uint32)
        return lanes

    def decode(self, lanes: Words, scale: int) -> NDArray[np.float64]:
        """Return the sums of a chunk's values."""
        return lanes.view(np.int32) / float_factor(scale, self.job.workers)

    def first(self, stream: int) -> Message:
        """Return the message with the first chunk's exponent, and zeros."""
        return Message(stream, np.zeros(self.job.lanes, np.uint32), self.scale(stream))

    def take(self, result: Message) -> Message | None:
        """Convert a chunk's sum to floats; encode the next chunk by the exponent that came with it."""
        chunk, following = result.chunk, result.chunk
        if result.slot in self._scales:
            sums = self.decode(result.words, self._scales[result.slot])
            self.results[chunk] = sums.astype(np.float32).view(np.uint32)
            following += self.streams
        if following >= self.job.chunks:
            return None
        self._scales[result.slot] = result.extra
        after = following + self.streams
        next_scale = self.scale(after) if after < self.job.chunks else 0
        return Message(following, self.encode(following, result.extra), next_scale)


def float_factor(exponent: int, workers: int) -> float:
    """Return the factor by which values below 2**(exponent - 126) become integers whose sum has 32 bits.

    Rounding changes a sum by at most workers / factor.
    """
    return (2.0**31 - workers) / (workers * 2.0 ** (exponent - 126))


class ThcWorker(FloatPoolWorker):
    """THC's worker: it sends indices of levels between the chunk's range and its negative.

    A value between two levels becomes one of them at random, so that its mean is the value. Left out: the
    rotation of the vector before, and error feedback after.
    """

    def __init__(self, job: SlotJob, number: int) -> None:
        if job.workers > THC_WORKERS:
            raise SimulationError(
                f"workers: {job.workers}: THC's 8-bit sums are for up to {THC_WORKERS}; use fewer"
            )
        super().__init__(job, number)
        self._random = np.random.default_rng([job.number, number])

    def scale(self, chunk: int) -> int:
        """Return the largest absolute value, as the bits of a float."""
        return int((self.words[chunk] & 0x7FFFFFFF).max())

    def encode(self, chunk: int, scale: int) -> Words:
        """Return 8 indices in each lane."""
        most = _float(scale) or 1.0  # if all values are zero, so are their sums, whatever is sent
        values = self.words[chunk].view(np.float32).astype(np.float64)
        positions = (values + most) / (2 * most) * _LEVELS[-1]
        above = np.clip(np.searchsorted(_LEVELS, positions), 1, len(_LEVELS) - 1)
        share = (positions - _LEVELS[above - 1]) / (_LEVELS[above] - _LEVELS[above - 1])
        indices = above - (self._random.random(len(share)) >= share)
        lanes: Words = (indices.reshape(-1, 8) << np.arange(28, -1, -4)).sum(1).astype(np.uint32)
        return lanes

    def decode(self, lanes: Words, scale: int) -> NDArray[np.float64]:
        """Return the sums that the sums of levels stand for."""
        sums = lanes.astype(">u4").view(np.uint8).reshape(2, -1, 4).transpose(1, 0, 2).reshape(-1)
        values: NDArray[np.float64] = (sums * (2 / _LEVELS[-1]) - self.job.workers) * _float(scale)
        return values


def _float(bits: int) -> float:
    """Return the float32 with these bits."""
    return float(np.uint32(bits).view(np.float32))


def switchml_bound(words: Words) -> float:
    """Return how far SwitchML's sums of a chunk may be off, given all workers' words."""
    return len(words) / float_factor(int((words >> 23 & 0xFF).max()), len(words))


def thc_bound(words: Words) -> float:
    """Return how far THC's sums of a chunk may be off: by the widest gap between levels for each worker."""
    widest = np.diff(_LEVELS).max() / _LEVELS[-1]
    return float(len(words) * widest * 2 * _float(int((words & 0x7FFFFFFF).max())))


def wrong_floats(words: Words, results: Words, bound: Callable[[Words], float]) -> int:
    """Return the number of chunks of which a sum is off by more than a bound, and float32's rounding."""
    sums = words.view(np.float32).astype(np.float64).sum(0)
    bounds = np.array([bound(words[:, chunk]) for chunk in range(len(sums))])
    allowed = bounds[:, np.newaxis] + np.abs(sums) * 2.0**-24
    return int((~(np.abs(results.view(np.float32) - sums) <= allowed)).any(1).sum())


class BlockWorker(PoolWorker):
    """OmniReduce's worker (algorithm 2): in each stream of blocks it sends those that are not zero.

    If another worker has the block that is requested, it answers with an empty packet.
    """

    def __init__(self, job: SlotJob, number: int) -> None:
        super().__init__(job, number)
        self._has = self.words.any(1).tolist()
        self._open = self.streams
        self._next = [_END] * job.chunks
        following = [_END] * self.streams
        for chunk in reversed(range(job.chunks)):
            self._next[chunk] = following[chunk % self.streams]
            if self._has[chunk]:
                following[chunk % self.streams] = chunk

    @property
    def done(self) -> bool:
        """Whether every stream has ended."""
        return not self._open

    def first(self, stream: int) -> Message:
        """Return the first block of a stream, zero or not."""
        return Message(stream, self.words[stream], self._next[stream])

    def take(self, result: Message) -> Message | None:
        """Take a block's sum; answer the request for the next block of the stream."""
        self.results[result.chunk] = result.words
        block = result.extra
        if block == _END:
            self._open -= 1
            return None
        return Message(block, self.words[block] if self._has[block] else NO_WORDS, self._next[block])


class AtpWorker(Worker):
    """ATP's worker: a congestion window, ECN, and a resend after three later results or a time-out.

    Chunks c, c + W, c + 2 W and so on, for a window of W chunks, have one slot, until a result says that the
    chunk collided with another one there; then the next chunk has another slot.
    """

    def __init__(self, job: SlotJob, number: int) -> None:
        super().__init__(job, number)
        self._window = congestion.new_window(job.settings.window, job.settings.initial_window)
        #: Chunks without a result, in the order of their last transmission, which is numbered.
        self._out: dict[int, int] = {}
        self._again: set[int] = set()
        self._collisions = [0] * job.settings.window
        self._next = self._transmissions = self._backoff = 0
        self._moved_at = 0.0

    def start(self, now: float) -> list[Message]:
        """Fill the window."""
        sent = []
        while self._next < self.job.chunks and len(self._out) < congestion.size(self._window):
            sent.append(self._sent(0, self._next, now))
            self._next += 1
        return sent

    def receive(self, message: Message, now: float) -> list[Message]:
        """Take a result; send new chunks, and those again that three later results passed."""
        if message.chunk in self.results:
            return []
        self.results[message.chunk] = message.words
        self._collisions[message.chunk % self.job.settings.window] += message.flags & COLLISION > 0
        answered, is_marked = self._out.pop(message.chunk), message.flags & ECN > 0
        self._moved_at, self._backoff = now, 0
        base = min(self._out, default=self._next) if is_marked else self._next
        congestion.on_results(self._window, 1, is_marked, base, self._next)
        oldest = list(islice(self._out.items(), _LATER))
        # A chunk that was sent again may be answered for its first packet, which says nothing of later ones.
        clear = message.chunk not in self._again
        late = [chunk for chunk, number in oldest if clear and number + _LATER <= answered]
        self.resends += len(late)
        return [self._sent(RESEND, chunk, now) for chunk in late] + self.start(now)

    def next_timer(self) -> float | None:
        """Return when the oldest chunk is sent again: a time-out after the last result, backing off."""
        wait = self.job.settings.timers.resend_least * 2**self._backoff
        return self._moved_at + min(wait, self.job.settings.timers.resend_most) if self._out else None

    def expire(self, now: float) -> list[Message]:
        """Send the oldest chunk again."""
        self._backoff += 1
        self._moved_at = now
        self.resends += 1
        return [self._sent(RESEND, next(iter(self._out)), now)]

    def _sent(self, flags: int, chunk: int, now: float) -> Message:
        self._out.pop(chunk, None)
        if not self._out:
            self._moved_at = now
        if flags == RESEND:
            self._again.add(chunk)
        self._transmissions += 1
        self._out[chunk] = self._transmissions
        position = chunk % self.job.settings.window
        slot = atp_slot(self.job.number, position, self._collisions[position], self.job.slots)
        bitmap = 1 << self.number
        return Message(chunk, self.words[chunk], bitmap, slot, flags, self.number, self.job.server_port)


def atp_slot(job: int, position: int, collisions: int, slots: int) -> int:
    """Return a slot by a hash that behaves as random (murmur3's finalizer)."""
    x = (position + job * _GOLDEN + (collisions << 17)) & _WORD
    x = (x ^ x >> 16) * 0x85EBCA6B & _WORD
    x = (x ^ x >> 13) * 0xC2B2AE35 & _WORD
    return (x ^ x >> 16) % slots


class AtpServer(Endpoint):
    """ATP's parameter server: it adds what the switch did not, and sends every result."""

    def __init__(self, job: SlotJob) -> None:
        self._job, self._all = job, (1 << job.workers) - 1
        self._held: dict[int, Message] = {}

    def receive(self, message: Message, now: float) -> list[Message]:
        """Add a packet whose workers are new; send the result when all are in, and when asked later."""
        held = self._held.get(message.chunk)
        if held is not None and held.extra == self._all:
            return [held._replace(port=self._job.ports[message.worker])]
        if held is None or message.extra & held.extra == held.extra:
            words, bitmap = message.words, message.extra
            self.in_switch += bitmap == self._all
        elif held.extra & message.extra:
            words, bitmap = held.words, held.extra
        else:
            words, bitmap = held.words + message.words, held.extra | message.extra
        seen = (message.flags | (held.flags if held else 0)) & (ECN | COLLISION)
        held = message._replace(words=words, extra=bitmap, flags=seen | RESULT, port=TO_ALL)
        self._held[message.chunk] = held
        if bitmap != self._all:
            return []
        self._held[message.chunk] = held._replace(flags=held.flags & ~ECN)
        return [held]


#: The protocols by name.
PROTOCOLS: dict[str, SlotProtocol] = {
    # Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation" (NSDI'21), sections 3.4
    # and 3.5, for integers. Left out: several racks, one pool per CPU core.
    "switchml": SlotProtocol(PROGRAMS / "switchml.json", PoolWorker),
    # Lao et al., "ATP: In-network Aggregation for Multi-tenant Learning" (NSDI'21), sections 3.2 to 3.6. Left
    # out: saturation (values wrap), several racks.
    "atp": SlotProtocol(PROGRAMS / "atp.json", AtpWorker, AtpServer),
    # Fei et al., "Efficient Sparse Collective Communication and its application to Accelerate Distributed
    # Deep Learning" (SIGCOMM'21; OmniReduce), algorithm 2, with the switch as aggregator: a packet is
    # a block of as many elements as a chunk has lanes. Left out: several blocks in a packet (fusion),
    # GPU-direct.
    "omnireduce": SlotProtocol(PROGRAMS / "omnireduce.json", BlockWorker),
}
#: SwitchML for float32, with exponents one chunk ahead.
SWITCHML_FLOATS = replace(
    PROTOCOLS["switchml"], worker=FloatPoolWorker, wrong=partial(wrong_floats, bound=switchml_bound)
)
#: Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression" (NSDI'24).
#: Loss and ranges are handled as in SwitchML. Sums are approximate.
THC = SlotProtocol(PROGRAMS / "thc.json", ThcWorker, None, partial(wrong_floats, bound=thc_bound), 8, 2)
