"""Size and speed of every form of the codec, beside LHC's layout and the lower bound.

Encoding is everything before words are sent, in any round; decoding is the rest. Both include the memory
that they fill. The fastest of up to five runs counts. Every decoded tensor is compared with NumPy's
arithmetic. LHC is our implementation of its layout: with its program's table, the smallest that recovers
all, and the fastest. With NUMBA_NUM_THREADS=1, times are processor time.
"""

from __future__ import annotations

from typing import Any

from peelsum.bench.codec import SUPPORTS
from peelsum.bench.codec.rows import bench_codec
from peelsum.experiments import Column, Experiment, Size


def measure(seed: int, elements: int, density: float, support: Any, cells: float, device: str) -> Any:
    """Measure one tensor in every form, after compiling all loops."""
    return bench_codec(support, elements, density, cells_per_candidate=cells, seed=seed, device=device)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "form": Column("`auto` (fewest words), `compact`, `sketch`, or one of LHC's"),
        "index": Column("form of the index"),
        "bits_per_element": Column("bits of all words that a worker sends, over the elements"),
        "over_lower_bound": Column("`bits_per_element` over the lower bound, 32 rho + H(rho)"),
        "recovered_by_peeling": Column("share of candidates that peeling recovers, if anything is peeled"),
        "rounds": Column("rounds of parallel peeling"),
        "encode_gbps": Column("gigabits of dense float32 gradient encoded per second"),
        "decode_gbps": Column("gigabits of dense float32 gradient decoded per second"),
        "codec_ms": Column("milliseconds of encoding and decoding together"),
        "cells_per_non_zero": Column("size of LHC's table"),
        "time_ratio_to_best": Column("`codec_ms` over that of LHC's fastest table and index"),
        "size_ratio_to_best": Column("size over that of LHC's fastest table and index"),
        "time_ratio_to_published": Column("`codec_ms` over that of LHC's published table and index"),
        "size_ratio_to_published": Column("size over that of LHC's published table and index"),
    },
    keys=("form", "index"),
    defaults={"support": SUPPORTS, "cells": 1.3, "device": "cpu"},
    sizes={
        "quick": Size([{"elements": 2**20, "density": 0.01}], 1),
        "usual": Size([{"elements": (2**20, 2**24, 2**27), "density": (0.001, 0.01, 0.05, 0.1, 0.2)}], 1),
    },
    ranges={"elements": (1, 2**40), "density": (1e-9, 1), "cells": (0.1, 100)},
    choices={"support": SUPPORTS, "device": ("cpu", "cuda")},
)
