"""The codec beside zstd, lz4 and torch.sparse_coo: bytes and processor time of a sum.

A server decodes the rivals' messages, adds them, and encodes the sum in the same way. The codec's words are
added as they are, as a switch does. Non-zeros are anywhere. Times are processor times over all threads. Every
sum is compared with one that NumPy computes.
"""

from __future__ import annotations

from typing import Any

from peelsum.experiments import Column, Experiment, Size


def measure(seed: int, elements: int, density: float, workers: int) -> Any:
    """Sum the tensors of some workers in every way."""
    from peelsum.bench.codec.rivals import bench_rivals

    return bench_rivals([elements], [density], [workers], seed=seed)


EXPERIMENT = Experiment(
    measure=measure,
    columns={
        "way": Column("how tensors are encoded"),
        "arithmetic": Column("what is added: a float32 sum depends on the order of the workers"),
        "bytes_sent": Column("bytes that the first worker sends"),
        "bytes_received": Column("bytes of the sum that every worker receives"),
        "encode_ms": Column("milliseconds to encode one worker's tensor"),
        "combine_ms": Column("milliseconds to turn all workers' messages into that of the sum"),
        "decode_ms": Column("milliseconds to turn the message of the sum into float32"),
    },
    keys=("way",),
    sizes={
        "quick": Size([{"elements": (2**20,), "density": (0.05,), "workers": (2,)}], 1),
        "usual": Size([{"elements": (2**22, 2**24), "density": (0.05,), "workers": (2, 4, 8)}], 1),
    },
    ranges={"elements": (1, 2**40), "density": (1e-9, 1), "workers": (2, 32)},
    needs=("torch", "lz4", "zstandard"),
)
