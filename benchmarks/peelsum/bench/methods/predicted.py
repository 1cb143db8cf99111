"""The cost of each method of a step by the model of `peelsum.flexible`, and which one to use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peelsum.flexible import DENSE, Step, costs

#: Sending everything is preferred while it takes at most this many times as long: it loses nothing.
_WORTH = 1.05


@dataclass(frozen=True)
class MethodRow:
    """One method, as predicted."""

    method: str
    """What is sent, and by which collective."""
    sent_bytes: int
    """Bytes on the busiest link, in one direction."""
    latency_ms: float
    """Milliseconds of messages that wait for each other."""
    words_ms: float
    """Milliseconds to send the bytes at the rate."""
    codec_ms: float
    """Milliseconds of selecting, encoding and decoding."""
    total_ms: float


def method_rows(step: Step) -> list[MethodRow]:
    """Return what every method takes for a step, fastest first."""
    return [
        MethodRow(
            method=one.method,
            sent_bytes=round(4 * one.words),
            latency_ms=round(1e3 * one.latency_s, 4),
            words_ms=round(1e3 * one.transfer_s, 4),
            codec_ms=round(1e3 * one.codec_s, 4),
            total_ms=round(1e3 * one.seconds, 4),
        )
        for one in costs(step)
    ]


def advice(rows: Sequence[MethodRow]) -> str:
    """Return a sentence that recommends one of the methods, of which the fastest is first.

    It recommends sending everything where that takes at most 5 % longer.
    """
    if not rows:
        return "One worker has nothing to sum."
    dense = next(row for row in rows if row.method in DENSE)
    sparse = next(row for row in rows if row.method not in DENSE)
    if dense.total_ms <= _WORTH * sparse.total_ms:
        return (
            f"Do not compress: {dense.method} sends everything in {dense.total_ms:.3g} ms; "
            f"{sparse.method}, the fastest that selects, takes {sparse.total_ms:.3g} ms."
        )
    return (
        f"Compress: {sparse.method} takes {sparse.total_ms:.3g} ms; {dense.method}, the fastest that sends "
        f"everything, takes {dense.total_ms:.3g} ms, {dense.total_ms / sparse.total_ms:.3g} times as long."
    )
