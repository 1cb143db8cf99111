"""Stages that the program would need on a Tofino with more lanes.

With `pairs`, a stateful ALU holds two lanes and returns one of them; a packet that leaves would need a second
pass for the other. Needs p4c-barefoot and bfas on PATH, and about a minute for each variant.
"""

from __future__ import annotations

from peelsum.experiments import Column, Experiment, Size, Value


def measure(seed: int, device: str, lanes: int, pairs: bool) -> dict[str, Value]:
    """Compile one variant."""
    from peelsum.bench.switch.tofino_variants import compile_variant

    return {"stages": compile_variant(device, lanes, pairs=pairs)}


EXPERIMENT = Experiment(
    measure=measure,
    columns={"stages": Column("pipeline stages that the program needs")},
    sizes={
        "usual": Size(
            [
                {"device": ("tofino",), "lanes": (32, 36), "pairs": (False,)},
                {"device": ("tofino",), "lanes": (56, 64), "pairs": (True,)},
            ],
            1,
        )
    },
    ranges={"lanes": (2, 1024)},
    choices={"device": ("tofino", "tofino2")},
    timed=False,
)
