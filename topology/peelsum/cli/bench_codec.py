"""`peelsum bench codec`: size and speed of the codec by element count, density, support and form.

Owns what is measured and how it is shown. Every form has the same tensors, LHC's layout among them, and every
decoded tensor is compared with NumPy's own arithmetic.
"""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from peelsum.allreduce import BitmapIndex, Choice, Prediction, Settings
from peelsum.allreduce.costs import Seen, candidates, expected, lower_bound_bits
from peelsum.bench import (
    Device,
    Measured,
    Support,
    fastest,
    lhc_step,
    one_step,
    peel_sketch,
    require_memory,
    smallest_lhc,
    tensor,
)
from peelsum.codec import CELLS_PER_CANDIDATE, SketchLayout, fixed_point, kernels

Form = Literal["auto", "compact", "sketch", "lhc"]
#: How a form travels: with which index. Those of LHC and of `auto` are not a question.
WAYS: tuple[tuple[Form, str], ...] = (
    ("lhc", "four_bit"),
    ("auto", ""),
    ("compact", "bitmap"),
    ("sketch", "bitmap"),
    ("sketch", "bloom"),
)
DEFAULT_ELEMENTS = (2**20, 2**24, 2**27)
QUICK_ELEMENTS = (2**20,)
DEFAULT_DENSITIES = (0.001, 0.01, 0.05, 0.1, 0.2)
_LANES = 256
_HEADINGS = ("elements", "density", "support", "form", "index", "bits/el.", "x bound", "peeled", "rounds")
_SPEEDS = ("enc Gb/s", "dec Gb/s", "time/LHC", "size/LHC")
_WIDTHS = (10, 8, 8, 8, 10, 9, 8, 8, 7, 9, 9, 9, 9)


class CodecBenchError(ValueError):
    """An option that cannot be measured here. Says option, value and remedy."""


@dataclass(frozen=True)
class Row:
    """One form of one tensor.

    form: "auto" is what the planner takes for the fewest words, "lhc" LHC's layout at the smallest size at
    which it recovers everything. over_lower_bound: size over 32 rho + H(rho) bits per element. encode_gbps,
    decode_gbps: gigabits of dense float32 gradient per second. recovered_by_peeling: share of candidates, and
    rounds: of parallel peeling; None where nothing is peeled. time_ratio_to_lhc, size_ratio_to_lhc: over
    LHC's; None if that was not measured or does not recover everything by any size up to one cell an element.
    """

    elements: int
    density: float
    support: str
    form: str
    index: str
    device: str
    bits_per_element: float
    over_lower_bound: float
    recovered_by_peeling: float | None
    rounds: int | None
    encode_gbps: float
    decode_gbps: float
    time_ratio_to_lhc: float | None
    size_ratio_to_lhc: float | None


class Point(NamedTuple):
    """One tensor to measure."""

    elements: int
    density: float
    support: Support


#: Small, and sparse enough for LHC's layout to recover all of it, so that its loops run.
WARM_UP = Point(2**14, 0.01, "uniform")


class _Tensor(NamedTuple):
    device: Device
    point: Point
    values: NDArray[np.float32]
    positions: NDArray[np.int64]
    exponent_field: int


def bench_codec(
    points: Sequence[Point],
    *,
    ways: Sequence[tuple[Form, str]] = WAYS,
    cells_per_candidate: float = CELLS_PER_CANDIDATE,
    seed: int = 0,
    device: str = "cpu",
    json: bool = False,
) -> list[Row]:
    """Measure every point in every way; prints rows as they come or, with `json`, a list of objects.

    Stopped by a signal, it still prints that list, of what was measured by then. LHC's row comes first,
    if it is wanted: the others are compared with it. Raises NoDeviceError,
    NotEnoughMemoryError for points that do not fit this machine, NotExactError if a tensor did not come back.
    """
    for point in points:
        require_memory(point.elements, point.density)
    there = Device.of(device)
    for _ in _rows(WARM_UP, ways, there, cells_per_candidate, 0):
        pass  # compiles what measuring needs beyond the codec's own kernels
    rows = []
    if not json:
        print("#" + _columns((*_HEADINGS, *_SPEEDS))[1:], flush=True)
    console = Console(stderr=True)
    shown = track(points, "measuring", console=console, transient=True, disable=not json)
    try:
        for row in (row for point in shown for row in _rows(point, ways, there, cells_per_candidate, seed)):
            rows.append(row)
            if not json:
                print(_line(row), flush=True)
    except KeyboardInterrupt:
        _print_if(json, rows)
        raise
    _print_if(json, rows)
    return rows


def points_of(
    elements: Sequence[int], densities: Sequence[float], supports: Sequence[Support]
) -> list[Point]:
    """Every combination. Raises CodecBenchError where columns would have to be denser than they can be."""
    for density, support in product(densities, supports):
        if support == "columns" and density > 0.5:
            raise CodecBenchError(
                f"--density: half the columns are zero, so {density:g} is too dense; use at most 0.5"
            )
    return [Point(*point) for point in product(elements, densities, supports)]


def _rows(
    point: Point, ways: Sequence[tuple[Form, str]], device: Device, cells_per_candidate: float, seed: int
) -> Iterator[Row]:
    values, positions = tensor(point.support, point.elements, point.density, seed)
    if not positions.size:
        raise CodecBenchError(
            f"--density: {point.density:g} of {point.elements:,} elements are none; use more of either"
        )
    exponent_field = kernels().magnitude(values) >> 23
    drawn, lhc = _Tensor(device, point, values, positions, exponent_field), None
    for form, index in ways:
        if form == "lhc":
            lhc, rounds = _lhc(drawn)
            if lhc is not None:
                yield _row(drawn, form, index, lhc, rounds, lhc)
        else:
            yield _ours(drawn, form, index, cells_per_candidate, lhc)


def _lhc(drawn: _Tensor) -> tuple[Measured | None, int]:
    layout = smallest_lhc(drawn.positions, drawn.point.elements)
    if layout is None:
        return None, 0
    fixed = fixed_point(drawn.exponent_field, 1)
    rounds = layout.peeled(drawn.positions).rounds
    return fastest(lambda _: lhc_step(drawn.device, layout, drawn.values, fixed)), rounds


def _ours(drawn: _Tensor, form: Form, index: str, cells_per_candidate: float, lhc: Measured | None) -> Row:
    settings = Settings(cells_per_candidate=cells_per_candidate)
    choice = _choice(drawn, form, index, settings)
    measured = fastest(lambda n: one_step(drawn.device, choice, drawn.values, settings, _LANES, seed=n))
    rounds = None
    if choice.prediction and measured.candidates is not None:
        lanes = choice.lanes or _LANES
        sized = SketchLayout.sized(choice.prediction.candidates, lanes, 0, cells_per_candidate)
        rounds = peel_sketch(sized, measured.candidates).rounds
    return _row(drawn, form, choice.index.form if choice.index else "none", measured, rounds, lhc)


def _choice(drawn: _Tensor, form: Form, index: str, settings: Settings) -> Choice:
    """The way of that name, with the parameters that take the fewest words."""
    seen = Seen(drawn.exponent_field, tuple(kernels().occupied(drawn.positions).tolist()))
    if form == "compact":
        return Choice("compact", BitmapIndex())
    found = candidates(drawn.point.elements, seen, settings, predict=False)
    if form == "auto":
        return min(found, key=lambda one: one.words).choice
    sketches = (
        one
        for one in found
        if one.choice.form == form and one.choice.index and one.choice.index.form == index
    )
    choice = min(sketches, key=lambda one: one.words).choice
    assert choice.index is not None
    # In one shot, as a step in training would, by a prediction that is just right.
    _, passed = expected(choice.index, drawn.point.elements, seen)
    return replace(choice, prediction=Prediction(drawn.exponent_field, math.ceil(passed)))


def _row(
    drawn: _Tensor, form: str, index: str, measured: Measured, rounds: int | None, lhc: Measured | None
) -> Row:
    elements, count = drawn.point.elements, drawn.positions.size
    peeled = count if measured.candidates is None else measured.candidates.size
    return Row(
        elements=elements,
        density=drawn.point.density,
        support=drawn.point.support,
        form=form,
        index=index,
        device=drawn.device.name,
        bits_per_element=round(32 * measured.words / elements, 4),
        over_lower_bound=round(32 * measured.words / lower_bound_bits(elements, count), 4),
        recovered_by_peeling=None if rounds is None else 1 - measured.left / peeled,
        rounds=rounds,
        encode_gbps=round(32 * elements / measured.encode_s / 1e9, 3),
        decode_gbps=round(32 * elements / measured.decode_s / 1e9, 3),
        time_ratio_to_lhc=round(measured.codec_s / lhc.codec_s, 4) if lhc else None,
        size_ratio_to_lhc=round(measured.words / lhc.words, 4) if lhc else None,
    )


def _print_if(json: bool, rows: Sequence[Row]) -> None:
    if json:
        print(json_format.dumps([asdict(row) for row in rows], indent=2), flush=True)


def _line(row: Row) -> str:
    return _columns(
        (
            str(row.elements),
            f"{row.density:.4g}",
            row.support,
            row.form,
            row.index,
            f"{row.bits_per_element:.3f}",
            f"{row.over_lower_bound:.3f}",
            "-" if row.recovered_by_peeling is None else f"{row.recovered_by_peeling:.2%}",
            "-" if row.rounds is None else str(row.rounds),
            f"{row.encode_gbps:.1f}",
            f"{row.decode_gbps:.1f}",
            *(
                "-" if ratio is None else f"{ratio:.3f}"
                for ratio in (row.time_ratio_to_lhc, row.size_ratio_to_lhc)
            ),
        )
    )


def _columns(cells: Sequence[str]) -> str:
    return " ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
