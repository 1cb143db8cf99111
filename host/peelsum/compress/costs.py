"""Predict how long each method of summing a gradient takes on a network, and find where the fastest changes.

A method combines the choice of elements (all, or the largest) with a collective (ring, tree, all_gather or
the switch). "ar_top_k" is AR-Topk (arXiv 2312.02493): one worker broadcasts the positions of its k largest
elements, and all_reduce adds up the values there. Through the switch, only that worker sets bits of the
index, so the union has exactly k elements.

Every collective over a link costs a fixed time and a time per word, alpha and beta: each is a `NetworkModel`
of its own. Sources: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005), for ring and tree; ATP (NSDI'21) for the window of a switch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Literal, get_args

from peelsum.allreduce import NetworkModel, Settings
from peelsum.allreduce.costs import Candidate, Seen, candidates
from peelsum.allreduce.plan import AGREEMENT_WORDS, FORMS, Form
from peelsum.codec import index_words
from peelsum.compress.arguments import CompressConfigError
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

_WORD_BITS = 32


def within(name: str, value: float, least: float, most: float) -> None:
    """Raise CompressConfigError, which names the field, unless least <= value <= most."""
    if not least <= value <= most:
        raise CompressConfigError(f"{name}: {value:g} is out of range; use {least:g} to {most:g}")


@dataclass(frozen=True)
class LinkModel:
    """A model of a link between two workers. Raises CompressConfigError for a value out of range."""

    latency_s: float
    """Seconds that a message takes, however short: alpha."""
    gbps: float
    """Gigabits of words per second in each direction; 32e-9 / gbps is beta."""

    def __post_init__(self) -> None:
        within("latency_s", self.latency_s, 0, 3600)
        within("gbps", self.gbps, 1e-9, 1e6)


@dataclass(frozen=True)
class SwitchPath:
    """What a sum through switches depends on, besides the link. Raises CompressConfigError for bad values."""

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


Method = Literal[
    "dense_ring",
    "dense_tree",
    "dense_switch",
    "top_k_all_gather",
    "top_k_switch",
    "ar_top_k_ring",
    "ar_top_k_tree",
    "ar_top_k_switch",
]
METHODS: tuple[Method, ...] = get_args(Method)
#: The carriers of methods' words: a process group's connections, or the switch. Each has a link of its own.
Carrier = Literal["group", "switch"]
CARRIERS: tuple[Carrier, ...] = get_args(Carrier)
#: The methods that send every element.
DENSE: tuple[Method, ...] = ("dense_ring", "dense_tree", "dense_switch")
#: Nanoseconds per element to select the largest; `TopK` took 6 to 22.
_SELECT_NS = 10.0


@dataclass(frozen=True)
class Step:
    """A gradient to sum, and the network. Raises CompressConfigError for a value out of range."""

    elements: int
    """Elements of the gradient."""
    ratio: float
    """Share of its elements that a worker sends; dense methods send all."""
    workers: int
    """Number of workers, at least 2."""
    link: LinkModel
    """The link between two workers."""
    path: SwitchPath = field(default_factory=SwitchPath)
    """The path through the switch."""
    select_s: float | None = None
    """Seconds to select the elements to send; None takes 10 ns per element."""
    sums: int = 1
    """Number of parts that are summed one after the other, such as DDP's buckets."""
    headers: int = 0
    """Exchanges of a few words before each sum, for methods that have none of their own; the hook has 1."""
    few_words: int = 0
    """Sums of fewer words over a process group go by direct messages, not by ring or tree; 0 for none."""

    def __post_init__(self) -> None:
        within("elements", self.elements, 1, 2**40)
        within("ratio", self.ratio, 0, 1)
        within("workers", self.workers, 2, 1024)
        within("select_s", self.compress_s, 0, 1e9)
        within("sums", self.sums, 1, 2**30)
        within("headers", self.headers, 0, 64)
        within("few_words", self.few_words, 0, 2**40)

    @property
    def sent(self) -> int:
        """Elements that a worker sends with a sparse method, at least 1."""
        return max(1, math.ceil(self.elements * self.ratio))

    @property
    def compress_s(self) -> float:
        """Seconds to select the elements to send."""
        return _SELECT_NS * 1e-9 * self.elements if self.select_s is None else self.select_s


@dataclass(frozen=True)
class Cost:
    """The predicted cost of one step by one method."""

    method: Method
    """The method."""
    words: float
    """32-bit words that cross the busiest link in one direction."""
    latency_s: float
    """Seconds spent on messages that must wait for an earlier one, whatever their length."""
    transfer_s: float
    """Seconds that the words take at the link's rate."""
    codec_s: float
    """Seconds of selecting, encoding and decoding."""

    @property
    def seconds(self) -> float:
        """Seconds in total."""
        return self.latency_s + self.transfer_s + self.codec_s


def carrier_of(method: Method) -> Carrier:
    """Return the carrier of a method's words."""
    return "switch" if method.endswith("_switch") else "group"


def costs(step: Step, methods: Collection[Method] = METHODS) -> list[Cost]:
    """Return the cost of each method, fastest first. Methods of equal time are in the order of METHODS."""
    return sorted(
        (cost(method, step) for method in METHODS if method in methods), key=lambda one: one.seconds
    )


def cost(method: Method, step: Step) -> Cost:
    """Return the predicted cost of a step by one method."""
    if carrier_of(method) == "switch":
        return _through_switch(method, step)
    reduce = "all_reduce_tree" if method.endswith("_tree") else "all_reduce_ring"
    gather, broadcast = (COLLECTIVES[name](step.link, step.workers) for name in ("all_gather", "broadcast"))
    header, codec_s = _reduced(reduce, step, 0), 0.0 if method in DENSE else step.compress_s
    #: Collectives one after the other, and their words.
    parts: list[tuple[NetworkModel, int]]
    if method in DENSE:
        parts = [(_reduced(reduce, step, step.elements), step.elements)]
    elif method == "top_k_all_gather":  # every worker's positions and values, to every other worker
        header, parts = gather, [(gather, 2 * step.sent)]
    else:
        parts = [(broadcast, step.sent), (_reduced(reduce, step, step.sent), step.sent)]
    header_s = step.headers * header.seconds(0, 1)
    latency_s = step.sums * (header_s + sum(network.seconds(0, 1) for network, _ in parts))
    transfer_s = sum(network.seconds(words, 0) for network, words in parts)
    return Cost(method, transfer_s * step.link.gbps * 1e9 / _WORD_BITS, latency_s, transfer_s, codec_s)


def _reduced(reduce: str, step: Step, words: float) -> NetworkModel:
    """Return the network of sums that have `words` words in all the step: `reduce`, or direct if few."""
    few = words < step.sums * step.few_words
    return COLLECTIVES["direct" if few else reduce](step.link, step.workers)


def _through_switch(method: Method, step: Step) -> Cost:
    """Return the cost of exchanges through a switch.

    `dense_switch`: the headers that agree on the scale, and the values in fixed point. `ar_top_k_switch`:
    STAR-Topk, with bounds and the index, a list or a bitmap, in one exchange, and values in another; VAR-Topk
    elects in one more. `top_k_switch`: the fastest sparse form of an allreduce, if each worker selects
    independently.
    """
    network, exchanges = step.path.network(step.link), 1 + step.headers
    words: float = step.elements
    if method == "dense_switch":
        codec_s = _forms(step.elements, 1.0, _DENSE_FORMS)[0].codec_s
    elif method == "ar_top_k_switch":
        index_size = min(step.sent, index_words(step.elements))
        words, exchanges = AGREEMENT_WORDS + step.workers + index_size + step.sent, 2
        codec_s = step.compress_s
    else:
        density = max(1.0 - (1.0 - step.ratio) ** step.workers, 1 / step.elements)
        best = min(_forms(step.elements, density, _SPARSE_FORMS), key=lambda one: one.seconds(network))
        words, exchanges, codec_s = best.words, best.exchanges, best.codec_s + step.compress_s
    latency_s = network.seconds(0, step.sums * exchanges)
    return Cost(method, words, latency_s, network.seconds(words, 0), codec_s)


@lru_cache(256)  # a strategy looks the same elements and ratios up for every link
def _forms(elements: int, density: float, forms: tuple[Form, ...]) -> tuple[Candidate, ...]:
    """Return the forms that an allreduce can send of this union, whatever the network."""
    seen = Seen.uniform(elements, density)
    after = candidates(elements, seen, Settings(), forms)
    return (*after, *candidates(elements, seen, Settings(), forms, ahead=True))


_DENSE_FORMS: tuple[Form, ...] = ("dense",)
_SPARSE_FORMS = tuple(form for form in FORMS if form not in _DENSE_FORMS)

#: The quantities along which crossovers can be searched, and the range of each.
Axis = Literal["gbps", "latency_s", "ratio", "elements"]
AXES: dict[Axis, tuple[float, float]] = {
    "gbps": (1e-3, 1e3),
    "latency_s": (1e-6, 1.0),
    "ratio": (1e-4, 1.0),
    "elements": (1e3, 1e9),
}
_POINTS_PER_DECADE = 8
_HALVINGS = 20


@dataclass(frozen=True)
class Crossover:
    """A value of one quantity at which the fastest method changes, if all others stay the same."""

    axis: Axis
    """The quantity that varies."""
    at: float
    """Its value."""
    below: Method
    """The fastest method just below it."""
    above: Method
    """The fastest method just above it."""


def crossovers(step: Step, axis: Axis, methods: Collection[Method] = METHODS) -> Iterator[Crossover]:
    """Yield the values of one axis at which the fastest method changes, in ascending order.

    The search covers the axis's range in AXES by steps of an eighth of a decade. Bisection then finds each
    value to a millionth of the range, in logarithm.
    """
    least, most = AXES[axis]
    count = round(math.log10(most / least) * _POINTS_PER_DECADE)
    grid = [least * (most / least) ** (number / count) for number in range(count + 1)]
    first = _fastest(step, axis, grid[0], methods)
    for low, high in pairwise(grid):
        second = _fastest(step, axis, high, methods)
        if second != first:
            for _ in range(_HALVINGS):
                middle = math.sqrt(low * high)
                if _fastest(step, axis, middle, methods) == first:
                    low = middle
                else:
                    high = middle
            yield Crossover(axis, high, first, _fastest(step, axis, high, methods))
        first = second


def _fastest(step: Step, axis: Axis, value: float, methods: Collection[Method]) -> Method:
    changed: dict[str, Any] = {axis: round(value) if axis == "elements" else value}
    if axis in ("gbps", "latency_s"):
        changed = {"link": replace(step.link, **changed)}
    return costs(replace(step, **changed), methods)[0].method
