"""Size and speed of the codec's forms on a recorded gradient.

The tensor is the sum of the last step of a trace: that in a folder of `peelsum trace record`, or one of the
package's own, by its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peelsum.experiments as package
from peelsum.bench.codec.rows import bench_trace
from peelsum.experiments import Column, Experiment, Size
from peelsum.experiments.catalogue.codec import COLUMNS

TRACES = Path(package.__file__).parent / "traces"


def measure(seed: int, trace: str, device: str) -> Any:
    """Measure one tensor in every form, after compiling all loops."""
    own = TRACES / trace
    return bench_trace(own if own.is_dir() else Path(trace), seed=seed, device=device)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "elements": Column("elements of the tensor"),
        "density": Column("share of non-zeros"),
        **COLUMNS,
    },
    keys=("form", "index"),
    defaults={"device": "cpu"},
    sizes={
        "quick": Size([{"trace": "ncf"}], 1),
        "usual": Size([{"trace": ("ncf", "lstm", "vgg19", "bert")}], 1),
    },
    choices={"device": ("cpu", "cuda")},
)
