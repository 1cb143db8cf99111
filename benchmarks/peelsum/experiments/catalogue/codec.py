"""Size and speed of every form of the codec, beside LHC's layout and the lower bound.

Encoding is everything before words are sent, in any round; decoding is the rest. Both include the memory
that they fill. The fastest of up to five runs counts. Every decoded tensor is compared with NumPy's
arithmetic. LHC is our implementation of its layout: with its program's table, the smallest that recovers
all, and the fastest. With NUMBA_NUM_THREADS=1, times are processor time.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.codec import SUPPORTS
from peelsum.bench.codec.rows import (
    DEFAULT_DENSITIES,
    DEFAULT_ELEMENTS,
    QUICK_ELEMENTS,
    Row,
    bench_codec,
    points_of,
)
from peelsum.experiments import Experiment, Size, Value, columns_of


def measure(seed: int, elements: int, density: float, support: Any, cells: float, device: str) -> Any:
    """Measure one tensor in every form, after compiling all loops."""
    points = points_of([elements], [density], [support])
    return bench_codec(points, cells_per_candidate=cells, seed=seed, device=device)


def part(elements: tuple[int, ...], densities: tuple[float, ...], cells: float = 1.4) -> dict[str, Any]:
    """Return one part of the grid."""
    fixed: dict[str, tuple[Value, ...]] = {"cells": (cells,), "device": ("cpu",)}
    return {"elements": elements, "density": densities, "support": SUPPORTS, **fixed}


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(Row, without=("elements", "density", "support", "device")),
    keys=("form", "index"),
    sizes={
        "quick": Size([part(QUICK_ELEMENTS, (0.01,))], 1),
        "usual": Size([part(DEFAULT_ELEMENTS, DEFAULT_DENSITIES)], 1),
    },
    ranges={"elements": (1, 2**40), "density": (1e-9, 1), "cells": (0.1, 100)},
    choices={"support": SUPPORTS, "device": ("cpu", "cuda")},
)
