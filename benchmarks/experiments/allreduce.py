"""Time and bytes of exact sums over the softswitch, in nccl-tests' columns, beside dense sums.

Switch, controller, server and every worker are processes, connected by UDP over loopback; times are the
slowest worker's. With `trace`, the workers sum the last step of the trace in that folder. Every last sum is
compared with one that plain NumPy computes in 64 bits. A job of several `planes` has a switch and a server
for each.
"""

from __future__ import annotations

from benchmarks import Experiment, Size
from peelsum.allreduce.plan import FORMS
from peelsum.bench.allreduce import measure_sums
from peelsum.wire import COMPILED_LANES, DEFAULT_LANES, MAX_WORKERS

EXPERIMENT = Experiment(
    measure=measure_sums,
    columns={
        "size_bytes": "size of the dense float32 tensor",
        "ranks": "workers that summed; a trace has its own",
        "density": "share of elements that are non-zero on some worker; 1 for the dense tensor",
        "form": "the form of the values",
        "time_us": "microseconds per step, of the slowest worker",
        "algbw": "GB/s of dense float32 that a step sums, whatever its form sends",
        "busbw": "algbw * 2 (workers - 1) / workers: nccl-tests' figure for comparison with a ring",
        "wrong": "elements that differ from an independent sum, over all workers",
        "wire_bytes": "bytes that a worker sends per step, without retransmissions",
        "ratio_to_dense": "`time_us` over that of the dense row",
        "encode_us": "microseconds of encoding per step, of the slowest worker",
        "network_us": "microseconds of waiting for sums per step, of the slowest worker",
        "decode_us": "microseconds of decoding per step, of the slowest worker",
    },
    keys=("size_bytes", "density", "form"),
    defaults={
        "warmups": 2,
        "density_each": ((0.01, 0.1),),
        "form_each": (("compact",),),
        "lanes": DEFAULT_LANES,
        "planes": 1,
        "trace": None,
    },
    sizes={
        "quick": Size([{"elements_each": ((2**14,),), "iterations": 1, "workers": 2}], 1),
        "usual": Size([{"elements_each": ((2**18, 2**20, 2**22),), "iterations": 5, "workers": 4}], 1),
    },
    ranges={
        "elements_each": (1, 2**32),
        "iterations": (1, 10**6),
        "warmups": (0, 10**6),
        "workers": (2, MAX_WORKERS),
        "density_each": (0, 1),
        "planes": (1, 64),
    },
    choices={"lanes": COMPILED_LANES, "form_each": FORMS},
)
