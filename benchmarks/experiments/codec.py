"""Size and speed of every form of the codec, beside LHC's layout and the lower bound.

Encoding is everything before words are sent, in any round; decoding is the rest. Both include the memory
that they fill. The fastest of up to five runs counts. Every decoded tensor is compared with NumPy's
arithmetic. LHC is our implementation of its layout: with its program's table, the smallest that recovers
all, and the fastest. With NUMBA_NUM_THREADS=1, times are processor time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks import Experiment, Size
from benchmarks.rivals.lhc import LhcLayout, lhc_step, lhc_variants, sized_lhc, smallest_lhc
from peelsum.bench.codec.rows import WAYS, RandomTensor, codec_row, measure_form, random_tensor
from peelsum.bench.codec.timing import SUPPORTS, Measured, fastest
from peelsum.bench.point import Support
from peelsum.codec import fixed_point

#: A tensor to warm up with: small, and so sparse that LHC's layout recovers everything and its loops run.
WARM_UP: tuple[Support, int, float] = ("uniform", 2**14, 0.01)
#: Number of LHC's tables that are measured again after one run of each.
_FINALISTS = 3


class TimedLhc(NamedTuple):
    """A layout and its measurement."""

    layout: LhcLayout
    measured: Measured


def measure(
    seed: int, elements: int, density: float, support: Any, cells: float, device: str
) -> Iterator[dict[str, Any]]:
    """Measure one tensor in every form, LHC's first, after compiling all loops."""
    drawn = random_tensor(support, elements, density, seed, device)
    list(_rows(random_tensor(*WARM_UP, 0, device), cells))
    yield from _rows(drawn, cells)


def _rows(drawn: RandomTensor, cells: float) -> Iterator[dict[str, Any]]:
    """Yield all rows, with their ratios to LHC's fastest and published tables."""
    lhc = {row["form"]: row for row in lhc_rows(drawn)}
    figures = {"time": "codec_ms", "size": "bits_per_element"}
    for row in (*lhc.values(), *(measure_form(drawn, form, index, cells) for form, index in WAYS)):
        ratios = {
            f"{ratio}_ratio_to_{other}": round(row[figure] / lhc[f"lhc_{other}"][figure], 4)
            for other in ("best", "published")
            for ratio, figure in figures.items()
        }
        yield {"cells_per_non_zero": None, **row, **ratios}


def lhc_rows(drawn: RandomTensor) -> Iterator[dict[str, Any]]:
    """Yield the rows of LHC's layout: of the published size, the smallest that recovers all, and the fastest.

    On a GPU, also the published size with an index of one bit, as LHC's CUDA program has it.
    """
    fixed = fixed_point(int(np.abs(drawn.values).max().view(np.uint32)) >> 23, 1)

    def step(layout: LhcLayout) -> Measured:
        return lhc_step(drawn.device, layout, drawn.values, fixed)

    count = drawn.positions.size
    smallest = smallest_lhc(drawn.positions, drawn.values.size)
    measured = {"lhc_published": _timed_lhc(sized_lhc(count), step)}
    if smallest is not None:
        measured["lhc"] = _timed_lhc(smallest, step)
    if drawn.device.name == "cuda":
        measured["lhc_cuda"] = _timed_lhc(replace(sized_lhc(count), index_bits=1), step)
    measured["lhc_best"] = best_lhc(lhc_variants(count, smallest), step, *measured.values())
    for form, (layout, timed) in measured.items():
        rounds = layout.peeled(drawn.positions).rounds
        row = codec_row(drawn, form, "bitmap" if layout.index_bits == 1 else "four_bit", timed, rounds)
        yield {**row, "cells_per_non_zero": round(layout.cells / count, 3)}


def best_lhc(variants: list[LhcLayout], step: Callable[[LhcLayout], Measured], *also: TimedLhc) -> TimedLhc:
    """Return the fastest of the variants, and of those in `also`.

    Each is run once, and the fastest few as often as the codec's forms.
    """

    def seconds(table: TimedLhc) -> float:
        return table.measured.codec_s

    once = sorted((TimedLhc(layout, step(layout)) for layout in variants), key=seconds)
    again = [_timed_lhc(table.layout, step) for table in once[:_FINALISTS]]
    return min((*once, *again, *also), key=seconds)


def _timed_lhc(layout: LhcLayout, step: Callable[[LhcLayout], Measured]) -> TimedLhc:
    """Return the layout with its fastest run."""
    return TimedLhc(layout, fastest(lambda _: step(layout)))


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "form": "`auto` (fewest words), `compact`, `sketch`, or one of LHC's",
        "index": "form of the index",
        "bits_per_element": "bits of all words that a worker sends, over the elements",
        "over_lower_bound": "`bits_per_element` over the lower bound, 32 rho + H(rho)",
        "recovered_by_peeling": "share of candidates that peeling recovers, if anything is peeled",
        "rounds": "rounds of parallel peeling",
        "encode_gbps": "gigabits of dense float32 gradient encoded per second",
        "decode_gbps": "gigabits of dense float32 gradient decoded per second",
        "codec_ms": "milliseconds of encoding and decoding together",
        "cells_per_non_zero": "size of LHC's table",
        "time_ratio_to_best": "`codec_ms` over that of LHC's fastest table and index",
        "size_ratio_to_best": "size over that of LHC's fastest table and index",
        "time_ratio_to_published": "`codec_ms` over that of LHC's published table and index",
        "size_ratio_to_published": "size over that of LHC's published table and index",
    },
    keys=("form", "index"),
    defaults={"support": SUPPORTS, "cells": 1.3, "device": "cpu"},
    sizes={
        "quick": Size([{"elements": 2**20, "density": 0.01}], 1),
        "usual": Size([{"elements": (2**20, 2**24, 2**27), "density": (0.001, 0.01, 0.05, 0.1, 0.2)}], 1),
    },
    ranges={"elements": (1, 2**40), "density": (1e-9, 1), "cells": (0.1, 100)},
    choices={"support": SUPPORTS, "device": ("cpu", "cuda")},
)
