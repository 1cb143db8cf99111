"""`peelsum bench codec`: measure size and speed of the codec by element count, density, support and form.

Every form, including LHC's layout, is measured on the same tensors. Every decoded tensor is compared with
NumPy's arithmetic.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Choice, Settings
from peelsum.allreduce.costs import Seen, candidates, lower_bound_bits
from peelsum.allreduce.exchange import segmented_layout
from peelsum.bench.codec import (
    Device,
    LhcLayout,
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
from peelsum.bench.codec.lhc_best import best_lhc, lhc_variants, published_lhc, timed_lhc
from peelsum.codec import CELLS_PER_CANDIDATE, fixed_point, kernels, memory
from peelsum.traces import read_folder

Form = Literal["auto", "compact", "sketch", "lhc"]
#: The forms to measure, each with its index. LHC's are LHC_FORMS, and `auto` chooses its own.
WAYS: tuple[tuple[Form, str], ...] = (
    ("lhc", ""),
    ("auto", ""),
    ("compact", "bitmap"),
    ("sketch", "bitmap"),
    ("sketch", "bloom"),
)
#: The rows of LHC's layout: of the published size, the smallest that recovers everything, and the fastest.
LHC_FORMS = ("lhc_published", "lhc", "lhc_best")
#: On a GPU, another: the table of the published size with an index of one bit, as LHC's CUDA program has it.
LHC_CUDA = "lhc_cuda"
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
    """Elements of the tensor."""
    density: float
    """Expected share of non-zeros."""
    support: str
    """Where the non-zeros are: one of SUPPORTS, or "trace"."""
    form: str
    """"auto", "compact", "sketch", one of LHC_FORMS, or LHC_CUDA.

    "auto" is the planner's choice for the fewest words.
    """
    index: str
    """Form of the index: "bitmap", "blocks" or "bloom"; empty if the form has none."""
    device: str
    """"cpu" or "cuda"."""
    bits_per_element: float
    """Bits of all words that a worker sends, over `elements`."""
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
    codec_ms: float
    """Milliseconds of encoding and decoding together."""
    cells_per_non_zero: float | None = None
    """Size of LHC's table; None for the other forms."""
    time_ratio_to_best: float | None = None
    """`codec_ms` over that of LHC's fastest table and index; None if LHC was not measured."""
    size_ratio_to_best: float | None = None
    """Size over that of LHC's fastest table and index; None if LHC was not measured."""
    time_ratio_to_published: float | None = None
    """`codec_ms` over that of LHC's published table and index; None if LHC was not measured."""
    size_ratio_to_published: float | None = None
    """Size over that of LHC's published table and index; None if LHC was not measured."""


class Point(NamedTuple):
    """One tensor to measure."""

    elements: int
    """Elements of the tensor."""
    density: float
    """Expected share of non-zeros."""
    support: Support | Literal["trace"]
    """Where the non-zeros are."""


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


def bench_trace(
    folder: Path, *, ways: Sequence[tuple[Form, str]] = WAYS, seed: int = 0, device: str = "cpu"
) -> Generator[Row, None, None]:
    """Measure the sum of all workers' gradients in a trace's last step, one tensor, in every form.

    Raises as `bench_codec` does, and TraceError.
    """
    traces = read_folder(folder)
    if not traces[0].steps:
        raise CodecBenchError(f"--trace: {folder} has no steps; record at least one")
    there = Device.of(device)
    for _ in _rows(WARM_UP, ways, there, CELLS_PER_CANDIDATE, 0):
        pass
    total = np.zeros(sum(traces[0].elements), np.float32)
    for trace in traces:
        total += trace.gradient(-1, seed=seed)
    positions = np.flatnonzero(total)
    point = Point(total.size, positions.size / max(total.size, 1), "trace")
    return _measured(there, point, total, positions, ways, CELLS_PER_CANDIDATE, seed)


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
    assert point.support != "trace"
    values, positions = tensor(point.support, point.elements, point.density, seed)
    yield from _measured(device, point, values, positions, ways, cells_per_candidate, seed)


def _measured(
    device: Device,
    point: Point,
    values: NDArray[np.float32],
    positions: NDArray[np.int64],
    ways: Sequence[tuple[Form, str]],
    cells_per_candidate: float,
    seed: int,
) -> Generator[Row, None, None]:
    if not positions.size:
        raise CodecBenchError(
            f"--density: {point.density:g} of {point.elements:,} elements gives no non-zeros; increase either"
        )
    exponent_field = int(np.abs(values).max().view(np.uint32)) >> 23
    drawn = _Tensor(device, point, values, positions, exponent_field)
    lhc: dict[str, Row] = {}
    for form, index in ways:
        if form == "lhc":
            lhc = {row.form: row for row in _lhc(drawn)}
            yield from (_compared(row, lhc) for row in lhc.values())
        else:
            yield _compared(_ours(drawn, form, index, cells_per_candidate), lhc)


def _lhc(drawn: _Tensor) -> Iterator[Row]:
    fixed = fixed_point(drawn.exponent_field, 1)

    def step(layout: LhcLayout) -> Measured:
        return lhc_step(drawn.device, layout, drawn.values, fixed)

    count = drawn.positions.size
    smallest = smallest_lhc(drawn.positions, drawn.point.elements)
    measured = {"lhc_published": timed_lhc(published_lhc(count), step)}
    if smallest is not None:
        measured["lhc"] = timed_lhc(smallest, step)
    if drawn.device.name == "cuda":
        measured[LHC_CUDA] = timed_lhc(replace(published_lhc(count), index_bits=1), step)
    measured["lhc_best"] = best_lhc(lhc_variants(count, smallest), step, *measured.values())
    for form, (layout, one) in measured.items():
        rounds = layout.peeled(drawn.positions).rounds
        row = _row(drawn, form, "bitmap" if layout.index_bits == 1 else "four_bit", one, rounds)
        yield replace(row, cells_per_non_zero=round(layout.cells / count, 3))


def _compared(row: Row, lhc: dict[str, Row]) -> Row:
    """Return the row with its ratios to LHC's rows, if LHC was measured."""
    if not lhc:
        return row
    best, published = lhc["lhc_best"], lhc["lhc_published"]
    return replace(
        row,
        time_ratio_to_best=round(row.codec_ms / best.codec_ms, 4),
        size_ratio_to_best=round(row.bits_per_element / best.bits_per_element, 4),
        time_ratio_to_published=round(row.codec_ms / published.codec_ms, 4),
        size_ratio_to_published=round(row.bits_per_element / published.bits_per_element, 4),
    )


def _ours(drawn: _Tensor, form: Form, index: str, cells_per_candidate: float) -> Row:
    settings = Settings(cells_per_candidate=cells_per_candidate)
    seen = Seen(tuple(kernels().occupied(drawn.positions).tolist()))
    choice = fewest_words(form, index, drawn.point.elements, seen, settings)
    measured = fastest(lambda n: one_step(drawn.device, choice, drawn.values, settings, seed=n))
    rounds = None
    if choice.form == "sketch" and measured.candidates is not None:
        layout = segmented_layout(kernels(), memory(), measured.candidates, 0, cells_per_candidate)
        rounds = peel_sketch(layout, measured.candidates).rounds
    return _row(drawn, form, choice.index.form if choice.index else "none", measured, rounds)


def fewest_words(form: Form, index: str, elements: int, seen: Seen, settings: Settings) -> Choice:
    """Return the choice for this form and index, with the parameters that need the fewest words."""
    found = (
        one
        for one in candidates(elements, seen, settings)
        if form == "auto" or (one.choice.form == form and one.choice.index and one.choice.index.form == index)
    )
    return min(found, key=lambda one: one.words).choice


def _row(drawn: _Tensor, form: str, index: str, measured: Measured, rounds: int | None) -> Row:
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
        codec_ms=round(1e3 * measured.codec_s, 4),
    )
