"""The cost of collectives by alpha and beta: seconds per message, and seconds per word.

Every collective over a link costs a fixed time and a time per word: each is a `NetworkModel` of its own.
Sources: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005), for ring and tree; ATP (NSDI'21) for the window of a switch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from peelsum.allreduce import NetworkModel
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

_WORD_BITS = 32


class FlexibleConfigError(ValueError):
    """A value out of range. The message names field, value and remedy in one line."""


def within(name: str, value: float, least: float, most: float) -> None:
    """Raise FlexibleConfigError, which names the field, unless least <= value <= most."""
    if not least <= value <= most:
        raise FlexibleConfigError(f"{name}: {value:g} is out of range; use {least:g} to {most:g}")


@dataclass(frozen=True)
class LinkModel:
    """A model of a link between two workers. Raises FlexibleConfigError for a value out of range."""

    latency_s: float
    """Seconds that a message takes, however short: alpha."""
    gbps: float
    """Gigabits of words per second in each direction; 32e-9 / gbps is beta."""

    def __post_init__(self) -> None:
        within("latency_s", self.latency_s, 0, 3600)
        within("gbps", self.gbps, 1e-9, 1e6)


@dataclass(frozen=True)
class SwitchPath:
    """What a sum through switches depends on, besides the link. Raises FlexibleConfigError for bad values."""

    lanes: int = 256
    """Words in a chunk."""
    window: int = 1024
    """Most outstanding chunks of a worker."""
    slots: int = 2048
    """Slots of a switch. A job uses no more than half of them at a time."""
    hops: int = 2
    """Messages that follow each other for one chunk: 2 is a worker to the server and back."""

    def __post_init__(self) -> None:
        within("lanes", self.lanes, 1, 4096)
        within("window", self.window, 1, 1 << 16)
        within("slots", self.slots, 2, 1 << 32)
        within("hops", self.hops, 1, 64)

    def words(self, count: int) -> float:
        """Return the words that whole packets of `count` words take on a link, headers included."""
        return -(-count // self.lanes) * (FRAME_HEADER_BYTES + packet_bytes(self.lanes)) / 4

    def network(self, link: LinkModel) -> NetworkModel:
        """Return the network model of a worker: whole packets, at most a window of them in a round trip."""
        frame_bits = 8 * (FRAME_HEADER_BYTES + packet_bytes(self.lanes))
        round_trip_s = self.hops * link.latency_s
        outstanding = min(self.window, self.slots // 2)
        chunk_s = max(frame_bits / (link.gbps * 1e9), round_trip_s / outstanding)
        return NetworkModel(_WORD_BITS * self.lanes / (chunk_s * 1e9), round_trip_s)


def rounds(workers: int) -> int:
    """Return the rounds of a binomial tree: the base-2 logarithm of `workers`, rounded up."""
    return math.ceil(math.log2(workers))


#: By collective and number of workers: messages in a row, and how often the words cross the busiest link.
_COUNTS: dict[str, Callable[[int], tuple[float, float]]] = {
    "all_reduce_ring": lambda n: (2 * (n - 1), 2 * (n - 1) / n),
    "all_reduce_tree": lambda n: (2 * rounds(n), 2 * rounds(n)),
    "reduce_scatter": lambda n: (n - 1, (n - 1) / n),
    "all_gather": lambda n: (n - 1, n - 1),
    "broadcast": lambda n: (rounds(n), rounds(n)),
    "direct": lambda n: (1, n - 1),
}


def network_of(collective: str, link: LinkModel, workers: int) -> NetworkModel:
    """Return the cost of a collective of `COLLECTIVES`, one exchange of which is the whole of it."""
    within("workers", workers, 2, 1 << 30)
    messages, sent = _COUNTS[collective](workers)
    return NetworkModel(link.gbps / sent, messages * link.latency_s)


#: The collectives by the name that torch.distributed gives them, with the algorithm where there are two; and
#: "direct", by which all send all words to all others at once.
COLLECTIVES: dict[str, Callable[[LinkModel, int], NetworkModel]] = {
    name: partial(network_of, name) for name in _COUNTS
}


def reduced(workers: int, words: float, *, tree: bool = False, few: bool = False) -> tuple[float, float]:
    """Return the messages in a row of an all_reduce, and the words on its busiest link.

    few: whether direct messages to all others take the place of ring and tree.
    """
    messages, sent = _COUNTS["direct" if few else "all_reduce_tree" if tree else "all_reduce_ring"](workers)
    return messages, sent * words


def directly(workers: int, words: float, few_words: int) -> tuple[float, float]:
    """Return the messages in a row, and the words on the busiest link, of an all_reduce by direct messages.

    Up to `few_words` words go to all others in whole; of more, each worker combines a share.
    """
    if words <= few_words:
        return reduced(workers, words, few=True)
    return 2, 2 * (workers - 1) / workers * words
