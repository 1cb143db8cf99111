"""Size and speed of the codec's forms on a recorded gradient.

The tensor is the sum of the last step of a trace: that in a folder of `peelsum trace record`, or one of the
package's own, by its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peelsum.experiments as package
from peelsum.bench.codec.rows import Row, bench_trace
from peelsum.experiments import Experiment, Size, columns_of

TRACES = Path(package.__file__).parent / "traces"


def measure(seed: int, trace: str, device: str) -> Any:
    """Measure one tensor in every form, after compiling all loops."""
    own = TRACES / trace
    return bench_trace(own if own.is_dir() else Path(trace), seed=seed, device=device)


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(Row, without=("device",)),
    keys=("form", "index"),
    sizes={
        "quick": Size([{"trace": ("ncf",), "device": ("cpu",)}], 1),
        "usual": Size([{"trace": ("ncf", "lstm", "vgg19", "bert"), "device": ("cpu",)}], 1),
    },
    choices={"device": ("cpu", "cuda")},
)
