"""The cost model: collectives against a simulation message by message, methods against their parts."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from compressors import Workers

from peelsum import compress
from peelsum.compress.costs import CompressConfigError, all_reduce_cost, direct_cost
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

LINK = compress.LinkModel(1e-3, 0.1)
WORD_S = 32 / 0.1e9
STEP = compress.Workload(1_000_000, 0.01, 4, compress.LinkModel(1e-3, 1.0), select_s=0.0)


class Clocks:
    """Workers that send messages to each other; each message starts when its sender has its words."""

    def __init__(self, workers):
        self.at = [0.0] * workers

    def round(self, pairs, words):
        """Send messages at the same time, one for each pair of sender and receiver."""
        arrive = [(to, self.at[by] + LINK.latency_s + words * WORD_S) for by, to in pairs]
        for by, _ in pairs:
            self.at[by] += words * WORD_S
        for to, time in arrive:
            self.at[to] = max(self.at[to], time)

    def ring(self, words):
        self.round([(rank, (rank + 1) % len(self.at)) for rank in range(len(self.at))], words)

    def tree(self, words, *, down):
        distances = [2**power for power in range(10) if 2**power < len(self.at)]
        for distance in reversed(distances) if down else distances:
            low = range(0, len(self.at) - distance, 2 * distance)
            self.round([(one, one + distance) if down else (one + distance, one) for one in low], words)


def simulated(name, workers, words):
    clocks = Clocks(workers)
    for _ in range(workers - 1):
        if name in ("all_reduce_ring", "reduce_scatter"):
            clocks.ring(words / workers)
        if name == "all_reduce_ring":
            clocks.ring(words / workers)
        if name == "all_gather":
            clocks.ring(words)
    if name == "all_reduce_tree":
        clocks.tree(words, down=False)
    if name in ("all_reduce_tree", "broadcast"):
        clocks.tree(words, down=True)
    if name == "direct":
        for other in range(1, workers):
            clocks.round([(0, other)], words)
    return max(clocks.at)


@pytest.mark.parametrize("name", compress.COLLECTIVES)
def test_a_collective_takes_what_its_messages_take(name):
    """Other numbers of workers than powers of two take no longer."""
    for workers in (2, 4, 8, 16):
        model = compress.COLLECTIVES[name](LINK, workers)
        for words in (0, 1, 48_000):
            assert model.seconds(words, 1) == pytest.approx(simulated(name, workers, words), rel=1e-9)
    for workers in (3, 5, 6, 7):
        seconds = compress.COLLECTIVES[name](LINK, workers).seconds(48_000, 1)
        assert 0.6 * seconds <= simulated(name, workers, 48_000) <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
@pytest.mark.parametrize("words", [1, 1000, 48_001])
def test_an_exchange_costs_its_messages_and_its_words_on_the_busiest_link(workers, words):
    """Counted as the hook does, it takes what the model of its collective says."""
    for network, (messages, sent) in (
        (compress.COLLECTIVES["all_reduce_ring"], all_reduce_cost(workers, words)),
        (compress.COLLECTIVES["all_reduce_tree"], all_reduce_cost(workers, words, tree=True)),
        (compress.COLLECTIVES["direct"], all_reduce_cost(workers, words, few=True)),
    ):
        seconds = messages * LINK.latency_s + sent * WORD_S
        assert network(LINK, workers).seconds(words, 1) == pytest.approx(seconds, rel=1e-9)
    assert all_reduce_cost(workers, words, few=True) == (1, words * (workers - 1))
    assert direct_cost(workers, words, words) == (1, words * (workers - 1))
    assert direct_cost(workers, words, words - 1) == (2, pytest.approx(2 * words * (workers - 1) / workers))


def test_a_switch_sends_whole_packets_and_at_most_a_window_in_a_round_trip():
    frame_s = 8 * (FRAME_HEADER_BYTES + packet_bytes(256)) / 1e9
    wide = compress.SwitchPath(window=1 << 16, slots=1 << 18).network(compress.LinkModel(1e-4, 1.0))
    assert wide.seconds(256, 0) == pytest.approx(frame_s)
    assert wide.seconds(0, 3) == pytest.approx(3 * 2 * 1e-4)
    narrow = compress.SwitchPath(window=10).network(compress.LinkModel(1e-3, 1.0))
    assert narrow.seconds(256 * 1000, 0) == pytest.approx(1000 / 10 * 2e-3)
    few_slots = compress.SwitchPath(window=1024, slots=20).network(compress.LinkModel(1e-3, 1.0))
    assert few_slots == narrow
    two_racks = compress.SwitchPath(hops=4).network(compress.LinkModel(1e-3, 1.0))
    assert two_racks.seconds(0, 1) == pytest.approx(4e-3)


def test_methods_are_the_sum_of_their_collectives():
    sent, link = 10_000, STEP.link
    ring, tree = (
        compress.COLLECTIVES["all_reduce_ring"](link, 4),
        compress.COLLECTIVES["all_reduce_tree"](link, 4),
    )
    indexes = compress.COLLECTIVES["broadcast"](link, 4).seconds(sent, 1)
    assert compress.cost("dense_ring", STEP).seconds == pytest.approx(ring.seconds(1_000_000, 1))
    assert compress.cost("dense_tree", STEP).seconds == pytest.approx(tree.seconds(1_000_000, 1))
    assert compress.cost("ar_top_k_ring", STEP).seconds == pytest.approx(indexes + ring.seconds(sent, 1))
    assert compress.cost("ar_top_k_tree", STEP).seconds == pytest.approx(indexes + tree.seconds(sent, 1))
    gathered = compress.COLLECTIVES["all_gather"](link, 4).seconds(2 * sent, 1)
    assert compress.cost("top_k_all_gather", STEP).seconds == pytest.approx(gathered)
    assert compress.cost("top_k_all_gather", replace(STEP, select_s=0.5)).codec_s == 0.5
    assert compress.cost("dense_ring", replace(STEP, select_s=0.5)).codec_s == 0


@pytest.mark.parametrize("method", compress.METHODS)
def test_every_sum_has_its_latency_and_headers(method):
    one = compress.cost(method, STEP)
    many = compress.cost(method, replace(STEP, sums=7))
    assert many.latency_s == pytest.approx(7 * one.latency_s)
    assert (many.words, many.codec_s) == (one.words, one.codec_s)
    exchange_s = {"dense_ring": 6e-3, "dense_tree": 4e-3, "dense_switch": 2e-3}
    exchange_s |= {"top_k_all_gather": 3e-3, "ar_top_k_ring": 6e-3, "ar_top_k_tree": 4e-3}
    more_s = compress.cost(method, replace(STEP, headers=1)).latency_s - one.latency_s
    assert more_s == pytest.approx(exchange_s.get(method, 0.0))


@pytest.mark.parametrize("elements", [2000, 20_000])
@pytest.mark.parametrize("ratio", [0.1, 0.001])
@pytest.mark.parametrize(
    ("method", "compressor", "election"),
    [
        ("dense_switch", lambda _: compress.Dense(), 0),
        ("top_k_switch", compress.TopK, 0),
        ("ar_top_k_switch", compress.StarTopK, 0),
        ("ar_top_k_switch", compress.VarTopK, 1),
    ],
)
def test_the_switch_s_exchanges_and_words_are_those_of_a_sum(method, compressor, election, ratio, elements):
    """Four workers' second sum, as in the hook; VAR-Topk elects in an exchange more."""
    workers = Workers(compressor(ratio), 4, kind=compress.Memory)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        tensors = [{"x": rng.standard_normal(elements, np.float32)} for _ in range(4)]
        first, *others = workers.recorded(tensors)
    model = compress.cost(
        method, compress.Workload(elements, ratio, 4, compress.LinkModel(1.0, 1.0), headers=1)
    )
    assert len(first) == model.latency_s / 2 + election
    words = sum(size for parts in first for _, size in parts)
    assert words == pytest.approx(model.words, rel=0.02, abs=130)
    assert all(one == first for one in others)


@pytest.mark.parametrize("axis", compress.AXES)
def test_at_a_crossover_two_methods_take_the_same_time(axis):
    found = list(compress.crossovers(STEP, axis))
    assert [one.at for one in found] == sorted(one.at for one in found)
    for before, after in pairwise(found):
        assert before.above == after.below
    for one in found:
        here = at(axis, one.at)
        times = compress.cost(one.below, here).seconds, compress.cost(one.above, here).seconds
        # Words come in whole elements and whole chunks.
        assert times[0] == pytest.approx(times[1], rel=1e-2), one
        assert compress.costs(at(axis, one.at / 1.01))[0].method == one.below
        assert compress.costs(at(axis, one.at * 1.01))[0].method == one.above


def at(axis, value):
    if axis in ("gbps", "latency_s"):
        return replace(STEP, link=replace(STEP.link, **{axis: value}))
    return replace(STEP, **{axis: round(value) if axis == "elements" else value})


def test_crossovers_are_of_the_methods_that_there_are():
    rings = ("dense_ring", "ar_top_k_ring")
    (only,) = compress.crossovers(replace(STEP, select_s=0.01), "gbps", rings)
    assert (only.below, only.above) == ("ar_top_k_ring", "dense_ring")
    assert not list(compress.crossovers(STEP, "gbps", ["dense_ring"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"elements": 0}, "elements: 0 is out of range"),
        ({"ratio": 1.5}, "ratio: 1.5 is out of range; use 0 to 1"),
        ({"workers": 1}, "workers: 1 is out of range"),
        ({"select_s": -1.0}, "select_s: -1 is out of range"),
        ({"sums": 0}, "sums: 0 is out of range"),
        ({"headers": -1}, "headers: -1 is out of range"),
        ({"gbps": 0}, "gbps: 0 is out of range"),
        ({"latency_s": -1}, "latency_s: -1 is out of range"),
        ({"window": 0}, "window: 0 is out of range"),
    ],
)
def test_what_is_out_of_range_is_named(change, message):
    (name,) = change
    section = next(one for one in (STEP, STEP.link, STEP.path) if hasattr(one, name))
    with pytest.raises(CompressConfigError, match=message):
        replace(section, **change)
