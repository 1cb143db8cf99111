"""`peelsum bench gpu_launches`: measure how to launch each kernel on this machine's GPU, and write its row.

Every candidate must give the bits of the default row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peelsum.bench.devices import median_s, require_gpu
from peelsum.codec import SketchLayout, gpu, gpu_tuning
from peelsum.codec.gpu_segments import GpuSegments
from peelsum.codec.gpu_tuning import Launch
from peelsum.codec.segments import Segment, Table

ELEMENTS, DENSITY = 2**27, 0.05
_LANES = 256


class TuningError(ValueError):
    """A candidate gave other bits than the default row."""


@dataclass(frozen=True)
class Work:
    """A kernel's work on one tensor."""

    kernel: str
    run: Callable[[], None]
    """Launches the kernel, and those that have its tiles."""
    written: Sequence[Tensor]
    """What it writes."""


def tune_this_device(elements: int) -> Iterator[dict[str, Any]]:
    """Measure all kernels, and write the device's row; yield what was found. Raises NoDeviceError."""
    require_gpu()
    device = torch.device("cuda", torch.cuda.current_device())
    rows: list[dict[str, Any]] = []
    found = tune(device, elements=elements, tell=rows.append)
    gpu_tuning.write_row(torch.cuda.get_device_name(device), found)
    yield from rows


def tune(
    device: torch.device,
    *,
    elements: int = ELEMENTS,
    seconds: Callable[[Work, torch.device], float] | None = None,
    tell: Callable[[dict[str, Any]], None],
) -> dict[str, Launch]:
    """Return the fastest launch of each kernel of the table; `tell` is called with a row of each.

    seconds: measures a kernel's run; by default the median of several.
    """
    measure, row = seconds or _seconds, {}
    for work in _works(device, elements):
        work.run()
        truth = [one.clone() for one in work.written]
        found: dict[Launch, float] = {}
        for launch in gpu_tuning.candidates(work.kernel):
            for one in work.written:
                one.fill_(-1)
            with gpu_tuning.trying(work.kernel, launch):
                work.run()
                if not all(map(torch.equal, work.written, truth)):
                    raise TuningError(f"{work.kernel}: {launch} gives other bits than the default row")
                found[launch] = measure(work, device)
        row[work.kernel] = best = min(found, key=lambda launch: found[launch])
        was = found[gpu_tuning.default()[work.kernel]]
        figures = {"us": round(found[best] * 1e6, 1), "default_us": round(was * 1e6, 1)}
        tell({"kernel": work.kernel, "launch": str(best), **figures})
    return row


def _seconds(work: Work, device: torch.device) -> float:
    return median_s(work.run, device)


def _works(device: torch.device, n: int) -> Iterator[Work]:
    """Yield each kernel's work on float32[n], with normal numbers in a share of DENSITY."""
    generator = torch.Generator().manual_seed(0)
    kept = torch.rand(n, generator=generator) < DENSITY
    values = (torch.randn(n, generator=generator) * kept).to(device)

    def words(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    table = Table([Segment(n, sparse=True)])
    codec = GpuSegments(table, [values], [None], 1)
    scales, bitmap, where = words(table.scale_words), words(table.words), kept.nonzero().view(-1).to(device)
    layout, numbers = SketchLayout.sized(len(where), _LANES, 7), torch.arange(len(where), device=device)
    cells, listed = words(layout.cells), torch.zeros(len(where), dtype=torch.int64, device=device)
    bitmap.copy_(codec.write_scales(scales))
    own = words(table.words)

    def measure() -> None:
        own.copy_(codec.write_scales(scales))

    def listing() -> None:
        listed.copy_(gpu.positions(bitmap, n, count=len(where)))

    yield Work("measure_kernel", measure, [scales, own])
    yield Work("totals_kernel", listing, [listed])
    yield Work(
        "sketch_encode_kernel",
        lambda: gpu.sketch_encode(layout, where, numbers.to(torch.int32), cells),
        [cells],
    )
