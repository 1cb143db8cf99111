"""`peelsum bench codec`: measure size and speed of the codec by element count, density, support and form.

Every form, including LHC's layout, is measured on the same tensors. Every decoded tensor is compared with
NumPy's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Choice, Settings
from peelsum.allreduce.costs import Seen, candidates, lower_bound_bits
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
from peelsum.bench.codec.lhc import lhc_variants, published_lhc
from peelsum.codec import FEWEST_CELLS, SketchLayout, fixed_point, kernels

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


class CodecBenchError(ValueError):
    """An invalid option of the benchmark. The message names option, value and remedy."""


#: A tensor to warm up with: small, and so sparse that LHC's layout recovers everything and its loops run.
WARM_UP: tuple[Support, int, float] = ("uniform", 2**14, 0.01)


#: Number of LHC's tables that are measured again after one run of each.
_FINALISTS = 3


class TimedLhc(NamedTuple):
    """A layout and its measurement."""

    layout: LhcLayout
    measured: Measured


class _Tensor(NamedTuple):
    device: Device
    values: NDArray[np.float32]
    positions: NDArray[np.int64]
    exponent_field: int


def bench_codec(
    support: Support,
    elements: int,
    density: float,
    *,
    ways: Sequence[tuple[Form, str]] = WAYS,
    cells_per_candidate: float = FEWEST_CELLS,
    seed: int = 0,
    device: str = "cpu",
) -> Iterator[dict[str, Any]]:
    """Measure a tensor in every form, after compiling all loops; yield the rows.

    ways: the forms, each with its index. If "lhc" comes first, the others are compared with it.
    Raises NoDeviceError, NotEnoughMemoryError, NotExactError if an element is wrong, and CodecBenchError
    if a tensor has no non-zeros.
    """
    if support == "columns" and density > 0.5:
        raise CodecBenchError(
            f"--density: {density:g} is too dense, as half of the columns are zero; use at most 0.5"
        )
    require_memory(elements, density)
    there = Device.of(device)
    # The first compiles the loops that are not among the codec's own kernels.
    list(_measured(there, *tensor(*WARM_UP, 0), ways, cells_per_candidate))
    yield from _measured(there, *tensor(support, elements, density, seed), ways, cells_per_candidate)


def _measured(
    device: Device,
    values: NDArray[np.float32],
    positions: NDArray[np.int64],
    ways: Sequence[tuple[Form, str]],
    cells_per_candidate: float,
) -> Iterator[dict[str, Any]]:
    if not positions.size:
        raise CodecBenchError(f"--density: {values.size:,} elements have no non-zeros; increase either")
    drawn = _Tensor(device, values, positions, int(np.abs(values).max().view(np.uint32)) >> 23)
    lhc: dict[str, dict[str, Any]] = {}
    for form, index in ways:
        if form == "lhc":
            lhc = {row["form"]: row for row in _lhc(drawn)}
            yield from (_compared(row, lhc) for row in lhc.values())
        else:
            yield _compared(_ours(drawn, form, index, cells_per_candidate), lhc)


def _lhc(drawn: _Tensor) -> Iterator[dict[str, Any]]:
    fixed = fixed_point(drawn.exponent_field, 1)

    def step(layout: LhcLayout) -> Measured:
        return lhc_step(drawn.device, layout, drawn.values, fixed)

    count = drawn.positions.size
    smallest = smallest_lhc(drawn.positions, drawn.values.size)
    measured = {"lhc_published": _timed_lhc(published_lhc(count), step)}
    if smallest is not None:
        measured["lhc"] = _timed_lhc(smallest, step)
    if drawn.device.name == "cuda":
        measured[LHC_CUDA] = _timed_lhc(replace(published_lhc(count), index_bits=1), step)
    measured["lhc_best"] = best_lhc(lhc_variants(count, smallest), step, *measured.values())
    for form, (layout, one) in measured.items():
        rounds = layout.peeled(drawn.positions).rounds
        row = _row(drawn, form, "bitmap" if layout.index_bits == 1 else "four_bit", one, rounds)
        yield {**row, "cells_per_non_zero": round(layout.cells / count, 3)}


def best_lhc(variants: list[LhcLayout], step: Callable[[LhcLayout], Measured], *also: TimedLhc) -> TimedLhc:
    """Return the fastest of the variants, and of those in `also`.

    Each is run once, and the fastest few as often as the codec's forms.
    """

    def seconds(one: TimedLhc) -> float:
        return one.measured.codec_s

    once = sorted((TimedLhc(one, step(one)) for one in variants), key=seconds)
    again = [_timed_lhc(one.layout, step) for one in once[:_FINALISTS]]
    return min((*once, *again, *also), key=seconds)


def _timed_lhc(layout: LhcLayout, step: Callable[[LhcLayout], Measured]) -> TimedLhc:
    """Return the layout with its fastest run."""
    return TimedLhc(layout, fastest(lambda _: step(layout)))


def _compared(row: dict[str, Any], lhc: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the row with its ratios to LHC's rows, if LHC was measured."""
    found = {"cells_per_non_zero": None, **row}
    for other in ("best", "published"):
        for ratio, figure in (("time", "codec_ms"), ("size", "bits_per_element")):
            beside = lhc[f"lhc_{other}"][figure] if lhc else None
            found[f"{ratio}_ratio_to_{other}"] = round(row[figure] / beside, 4) if beside else None
    return found


def _ours(drawn: _Tensor, form: Form, index: str, cells_per_candidate: float) -> dict[str, Any]:
    settings = Settings(cells_per_candidate=cells_per_candidate)
    seen = Seen(tuple(kernels().occupied(drawn.positions).tolist()))
    choice = fewest_words(form, index, drawn.values.size, seen, settings)
    measured = fastest(lambda n: one_step(drawn.device, choice, drawn.values, settings, seed=n))
    rounds = None
    if choice.form == "sketch" and measured.candidates is not None:
        layout = SketchLayout.sized(measured.candidates.size, 0, cells_per_candidate)
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


def _row(drawn: _Tensor, form: str, index: str, measured: Measured, rounds: int | None) -> dict[str, Any]:
    elements, count = drawn.values.size, drawn.positions.size
    peeled = count if measured.candidates is None else measured.candidates.size
    return {
        "form": form,
        "index": index,
        "bits_per_element": round(32 * measured.words / elements, 4),
        "over_lower_bound": round(32 * measured.words / lower_bound_bits(elements, count), 4),
        "recovered_by_peeling": None if rounds is None else 1 - measured.left / peeled,
        "rounds": rounds,
        "encode_gbps": round(32 * elements / measured.encode_s / 1e9, 3),
        "decode_gbps": round(32 * elements / measured.decode_s / 1e9, 3),
        "codec_ms": round(1e3 * measured.codec_s, 4),
    }
