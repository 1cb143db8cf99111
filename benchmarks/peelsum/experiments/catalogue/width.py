"""The width of a block against speed.

The numbers of a known union are encoded as a sketch and peeled, in memory, with blocks of `lanes` elements
that share their hashes. The fastest of three runs counts for times; processor time is of all threads. The
codec chooses the width itself; here it is given.
"""

from __future__ import annotations

from peelsum.experiments import Column, Experiment, Plot, Size, Value


def measure(seed: int, lanes: int, density: float, support: str, elements: int) -> dict[str, Value]:
    """Encode and decode one tensor with blocks of `lanes` elements."""
    import time

    import numpy as np

    from peelsum.bench.codec import tensor
    from peelsum.codec import SketchLayout, kernels, warm_up

    warm_up()
    _, positions = tensor(support, elements, density, seed)  # type: ignore[arg-type]
    numbers = np.random.default_rng(seed).integers(-(2**20), 2**20, positions.size, np.int32)
    layout, ops = SketchLayout.segmented(positions.size, lanes, seed), kernels()
    cells, decoded = np.empty(layout.cells, np.uint32), np.empty_like(numbers)
    encode_s, decode_s, left = [], [], positions[:0]
    spent = time.process_time()
    for _ in range(3):
        started = time.perf_counter()
        ops.sketch_encode(layout, positions, numbers, cells)
        encode_s.append(time.perf_counter() - started)
        started = time.perf_counter()
        left = ops.sketch_decode(layout, cells, positions, decoded)
        decode_s.append(time.perf_counter() - started)
    spent = (time.process_time() - spent) / 3
    decoded[left] = numbers[left]
    assert np.array_equal(decoded, numbers)
    return {
        "ns_a_non_zero": 1e9 * (min(encode_s) + min(decode_s)) / positions.size,
        "encode_gbit_s": 32 * elements / min(encode_s) / 1e9,
        "decode_gbit_s": 32 * elements / min(decode_s) / 1e9,
        "cpu_ms": 1e3 * spent,
        "left_over": left.size / positions.size,
        "words_over_non_zeros": layout.cells / positions.size,
    }


WIDTHS = {"lanes": (4, 16, 64, 256, 1024), "density": (0.01, 0.1)}
EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "ns_a_non_zero": Column("nanoseconds of encoding and decoding for each non-zero"),
        "encode_gbit_s": Column("gigabits of dense float32 encoded per second"),
        "decode_gbit_s": Column("gigabits of dense float32 decoded per second"),
        "cpu_ms": Column("milliseconds of processor time"),
        "left_over": Column("share of non-zeros that peeling does not recover"),
        "words_over_non_zeros": Column("cells, over the non-zeros"),
    },
    sizes={
        "quick": Size([{"lanes": (4, 256), "density": 0.01, "support": "uniform", "elements": 2**20}], 3),
        "usual": Size([{**WIDTHS, "support": ("uniform", "rows"), "elements": 2**22}]),
    },
    plots=[
        Plot("speed", x="lanes", y="ns_a_non_zero", lines="density", where={"support": "uniform"}, log="x")
    ],
)
