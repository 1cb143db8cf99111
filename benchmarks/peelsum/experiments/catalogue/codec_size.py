"""Words of every form, and of LHC's program and best, over the lower bound.

Words that a worker sends, over the least that non-zeros and their positions need. `lhc` is the layout of
LHC's program, `lhc_fewest` what its paper allows at best. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from peelsum.allreduce.costs import lower_bound_bits
from peelsum.bench.codec import SUPPORTS
from peelsum.bench.codec.lhc import smallest_lhc
from peelsum.bench.codec.lhc_bloom import fewest_words
from peelsum.bench.codec.rows import WAYS, Point, bench_codec
from peelsum.bench.codec.supports import tensor
from peelsum.experiments import Column, Experiment, Plot, Size

_SIZES = ("elements", "density", "support", "form", "index", "over_lower_bound")


def size_rows(points: Sequence[Point], cells_per_candidate: float = 1.3) -> Iterator[dict[str, Any]]:
    """Yield a row for each point and form; "lhc_fewest" is what LHC's paper allows at best."""
    for point in points:
        ways = tuple(way for way in WAYS if way[0] != "lhc")
        for row in bench_codec([point], ways=ways, cells_per_candidate=cells_per_candidate):
            yield {name: getattr(row, name) for name in _SIZES}
        yield from _lhc(point)


def _lhc(point: Point) -> Iterator[dict[str, Any]]:
    assert point.support != "trace"
    _, union = tensor(point.support, point.elements, point.density, seed=0)
    bound = lower_bound_bits(point.elements, union.size)
    program, best = smallest_lhc(union, point.elements), fewest_words(union, point.elements)
    found = []
    if program is not None:
        found.append(("lhc", "four_bit", program.words(point.elements)))
    if best is not None:
        bitmap = best.index_words == -(-point.elements // 32)
        found.append(("lhc_fewest", "bitmap" if bitmap else "bloom", best.words))
    for form, index, words in found:
        figures = (*point, form, index, round(32 * words / bound, 4))
        yield dict(zip(_SIZES, figures, strict=True))


def measure(seed: int, elements: int, density: float, support: Any) -> Any:
    """Count the words of one tensor."""
    from peelsum.bench.codec.rows import points_of

    return size_rows(points_of([elements], [density], [support]))


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "form": Column("form of the values"),
        "index": Column("form of the index"),
        "over_lower_bound": Column("size over the lower bound, 32 rho + H(rho)"),
    },
    keys=("form", "index"),
    sizes={
        "quick": Size([{"elements": (2**18,), "density": (0.01,), "support": ("uniform",)}], 1),
        "usual": Size(
            [
                {
                    "elements": (2**22,),
                    "density": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5),
                    "support": SUPPORTS,
                }
            ],
            1,
        ),
    },
    plots=[
        Plot(f"size_{support}", "density", "over_lower_bound", "form index", {"support": support}, "xy")
        for support in SUPPORTS
    ],
    choices={"support": SUPPORTS},
    timed=False,
)
