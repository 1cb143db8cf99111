"""Words of every form, and of LHC's program and best, over the lower bound.

Words that a worker sends, over the least that non-zeros and their positions need. `lhc` is the layout of
LHC's program, `lhc_fewest` what its paper allows at best. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import Experiment, Plot, Series, Size
from benchmarks.rivals.lhc import fewest_words, smallest_lhc
from peelsum.allreduce.costs import lower_bound_bits
from peelsum.bench.codec.rows import bench_codec
from peelsum.bench.codec.timing import SUPPORTS, tensor

CELLS = 1.3


def measure(seed: int, elements: int, density: float, support: Any) -> Iterator[dict[str, Any]]:
    """Count the words of one tensor; "lhc_fewest" is what LHC's paper allows at best."""
    names = ("form", "index", "over_lower_bound")
    for row in bench_codec(support, elements, density, cells_per_candidate=CELLS):
        yield {name: row[name] for name in names}
    _, union = tensor(support, elements, density, seed=0)
    bound = lower_bound_bits(elements, union.size)
    program, best = smallest_lhc(union, elements), fewest_words(union, elements)
    if program is not None:
        yield dict(
            zip(names, ("lhc", "four_bit", round(32 * program.words(elements) / bound, 4)), strict=True)
        )
    if best is not None:
        index = "bitmap" if best.index_words == -(-elements // 32) else "bloom"
        yield dict(zip(names, ("lhc_fewest", index, round(32 * best.words / bound, 4)), strict=True))


#: Series by form and index; `auto` chooses its index.
NAMES = {
    **{
        f"auto, {index}": Series("peelsum, auto", "blue", ours=True)
        for index in ("bloom", "blocks", "bitmap")
    },
    "compact, bitmap": Series("peelsum, compact, bitmap", "blue", "--"),
    "sketch, bitmap": Series("peelsum, sketch, bitmap", "teal", "--"),
    "sketch, bloom": Series("peelsum, sketch, Bloom filter", "teal", ours=True),
    "lhc, four_bit": Series("LHC, as published", "orange"),
    **{f"lhc_fewest, {index}": Series("LHC, fewest words", "orange", "--") for index in ("bloom", "bitmap")},
}


def at_most(medians: Any) -> str:
    """Return how far above the bound `auto` is at most, and LHC's program at 1%."""
    auto = max(max(sizes.values()) for key, sizes in medians.by_series.items() if key.startswith("auto"))
    lhc = medians["lhc, four_bit@0.01"]
    return f"""peelsum's choice takes at most {auto:.2f} times the lower bound at any density; at 1%, LHC's
        program takes {lhc:.0f} times the bound, and its best {{lhc_fewest, bloom@0.01:.1f}} times"""


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "form": "form of the values",
        "index": "form of the index",
        "over_lower_bound": "size over the lower bound, 32 rho + H(rho)",
    },
    keys=("form", "index"),
    defaults={"support": SUPPORTS},
    sizes={
        "quick": Size([{"elements": 2**18, "density": 0.01, "support": "uniform"}], 1),
        "usual": Size(
            [{"elements": 2**22, "density": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)}], 1
        ),
    },
    plots=[
        Plot(
            f"size_{support}",
            x="density",
            y="over_lower_bound",
            lines="form index",
            where={"support": support},
            log="xy",
            percent="x",
            finding=finding,
            setting=f"""One worker's words of 4,194,304 elements, {where}, over 32 bits a non-zero and the
                entropy of their places. Counted.""",
            xlabel="Elements that are not zero (%)",
            ylabel="Size over the lower bound",
            names=NAMES,
        )
        for support, where, finding in (
            ("uniform", "non-zeros anywhere", at_most),
            ("rows", "whole rows of non-zeros", at_most),
            ("columns", "whole columns of non-zeros", at_most),
        )
    ],
    choices={"support": SUPPORTS},
    timed=False,
)
