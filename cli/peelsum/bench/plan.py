"""All ways to send a tensor, with predicted bytes and time, the recommended one, and the reasons.

The formulas are those by which an allreduce chooses (`peelsum.allreduce.costs`), and those of the collectives
(`peelsum.compress`). A check also measures every way, as one worker on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from peelsum.allreduce import BlockIndex, BloomIndex, Choice, PlanSettings
from peelsum.allreduce.costs import CostEstimate, expected
from peelsum.allreduce.history_loops import MARGIN
from peelsum.bench.codec.timing import Measured, TimedDevice, fastest, measure_step, require_memory, tensor
from peelsum.bench.point import Point
from peelsum.bench.which_form import all_candidates, best_candidate, predict_forms, simulate_forms
from peelsum.codec import SketchLayout, scale_for
from peelsum.compress import AXES, DENSE, LinkModel, Workload, costs, crossovers

Row = Mapping[str, Any]
#: Exponent field of floats from 1 to 2, for which rounding errors are given.
_EXPONENT_FIELD = 127
#: Sending everything is recommended if it takes at most this many times as long as to select elements.
_DENSE_TOLERANCE = 1.05


def plan(request: Point, *, check: bool = False) -> dict[str, Any]:
    """Return the ways to send a tensor; with `check`, measure each as one worker on this machine.

    - `candidates`: all ways through the switch, fastest first, with form, index, layout, bytes, exchanges and
      milliseconds. With `check`, `measured_...` are the measured figures, and `..._error` is the relative
      error of the prediction.
    - `choice`: the candidate that an allreduce chooses: the fastest, but dense only if the tensor is small or
      a fifth is not zero. `why`: sentences that compare it with every other form.
    - `forms`: the time of a step in each form.
    - `methods`: the times of dense and sparse sums by every collective; `crossovers`: where the fastest
      changes; both are empty with one worker. `advice`: which method to use.

    Raises NotEnoughMemoryError if a check does not fit this machine, and NotExactError if it decodes a wrong
    value.
    """
    candidates = [
        way
        for way in all_candidates(request.elements, request.expected_statistics)
        if math.isfinite(way.words)
    ]
    candidates.sort(key=lambda way: way.seconds(request.network))
    measured = _measure(request, candidates) if check else [None] * len(candidates)
    rows = [_row(request, *pair) for pair in zip(candidates, measured, strict=True)]
    choice = rows[candidates.index(best_candidate(request))]
    step = step_of(request)
    methods = [] if step is None else method_rows(step)
    return {
        "choice": choice,
        "why": explanation(request, choice, rows),
        "candidates": rows,
        "forms": [asdict(form) for form in (simulate_forms if check else predict_forms)(request)],
        "methods": methods,
        "crossovers": [asdict(change) for axis in AXES if step for change in crossovers(step, axis)],
        "advice": advice(methods, choice),
    }


def step_of(request: Point) -> Workload | None:
    """Return the step for which collectives are compared; None with one worker, which has nothing to sum."""
    if request.workers < 2:
        return None
    ratio = request.density if request.ratio is None else request.ratio
    return Workload(request.elements, ratio, request.workers, LinkModel(request.rtt / 2, request.gbps))


def _measure(request: Point, candidates: Sequence[CostEstimate]) -> list[Measured]:
    """Run each candidate as one worker; return the measurements in the same order."""
    require_memory(request.elements, request.density)
    device, settings = TimedDevice.of("cpu"), PlanSettings()
    values, _ = tensor(request.support, request.elements, request.density, 0)

    def run(way: CostEstimate) -> Measured:
        return fastest(
            lambda _: measure_step(device, way.choice, values, settings, seed=0, one_round=way.one_round)
        )

    return [run(way) for way in candidates]


def _row(request: Point, way: CostEstimate, measured: Measured | None) -> dict[str, Any]:
    """Return the predicted figures of a candidate, and the measured ones if there are any."""
    network, index, size = request.network, way.choice.index, math.ceil(way.words) * 4
    sending_s, total_s = network.seconds(way.words, way.exchanges), way.seconds(network)
    codec_ms = round((total_s - sending_s) * 1e3, 4)
    measured_ms = None if measured is None else 1e3 * measured.codec_s
    return {
        "form": way.choice.form,
        "index": index.form if index else "none",
        "layout": _layout(request, way.choice),
        "bytes": size,
        "exchanges": way.exchanges,
        "words_ms": round(network.seconds(way.words, 0) * 1e3, 4),
        "exchanges_ms": round(network.seconds(0, way.exchanges) * 1e3, 4),
        "codec_ms": codec_ms,
        "total_ms": round(total_s * 1e3, 4),
        "measured_bytes": measured and 4 * measured.words,
        "measured_codec_ms": measured_ms and round(measured_ms, 4),
        "bytes_error": measured and round(size / (4 * measured.words) - 1, 4),
        "codec_error": measured_ms and round(codec_ms / measured_ms - 1, 4),
    }


def _layout(request: Point, choice: Choice) -> str:
    """Return the index's layout, and a sketch's segments, sub-tables and cells, as text."""
    index, parts = choice.index, list[str]()
    if isinstance(index, BlockIndex):
        parts.append(f"blocks of {index.block}")
    elif isinstance(index, BloomIndex):
        parts.append(f"{index.hashes} x {index.rows} words")
    if isinstance(index, BlockIndex | BloomIndex) and index.refined:
        parts.append("refined")
    if choice.form == "sketch" and choice.index:
        _, candidates = expected(choice.index, request.elements, request.expected_statistics)
        count = math.ceil(candidates)
        layout = SketchLayout.sized(count, 0, None)
        segments = f"{layout.segments} x " if layout.segments > 1 else ""
        parts.append(f"{segments}3 x {layout.width} cells")
    return ", ".join(parts)


def method_rows(step: Workload) -> list[dict[str, Any]]:
    """Return a row for each collective, fastest first: bytes on the busiest link, and milliseconds."""
    return [
        {
            "method": method.method,
            "sent_bytes": round(4 * method.words),
            "latency_ms": round(1e3 * method.latency_s, 4),
            "words_ms": round(1e3 * method.transfer_s, 4),
            "codec_ms": round(1e3 * method.codec_s, 4),
            "total_ms": round(1e3 * method.seconds, 4),
        }
        for method in costs(step)
    ]


def _ms(value: float) -> str:
    """Return milliseconds with three digits, or more before the decimal point, without an exponent."""
    return f"{value:,.0f} ms" if value >= 999.5 else f"{Decimal(f'{value:.3g}'):f} ms"


def advice(methods: Sequence[Row], choice: Row) -> str:
    """Return a sentence that says whether to select elements, with the fastest way to do so and not to.

    methods: the collectives, sorted by time. choice: the fastest way to sum all non-zero elements through the
    switch. Selecting is recommended if sending everything takes more than 5 % longer.
    """
    if not methods:
        return "One worker has nothing to sum."
    dense = next(row for row in methods if row["method"] in DENSE)
    selecting = next(row for row in methods if row["method"] not in DENSE)
    complete, all_ms = f"{dense['method']} sends everything in", dense["total_ms"]
    if choice["form"] != "dense" and choice["total_ms"] < all_ms:
        complete, all_ms = f"{_name(choice)} sends all non-zero elements in", choice["total_ms"]
    selecting_ms = selecting["total_ms"]
    if all_ms <= _DENSE_TOLERANCE * selecting_ms:
        return (
            f"Do not compress: {complete} {_ms(all_ms)}; "
            f"{selecting['method']}, the fastest that selects, takes {_ms(selecting_ms)}."
        )
    return (
        f"Compress: {selecting['method']} takes {_ms(selecting_ms)}; {complete} {_ms(all_ms)}, "
        f"{all_ms / selecting_ms:.3g} times as long."
    )


def explanation(request: Point, best: Row, rows: Sequence[Row]) -> list[str]:
    """Return sentences with the time of the best row, and how much longer each other form would take."""
    exchanges = "1 exchange" if best["exchanges"] == 1 else f"{best['exchanges']} exchanges"
    lines = [
        f"{_name(best)}: {_ms(best['words_ms'])} for {best['bytes']:,} bytes at {request.gbps:g} Gbit/s, "
        f"{_ms(best['exchanges_ms'])} for {exchanges}, {_ms(best['codec_ms'])} in the codec."
    ]
    others = {row["form"]: row for row in reversed(rows) if row is not best}
    for row in sorted(others.values(), key=lambda row: row["total_ms"]):
        parts = ("total", "words", "exchanges", "codec")
        total, words, trips, codec = (f"{row[f'{part}_ms'] - best[f'{part}_ms']:+.3g}" for part in parts)
        lines.append(f"{_name(row)} would take {total} ms: bytes {words}, exchanges {trips}, codec {codec}.")
    scale, condition = scale_for(_EXPONENT_FIELD, request.workers), "is from 1 to 2"
    if best["exchanges"] == 1:
        scale, condition = scale - MARGIN, "was from 1 to 2 in the step before"
    lines.append(
        f"{request.workers} workers: floats are rounded to multiples of 2**{-scale} where the largest "
        f"of their block {condition}, and summed exactly."
    )
    return lines


def _name(row: Row) -> str:
    if row["index"] == "none":
        return str(row["form"])
    return f"{row['form']} with {row['index']}" + (f" ({row['layout']})" if row["layout"] else "")
