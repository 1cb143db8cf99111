"""How to launch each kernel on this machine's GPU; the fastest launches become the device's row.

Every candidate must give the bits of the default row.
"""

from __future__ import annotations

from typing import Any

from peelsum.experiments import Column, Experiment, Size


def measure(seed: int, elements: int) -> Any:
    """Measure all candidates, and write the device's row of the table of launches."""
    from peelsum.bench.gpu_tuning import tune_this_device

    return tune_this_device(elements)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "kernel": Column("the kernel"),
        "launch": Column("its fastest launch"),
        "us": Column("microseconds with this launch"),
        "default_us": Column("microseconds with that of the default row"),
    },
    keys=("kernel",),
    sizes={"usual": Size([{"elements": (2**27,)}], 1)},
    needs=("torch",),
)
