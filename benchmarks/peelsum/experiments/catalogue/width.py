"""The width of a sketch's blocks against speed: elements that are hashed together share cache lines."""

from __future__ import annotations

from peelsum.experiments import Column, Experiment, Plot, Size, Value


def measure(seed: int, lanes: int, density: float, support: str, elements: int) -> dict[str, Value]:
    """Encode and decode one tensor with blocks of `lanes` elements."""
    import time

    from peelsum.allreduce import BitmapIndex, Choice, Prediction, Settings
    from peelsum.bench.codec import Device, one_step, tensor
    from peelsum.codec import kernels

    values, positions = tensor(support, elements, density, seed)  # type: ignore[arg-type]
    # A choice has a width only if its sketch is sent with the index, by a prediction: here a right one.
    prediction = Prediction(kernels().magnitude(values) >> 23, positions.size)
    choice, device = Choice("sketch", BitmapIndex(), prediction, lanes=lanes), Device.of("cpu")
    one_step(device, choice, values, Settings(), 256, seed)
    spent = time.process_time()
    runs = [one_step(device, choice, values, Settings(), 256, seed) for _ in range(3)]
    spent = (time.process_time() - spent) / len(runs)
    best = min(runs, key=lambda one: one.codec_s)
    return {
        "ns_a_non_zero": 1e9 * best.codec_s / positions.size,
        "encode_gbit_s": 32 * elements / best.encode_s / 1e9,
        "decode_gbit_s": 32 * elements / best.decode_s / 1e9,
        "cpu_ms": 1e3 * spent,
        "left_over": best.left / positions.size,
        "words_over_non_zeros": best.words / positions.size,
    }


EXPERIMENT = Experiment(
    name="width",
    title="The width of a block against speed",
    about="""
One worker encodes and decodes a tensor in the sketch form with a bitmap index, in memory, with blocks of
`lanes` elements that share their hashes. The fastest of three runs counts for times; processor time is that
of all threads, with the check of every decoded value. The codec chooses the width itself; here it is given.
""",
    measure=measure,
    columns={
        "ns_a_non_zero": Column("nanoseconds of encoding and decoding for each non-zero"),
        "encode_gbit_s": Column("gigabits of dense float32 encoded per second"),
        "decode_gbit_s": Column("gigabits of dense float32 decoded per second"),
        "cpu_ms": Column("milliseconds of processor time, checking included"),
        "left_over": Column("share of non-zeros that peeling does not recover"),
        "words_over_non_zeros": Column("words sent, over the non-zeros"),
    },
    sizes={
        "quick": Size(
            [{"lanes": (4, 256), "density": (0.01,), "support": ("uniform",), "elements": (2**20,)}], 3
        ),
        "usual": Size(
            [
                {
                    "lanes": (4, 16, 64, 256, 1024),
                    "density": (0.01, 0.1),
                    "support": ("uniform", "rows"),
                    "elements": (2**22,),
                }
            ],
            5,
        ),
    },
    plots=[
        Plot("speed", x="lanes", y="ns_a_non_zero", lines="density", where={"support": "uniform"}, log="x")
    ],
)
