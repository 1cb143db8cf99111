"""Aggregation throughput against density: the switch over shaped links, beside a ring and LHC's layout."""

from __future__ import annotations

from peelsum.experiments import Column, Experiment, Plot, Published, Size, Value

MODELLED = ("ring", "lhc")


def measure(
    seed: int, density: float, way: str, elements: int, mbit: float, workers: int
) -> dict[str, Value]:
    """Sum one tensor over a star, or compute what a ring or LHC's layout would take on such links."""
    if way in MODELLED:
        return modelled(seed, density, way, elements, mbit, workers)
    from peelsum.bench.allreduce.rows import bench_allreduce

    size = str(4 * elements)
    dense, *sparse = bench_allreduce(
        begin=size,
        end=size,
        iterations=3,
        warmups=1,
        workers=workers,
        densities=(density,),
        forms=(way,),  # type: ignore[arg-type]
        rate_mbit=mbit,
        seed=seed,
    )
    (row,) = sparse
    return {
        "speedup": dense.time_us / row.time_us,
        "time_ms": row.time_us / 1e3,
        "throughput_gbit_s": 32 * elements / row.time_us / 1e3,
        "bytes_over_dense": row.wire_bytes / dense.wire_bytes,
        "codec_ms": (row.encode_us + row.decode_us) / 1e3,
        "wrong": (row.wrong or 0) + (dense.wrong or 0),
    }


def modelled(
    seed: int, density: float, way: str, elements: int, mbit: float, workers: int
) -> dict[str, Value]:
    """Return a row from the cost model, with the switch's dense sum by the same model as the base."""
    from peelsum.flexible import COLLECTIVES, LinkModel, SwitchPath

    link = LinkModel(50e-6, mbit / 1e3)
    switch = SwitchPath().network(link)
    base_s = switch.seconds(elements, 1)
    codec_s = 0.0
    if way == "ring":
        words, seconds = elements, COLLECTIVES["all_reduce_ring"](link, workers).seconds(elements, 1)
    else:
        words, codec_s = lhc(seed, density, elements)
        seconds = switch.seconds(words, 2) + codec_s
    return {
        "speedup": base_s / seconds,
        "time_ms": seconds * 1e3,
        "throughput_gbit_s": 32 * elements / seconds / 1e9,
        "bytes_over_dense": words / elements,
        "codec_ms": codec_s * 1e3,
        "wrong": None,
    }


def lhc(seed: int, density: float, elements: int) -> tuple[int, float]:
    """Return words and codec seconds of the smallest table of LHC's that recovers everything by peeling."""
    from peelsum.bench.codec import Device, lhc_step, smallest_lhc, tensor
    from peelsum.codec import fixed_point, kernels

    values, positions = tensor("uniform", elements, density, seed)
    layout = smallest_lhc(positions, elements)
    if layout is None:
        return elements, 0.0
    fixed = fixed_point(kernels().magnitude(values) >> 23, 1)
    measured = min(
        (lhc_step(Device.of("cpu"), layout, values, fixed) for _ in range(3)), key=lambda one: one.codec_s
    )
    return measured.words, measured.codec_s


WAYS = ("compact", "sketch", "ring", "lhc")
EXPERIMENT = Experiment(
    name="density",
    title="Aggregation throughput against density",
    about="""
Four workers sum one float32 tensor through the softswitch. Each port of the switch sends at most `mbit`
Mbit/s. A sparse way is compared with the dense sum over the same star, started for this row, so that other
programs disturb both alike. `density` is the share of elements that are non-zero on some worker.

A ring of dense words, and LHC's layout in the smallest table that recovers everything by peeling, are
computed from the cost model with such links; LHC's codec is timed. Their base is the dense sum by the same
model.
""",
    measure=measure,
    columns={
        "speedup": Column("times faster than the dense sum through the switch"),
        "time_ms": Column("milliseconds of a sum, of the slowest worker"),
        "throughput_gbit_s": Column("gigabits of dense float32 summed per second and worker"),
        "bytes_over_dense": Column("bytes that a worker sends, over those of the dense sum"),
        "codec_ms": Column("milliseconds of encoding and decoding"),
        "wrong": Column("elements that differ from an independent sum"),
    },
    sizes={
        "quick": Size(
            [{"density": (0.01, 0.1), "way": WAYS, "elements": (2**18,), "mbit": (100.0,), "workers": (4,)}],
            2,
        ),
        "usual": Size(
            [
                {
                    "density": (0.001, 0.01, 0.05, 0.2, 0.5),
                    "way": WAYS,
                    "elements": (2**20,),
                    "mbit": (200.0,),
                    "workers": (4,),
                }
            ],
            3,
        ),
        "full": Size(
            [
                {
                    "density": (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0),
                    "way": WAYS,
                    "elements": (2**22,),
                    "mbit": (200.0, 1000.0),
                    "workers": (4,),
                }
            ],
            7,
        ),
    },
    plots=[Plot("speedup", x="density", y="speedup", lines="way", log="xy")],
    published=[
        Published(
            "aggregation throughput at most",
            6.33,
            "LHC, arXiv 2402.07529",
            "speedup",
            {"way": "compact"},
        )
    ],
    modelled={"way": MODELLED},
)
