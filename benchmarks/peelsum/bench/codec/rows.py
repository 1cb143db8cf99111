"""`peelsum bench codec`: measure size and speed of the codec by element count, density, support and form.

Every form, including LHC's layout, is measured on the same tensors. Every decoded tensor is compared with
NumPy's arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import BitmapIndex, Choice, Prediction, Settings
from peelsum.allreduce.costs import Seen, candidates, expected, lower_bound_bits, with_scales
from peelsum.bench.codec import (
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
#: The forms to measure, each with its index. LHC's is fixed, and `auto` chooses its own.
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


class CodecBenchError(ValueError):
    """An invalid option of the benchmark. The message names option, value and remedy."""


@dataclass(frozen=True)
class Row:
    """One form of one tensor."""

    elements: int
    density: float
    """Expected share of non-zeros."""
    support: str
    form: str
    """One of `Form`.

    "auto" is the planner's choice for the fewest words; "lhc" is LHC's layout at the smallest size that
    recovers everything.
    """
    index: str
    device: str
    bits_per_element: float
    over_lower_bound: float
    """`bits_per_element` over the lower bound, 32 rho + H(rho)."""
    recovered_by_peeling: float | None
    """Share of candidates that peeling recovers; None if nothing is peeled."""
    rounds: int | None
    """Rounds of parallel peeling; None if nothing is peeled."""
    encode_gbps: float
    """Gigabits of dense float32 gradient encoded per second."""
    decode_gbps: float
    """Gigabits of dense float32 gradient decoded per second."""
    time_ratio_to_lhc: float | None
    """Time over LHC's; None if LHC was not measured or needs more than one cell per element."""
    size_ratio_to_lhc: float | None
    """Size over LHC's; None if LHC was not measured or needs more than one cell per element."""


class Point(NamedTuple):
    """One tensor to measure."""

    elements: int
    density: float
    support: Support


#: A tensor to warm up with: small, and so sparse that LHC's layout recovers everything and its loops run.
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
) -> Generator[Row, None, None]:
    """Measure every point in every form, after compiling all loops.

    ways: the forms, each with its index. If "lhc" comes first, the others are compared with it.
    Raises NoDeviceError if the device is missing, and NotEnoughMemoryError for points that do not fit this
    machine. A row is measured when it is taken from the generator. That raises NotExactError if a decoded
    tensor is wrong, and CodecBenchError if a tensor has no non-zeros.
    """
    for point in points:
        require_memory(point.elements, point.density)
    there = Device.of(device)
    for _ in _rows(WARM_UP, ways, there, cells_per_candidate, 0):
        pass  # compiles the loops that are not among the codec's own kernels
    return (row for point in points for row in _rows(point, ways, there, cells_per_candidate, seed))


def points_of(
    elements: Sequence[int], densities: Sequence[float], supports: Sequence[Support]
) -> list[Point]:
    """Return a point for every combination.

    Raises CodecBenchError for support "columns" with a density above 0.5.
    """
    for density, support in product(densities, supports):
        if support == "columns" and density > 0.5:
            raise CodecBenchError(
                f"--density: {density:g} is too dense, as half of the columns are zero; use at most 0.5"
            )
    return [Point(*point) for point in product(elements, densities, supports)]


def _rows(
    point: Point, ways: Sequence[tuple[Form, str]], device: Device, cells_per_candidate: float, seed: int
) -> Iterator[Row]:
    values, positions = tensor(point.support, point.elements, point.density, seed)
    if not positions.size:
        raise CodecBenchError(
            f"--density: {point.density:g} of {point.elements:,} elements gives no non-zeros; increase either"
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
    """Return the choice for this form and index, with the parameters that need the fewest words."""
    seen = Seen(drawn.exponent_field, tuple(kernels().occupied(drawn.positions).tolist()))
    if form == "compact":
        elements = drawn.point.elements
        words = BitmapIndex().words(elements) + seen.candidates
        return with_scales(Choice("compact", BitmapIndex()), elements, words, settings)
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
    # Send the sketch together with its index, as in training, with an exact prediction.
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
