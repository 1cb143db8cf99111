"""Millions of chunks with losses and wraps in one process, every sum compared.

Chunks of 32 lanes go through the softswitch, the aggregation server and four workers, in one process
without sockets. Chunk id, slot tag and the slots' clock start just below their wraps. Each hop loses a
share `loss` of the packets. A quarter of the tensors is OR-ed; the others are added. Every sum of every
worker is compared bit for bit.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.soak import Report, soak
from peelsum.experiments import Experiment, Size, columns_of


def measure(seed: int, chunks: int, loss: float) -> dict[str, Any]:
    """Sum the chunks."""
    report = vars(soak(chunks, loss, seed + 1))
    return {("summed" if name == "chunks" else name): value for name, value in report.items()}


EXPERIMENT = Experiment(
    measure=measure,
    columns=columns_of(Report, without=("chunks",), summed="chunks summed and compared"),
    sizes={
        "quick": Size([{"chunks": (100_000,), "loss": (0.001,)}], 1),
        "usual": Size([{"chunks": (10_000_000,), "loss": (0.001,)}], 1),
    },
    ranges={"chunks": (1, 1 << 31), "loss": (0, 0.5)},
)
