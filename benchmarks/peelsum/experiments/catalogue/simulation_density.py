"""The network's time of a simulated sparse sum, by density and encoding.

Each element is non-zero at a worker with probability `density`. No time of encoding or decoding is in it. Our
words are those of the planner's smallest form; LHC's are those of its program's layout, and of the best that
its paper allows, in the smallest table that recovers everything. OmniReduce sends blocks of 256 elements, in
the fastest number of streams. all_gather sends indices and values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from peelsum.allreduce import Settings
from peelsum.allreduce.costs import Seen, candidates
from peelsum.bench.simulation import LANES, figures, lhc_words, measured, omnireduce, scenario_of
from peelsum.experiments import Column, Experiment, Plot, Size
from peelsum.experiments.catalogue.simulation_scale import COLUMNS


def measure(seed: int, density: float, workers: int, elements: int) -> Iterator[dict[str, Any]]:
    """Simulate all encodings."""
    random = np.random.default_rng(round(density * 1e6))
    supports = random.random((workers, elements), np.float32) < density
    union = np.flatnonzero(supports.any(0))
    seen = Seen.uniform(elements, len(union) / elements)
    best = min(candidates(elements, seen, Settings()), key=lambda one: one.words)
    shortest = measured(scenario_of(workers, elements=1), "peelsum")["seconds"]
    whole = scenario_of(workers, elements=elements)
    lhc, lhc_best = (lhc_words(way, union, elements) for way in ("lhc", "lhc_best"))
    for algorithm, runs, words in (
        ("peelsum", "peelsum", math.ceil(best.words)),
        ("lhc", "peelsum", lhc.words if lhc else elements),
        ("lhc_best", "peelsum", lhc_best.words if lhc_best else elements),
        ("dense", "peelsum", elements),
        ("ring", "ring", elements),
        ("all_gather", "all_gather", 2 * int(supports.sum(1).max())),
    ):
        found = measured(scenario_of(workers, elements=words), runs)
        if algorithm == "peelsum":
            # Each exchange before the last waits for its own results.
            found["seconds"] += (best.exchanges - 1) * shortest
        yield {"algorithm": algorithm, "words": words, **figures(whole, **found)}
    values = random.integers(1, 1 << 32, (workers, elements), np.uint32) * supports
    run = omnireduce(whole, values)
    words = int(values.reshape(workers, -1, LANES).any(2).sum(1).max()) * LANES
    counts = {"in_switch": run.in_switch, "octets": run.octets, "wrong": run.wrong}
    yield {"algorithm": "omnireduce", "words": words, **figures(whole, run.seconds, **counts)}


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "algorithm": Column("the encoding, or the collective"),
        "words": Column("words that the network sums; of `omnireduce` and `all_gather`, what a worker sends"),
        **COLUMNS,
    },
    keys=("algorithm",),
    sizes={
        "quick": Size([{"density": 0.01, "workers": 2, "elements": 1 << 16}], 1),
        "usual": Size([{"density": (0.0001, 0.001, 0.01, 0.1), "workers": 8, "elements": 1 << 20}], 1),
    },
    plots=[Plot("seconds", "density", "seconds", "algorithm", log="xy")],
    timed=False,
)
