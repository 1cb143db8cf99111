"""Predictions of the time that each method of summing a gradient takes, and where the fastest method changes.

A method combines the choice of elements (all, or the largest) with a collective (ring, tree, all_gather or
the switch). "ar_top_k" is AR-Topk (arXiv 2312.02493): one worker broadcasts the positions of its k largest
elements, and all_reduce adds up the values there. Through the switch, only that worker sets bits of the
index, so the union has exactly k elements.

A collective over a link takes a fixed time and a time per word, called alpha and beta, so its cost is a
`NetworkModel`. Sources: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations
in MPICH" (2005), for ring and tree; ATP (NSDI'21) for the window of a switch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Literal, get_args

from peelsum.allreduce import NetworkModel, PlanSettings
from peelsum.allreduce.costs import CostEstimate, cost_estimates
from peelsum.allreduce.indexes import UnionCounts
from peelsum.allreduce.plan import AGREEMENT_WORDS, FORMS, Form
from peelsum.codec import index_words
from peelsum.compress.arguments import CompressConfigError
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

_WORD_BITS = 32


def check_range(name: str, value: float, least: float, most: float) -> None:
    """Raise CompressConfigError, which names the field, unless least <= value <= most."""
    if not least <= value <= most:
        raise CompressConfigError(f"{name}: {value:g} is out of range; use {least:g} to {most:g}")


@dataclass(frozen=True)
class LinkModel:
    """A model of a link between two workers. Raises CompressConfigError for a value out of range."""

    latency_s: float
    """Seconds of a message without words: alpha."""
    gbps: float
    """Gigabits of words per second in each direction; 32e-9 / gbps is beta, the seconds of a word."""

    def __post_init__(self) -> None:
        check_range("latency_s", self.latency_s, 0, 3600)
        check_range("gbps", self.gbps, 1e-9, 1e6)


@dataclass(frozen=True)
class SwitchPath:
    """Parameters of sums through switches, besides the link. Raises CompressConfigError for bad values."""

    lanes: int = 256
    """Words in a chunk."""
    window: int = 1024
    """Most outstanding chunks of a worker."""
    slots: int = 2048
    """Slots of a switch. A job uses no more than half of them at a time."""
    hops: int = 2
    """Messages in a row for a chunk: 2 is from a worker to the server and back."""

    def __post_init__(self) -> None:
        check_range("lanes", self.lanes, 1, 4096)
        check_range("window", self.window, 1, 1 << 16)
        check_range("slots", self.slots, 2, 1 << 32)
        check_range("hops", self.hops, 1, 64)

    def words(self, count: int) -> float:
        """Return the size in words of the packets that carry `count` words, with headers and padding."""
        return -(-count // self.lanes) * (FRAME_HEADER_BYTES + packet_bytes(self.lanes)) / 4

    def network(self, link: LinkModel) -> NetworkModel:
        """Return the network model of a worker, which sends at most a window of packets in a round trip."""
        frame_bits = 8 * (FRAME_HEADER_BYTES + packet_bytes(self.lanes))
        round_trip_s = self.hops * link.latency_s
        outstanding = min(self.window, self.slots // 2)
        chunk_s = max(frame_bits / (link.gbps * 1e9), round_trip_s / outstanding)
        return NetworkModel(_WORD_BITS * self.lanes / (chunk_s * 1e9), round_trip_s)


def tree_rounds(workers: int) -> int:
    """Return the rounds of a binomial tree: the base-2 logarithm of `workers`, rounded up."""
    return math.ceil(math.log2(workers))


#: For n workers: the messages in a row of each collective, and how often the words cross the busiest link.
_COUNTS: dict[str, Callable[[int], tuple[float, float]]] = {
    "all_reduce_ring": lambda n: (2 * (n - 1), 2 * (n - 1) / n),
    "all_reduce_tree": lambda n: (2 * tree_rounds(n), 2 * tree_rounds(n)),
    "reduce_scatter": lambda n: (n - 1, (n - 1) / n),
    "all_gather": lambda n: (n - 1, n - 1),
    "broadcast": lambda n: (tree_rounds(n), tree_rounds(n)),
    "direct": lambda n: (1, n - 1),
}


def collective_network(collective: str, link: LinkModel, workers: int) -> NetworkModel:
    """Return the time of a collective as a network model, in which it is a single exchange."""
    check_range("workers", workers, 2, 1 << 30)
    messages, sent = _COUNTS[collective](workers)
    return NetworkModel(link.gbps / sent, messages * link.latency_s)


#: The collectives by their names in torch.distributed, with the algorithm if there are two; and "direct", in
#: which every worker sends all its words to all others.
COLLECTIVES: dict[str, Callable[[LinkModel, int], NetworkModel]] = {
    name: partial(collective_network, name) for name in _COUNTS
}


def all_reduce_cost(
    workers: int, words: float, *, tree: bool = False, few: bool = False
) -> tuple[float, float]:
    """Return the messages in a row of an all_reduce, and the words on its busiest link.

    few: whether all workers send their words directly to all others, instead of along a ring or a tree.
    """
    messages, sent = _COUNTS["direct" if few else "all_reduce_tree" if tree else "all_reduce_ring"](workers)
    return messages, sent * words


def direct_cost(workers: int, words: float, few_words: int) -> tuple[float, float]:
    """Return the messages in a row, and the words on the busiest link, of an all_reduce by direct messages.

    Up to `few_words` words are sent to all others; of more words, each worker combines a share.
    """
    if words <= few_words:
        return all_reduce_cost(workers, words, few=True)
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
#: The carriers of words: a process group's connections, or the switch. Each has its own link.
Carrier = Literal["group", "switch"]
CARRIERS: tuple[Carrier, ...] = get_args(Carrier)
#: The methods that send every element.
DENSE: tuple[Method, ...] = ("dense_ring", "dense_tree", "dense_switch")
#: Nanoseconds per element to select the largest elements; `TopK` took 6 to 22.
_SELECT_NS = 10.0


@dataclass(frozen=True)
class Workload:
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
    """Exchanges of a few words before each sum, if the method itself has none; the hook has 1."""
    few_words: int = 0
    """Sums of fewer words over a process group take direct messages, not a ring or tree; 0 for none."""

    def __post_init__(self) -> None:
        check_range("elements", self.elements, 1, 2**40)
        check_range("ratio", self.ratio, 0, 1)
        check_range("workers", self.workers, 2, 1024)
        check_range("select_s", self.compress_s, 0, 1e9)
        check_range("sums", self.sums, 1, 2**30)
        check_range("headers", self.headers, 0, 64)
        check_range("few_words", self.few_words, 0, 2**40)

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
    """The predicted cost of a step by a method."""

    method: Method
    """The method."""
    words: float
    """32-bit words that cross the busiest link in one direction."""
    latency_s: float
    """Seconds of messages in a row, without their words."""
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


def costs(step: Workload, methods: Collection[Method] = METHODS) -> list[Cost]:
    """Return the cost of each method, fastest first; in the order of METHODS if times are equal."""
    unsorted = (cost(method, step) for method in METHODS if method in methods)
    return sorted(unsorted, key=lambda item: item.seconds)


def cost(method: Method, step: Workload) -> Cost:
    """Return the predicted cost of a step by a method."""
    if carrier_of(method) == "switch":
        return _switch_cost(method, step)
    reduce = "all_reduce_tree" if method.endswith("_tree") else "all_reduce_ring"
    gather, broadcast = (COLLECTIVES[name](step.link, step.workers) for name in ("all_gather", "broadcast"))
    header, codec_s = _all_reduce_network(reduce, step, 0), 0.0 if method in DENSE else step.compress_s
    #: The collectives, one after another, and their words.
    parts: list[tuple[NetworkModel, int]]
    if method in DENSE:
        parts = [(_all_reduce_network(reduce, step, step.elements), step.elements)]
    elif method == "top_k_all_gather":  # every worker's positions and values, to every other worker
        header, parts = gather, [(gather, 2 * step.sent)]
    else:
        parts = [(broadcast, step.sent), (_all_reduce_network(reduce, step, step.sent), step.sent)]
    header_s = step.headers * header.seconds(0, 1)
    latency_s = step.sums * (header_s + sum(network.seconds(0, 1) for network, _ in parts))
    transfer_s = sum(network.seconds(words, 0) for network, words in parts)
    return Cost(method, transfer_s * step.link.gbps * 1e9 / _WORD_BITS, latency_s, transfer_s, codec_s)


def _all_reduce_network(reduce: str, step: Workload, words: float) -> NetworkModel:
    """Return the network model of the all_reduces of a step, in which all sums together have `words` words.

    It is that of the collective `reduce`, or of "direct" if a sum has fewer words than `step.few_words`.
    """
    few = words < step.sums * step.few_words
    return COLLECTIVES["direct" if few else reduce](step.link, step.workers)


def _switch_cost(method: Method, step: Workload) -> Cost:
    """Return the cost of a step through a switch.

    `dense_switch` exchanges headers, to agree on the scale, and values in fixed point. `ar_top_k_switch` is
    STAR-Topk: it exchanges bounds and the index, a list or a bitmap, and then values. (VAR-Topk exchanges
    merits before.) `top_k_switch` takes the fastest sparse form of the all-reduce, for elements that each
    worker has selected independently.
    """
    network, exchanges = step.path.network(step.link), 1 + step.headers
    words: float = step.elements
    if method == "dense_switch":
        codec_s = _form_candidates(step.elements, 1.0, _DENSE_FORMS)[0].codec_s
    elif method == "ar_top_k_switch":
        index_size = min(step.sent, index_words(step.elements))
        words, exchanges = AGREEMENT_WORDS + step.workers + index_size + step.sent, 2
        codec_s = step.compress_s
    else:
        density = max(1.0 - (1.0 - step.ratio) ** step.workers, 1 / step.elements)
        best = min(
            _form_candidates(step.elements, density, _SPARSE_FORMS), key=lambda item: item.seconds(network)
        )
        words, exchanges, codec_s = best.words, best.exchanges, best.codec_s + step.compress_s
    latency_s = network.seconds(0, step.sums * exchanges)
    return Cost(method, words, latency_s, network.seconds(words, 0), codec_s)


@lru_cache(256)  # a strategy asks for the same elements and ratios for every link
def _form_candidates(elements: int, density: float, forms: tuple[Form, ...]) -> tuple[CostEstimate, ...]:
    """Return the forms in which an all-reduce can send a union of this density, with and without a header."""
    statistics = UnionCounts.uniform(elements, density)
    after_header = cost_estimates(elements, statistics, PlanSettings(), forms)
    return (*after_header, *cost_estimates(elements, statistics, PlanSettings(), forms, one_round=True))


_DENSE_FORMS: tuple[Form, ...] = ("dense",)
_SPARSE_FORMS = tuple(form for form in FORMS if form not in _DENSE_FORMS)

#: The quantities over which `crossovers` can search, and the range of each.
Axis = Literal["gbps", "latency_s", "ratio", "elements"]
AXES: dict[Axis, tuple[float, float]] = {
    "gbps": (1e-3, 1e3),
    "latency_s": (1e-6, 1.0),
    "ratio": (1e-4, 1.0),
    "elements": (1e3, 1e9),
}
_GRID_PER_DECADE = 8
_BISECTIONS = 20


@dataclass(frozen=True)
class Crossover:
    """The value of a quantity at which the fastest method changes, if all other quantities stay the same."""

    axis: Axis
    """The quantity that varies."""
    at: float
    """Its value."""
    below: Method
    """The fastest method just below it."""
    above: Method
    """The fastest method just above it."""


def crossovers(step: Workload, axis: Axis, methods: Collection[Method] = METHODS) -> Iterator[Crossover]:
    """Yield the values of a quantity at which the fastest method changes, in ascending order.

    The search covers the quantity's range in AXES in steps of an eighth of a decade. Bisection then finds
    each value with a precision of a millionth of the range, in logarithm.
    """
    least, most = AXES[axis]
    count = round(math.log10(most / least) * _GRID_PER_DECADE)
    grid = [least * (most / least) ** (number / count) for number in range(count + 1)]
    first = _fastest(step, axis, grid[0], methods)
    for low, high in pairwise(grid):
        second = _fastest(step, axis, high, methods)
        if second != first:
            for _ in range(_BISECTIONS):
                middle = math.sqrt(low * high)
                if _fastest(step, axis, middle, methods) == first:
                    low = middle
                else:
                    high = middle
            yield Crossover(axis, high, first, _fastest(step, axis, high, methods))
        first = second


def _fastest(step: Workload, axis: Axis, value: float, methods: Collection[Method]) -> Method:
    """Return the fastest method for a step in which the quantity `axis` has this value."""
    changed: dict[str, Any] = {axis: round(value) if axis == "elements" else value}
    if axis in ("gbps", "latency_s"):
        changed = {"link": replace(step.link, **changed)}
    return costs(replace(step, **changed), methods)[0].method
