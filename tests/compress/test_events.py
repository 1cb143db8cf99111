"""Measurements that workers agree on; events in words, and a drawing of decided steps."""

from dataclasses import replace

import numpy as np
import pytest
from network_model import World

from peelsum import compress
from peelsum.compress.events import GainChanged

FAST, SLOW = compress.LinkModel(1e-4, 10.0), compress.LinkModel(1e-3, 1.0)
RING = compress.MethodCandidate("ar_top_k_ring", 0.01, 0.012, 0.31)
DENSE = compress.MethodCandidate("dense_switch", 1.0, 0.05, 1.0)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (compress.ExplorationStarted(7), "every ratio is explored again"),
        (
            compress.ExplorationEnded(7, {0.1: 0.5, 0.01: 0.25}),
            "every ratio has been explored; gains: 0.5 at 0.1, 0.25 at 0.01",
        ),
        (
            compress.LinkChanged(7, "switch", FAST, SLOW),
            "the switch's link changed from 0.1 ms, 10 Gbit/s to 1 ms, 1 Gbit/s",
        ),
        (GainChanged(7, 0.4, 0.2), "the gain of the ratio in use changed from 0.4 to 0.2"),
        (
            compress.MethodChosen(7, RING, None, (RING, DENSE)),
            "use ar_top_k_ring at 0.01, 12 ms a step predicted, gain 0.31",
        ),
        (
            compress.MethodChosen(7, RING, DENSE, (RING, DENSE)),
            "use ar_top_k_ring at 0.01, 12 ms a step predicted, gain 0.31; "
            "before: dense_switch at 1, 50 ms a step predicted, gain 1",
        ),
    ],
)
def test_an_event_in_one_line(event, line):
    assert compress.describe_event(event) == line


def test_what_is_drawn():
    figures = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed")
    world = World(lambda step: SLOW if step >= 30 else FAST)
    world.run(compress.Flexible(), 50)
    history = [
        compress.DecidedStep(
            step + 1, method, ratio, exploring, 1e-3, {"group": SLOW if step >= 30 else FAST}
        )
        for step, (method, ratio, exploring) in enumerate(world.used)
    ]
    figure = figures.Figure()
    compress.draw(figure, history)
    method, ratio, exchange, rate, latency = figure.axes
    used = {name for name, _, _ in world.used}
    assert {label.get_text() for label in method.get_yticklabels()} == used
    assert method.get_ylim() == (-0.5, len(used) - 0.5)
    assert list(ratio.lines[0].get_ydata()) == [one.ratio for one in history]
    assert set(exchange.lines[0].get_ydata()) == {1.0}
    assert {line.get_label() for line in rate.lines} == {"group", "switch"}
    assert list(rate.lines[0].get_ydata()) == [10.0] * 30 + [1.0] * 20
    assert latency.lines[0].get_ydata()[-1] == pytest.approx(1.0)
    assert len(latency.patches) == sum(one.exploring for one in history)


def test_nothing_is_not_drawn():
    with pytest.raises(ValueError, match="history: is empty; train some steps first"):
        compress.draw(None, [])


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_all_agree_on_the_least_of_the_network_and_the_most_of_the_work(workers):
    rows = np.random.default_rng(workers).uniform(0, 1, (workers, 8)).astype(np.float32)
    rows[0, 0] = 0.0
    words = [compress.Measurement(*row.tolist()).words(rank, workers) for rank, row in enumerate(rows)]
    agreed = compress.Measurement.agreed(np.bitwise_or.reduce(words))
    expected = compress.Measurement(*rows.min(0).tolist())
    most = rows.max(0).tolist()
    assert agreed == replace(expected, compress_s=most[5], compute_s=most[6])
