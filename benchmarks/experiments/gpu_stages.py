"""What each stage of a sketch takes on a GPU, beside a copy of the gradient in its memory.

A worker's own gradient, uniform at random, on the device before and after; nothing is sent. Times are
medians between two events of the device. `index` reads the gradient once. `numbers` lists the candidates,
reads their values, and adds them to the sketch. `peel` ends with the left-over's size on the host. `results`
writes all sums. A copy reads and writes each byte. Peeled numbers are compared with the encoded ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import Experiment, Size
from peelsum.bench.codec.timing import NotExactError
from peelsum.bench.devices import median_s, require_gpu

_RUNS = 20


def measure(seed: int, elements: int, density: float) -> dict[str, Any]:
    """Measure the stages. Raises NoDeviceError, and NotExactError if a peeled number is wrong."""
    require_gpu()
    return stages("cuda", seed, elements, density)


def stages(device: str, seed: int, elements: int, density: float, runs: int = _RUNS) -> dict[str, Any]:
    """Measure the stages on a device."""
    import torch

    from peelsum.codec import SketchLayout
    from peelsum.codec.gpu import GpuDevice
    from peelsum.codec.segments import Segment, SegmentTable

    there = torch.device(device)
    gpu = GpuDevice(there)
    # Without a GPU nothing counts its memory.
    allocated = torch.cuda.max_memory_allocated if there.type == "cuda" else lambda device: 0

    def room(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int32, device=there)

    def us(run: Callable[[], object]) -> float:
        return round(1e6 * median_s(run, there, runs), 1)

    generator = torch.Generator(device=there).manual_seed(seed)
    values = torch.randn(elements, generator=generator, device=there)
    values *= torch.rand(elements, generator=generator, device=there) < density
    copy_us = us(partial(torch.empty_like(values).copy_, values))
    if there.type == "cuda":
        torch.cuda.reset_peak_memory_stats(there)
    before = allocated(there)
    table = SegmentTable([Segment(elements, sparse=True)])
    codec, scales = gpu.segments(table, [values], [None], 1), room(table.scale_words)
    index_us, union = us(lambda: codec.write_scales(scales)), codec.write_scales(scales)
    codec.read_scales(scales.cpu().numpy().view("uint32"))
    count = codec.set_candidates(union)[1]
    layout = SketchLayout.sized(count, seed)
    numbers, sums, cells = room(count), room(count), room(layout.cells)

    def encode() -> torch.Tensor:
        codec.gather(numbers)
        positions = gpu.positions(union, elements, count=count)
        gpu.sketch_encode(layout, positions, numbers, cells)
        return positions

    def read() -> None:
        segments = gpu.segments(table, [results], [results], 1)
        segments.set_scales(codec.fields, codec.scales)
        segments.set_candidates(union)
        segments.decode(numbers[:0], numbers, 1)

    numbers_us, positions = us(encode), encode()
    peel_us = us(lambda: gpu.sketch_decode(layout, cells, positions, sums))
    memory = (allocated(there) - before) / values.nbytes
    unpeeled = gpu.sketch_decode(layout, cells, positions, sums)
    differ = sums != numbers
    differ[unpeeled] = False
    wrong = int(differ.sum())
    if wrong:
        raise NotExactError(f"elements: {wrong:,} of {count:,} peeled numbers are wrong; please report it")
    results = values.clone()  # which are written over, as a bucket's are
    results_us = us(read)
    return {
        "candidates": count,
        "copy_us": copy_us,
        "copy_gbytes": round(8e-3 * elements / copy_us, 1),
        "index_us": index_us,
        "index_of_copy": round(copy_us / index_us / 2, 3),
        "numbers_us": numbers_us,
        "peel_us": peel_us,
        "peeled_per_us": round((count - unpeeled.numel()) / peel_us, 1),
        "left": unpeeled.numel(),
        "results_us": results_us,
        "memory": round(memory, 2),
    }


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "candidates": "elements that are not zero",
        "copy_us": "microseconds of a copy of the gradient",
        "copy_gbytes": "gigabytes that the copy reads and writes per second",
        "index_us": "microseconds of scales and bitmap",
        "index_of_copy": "gradient read per second by `index`, over bytes moved per second by the copy",
        "numbers_us": "microseconds of candidates, their numbers, and the sketch",
        "peel_us": "microseconds of peeling",
        "peeled_per_us": "candidates peeled per microsecond",
        "left": "candidates left over",
        "results_us": "microseconds of placing and writing all results",
        "memory": "most memory that the stages up to `peel` allocated, over the gradient's",
    },
    sizes={
        "quick": Size([{"elements": (2**20,), "density": (0.01,)}], 1),
        "usual": Size([{"elements": (2**20, 2**24, 2**27, 2**28), "density": (0.001, 0.01, 0.05, 0.2)}], 1),
    },
    ranges={"elements": (1, 2**32), "density": (1e-9, 1)},
)
