"""`peelsum bench codec`: size and speed of the codec by element count, density, support and form.

Every decoded tensor is compared with NumPy's arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Choice, Settings
from peelsum.allreduce.costs import Seen, candidates, lower_bound_bits
from peelsum.bench.codec import (
    Measured,
    Support,
    TimedDevice,
    fastest,
    one_step,
    peel_sketch,
    require_memory,
    tensor,
)
from peelsum.codec import FEWEST_CELLS, SketchLayout, occupied

Form = Literal["auto", "compact", "sketch"]
#: The forms to measure, each with its index. `auto` chooses its own.
WAYS: tuple[tuple[Form, str], ...] = (
    ("auto", ""),
    ("compact", "bitmap"),
    ("sketch", "bitmap"),
    ("sketch", "bloom"),
)


class CodecBenchError(ValueError):
    """An invalid option of the benchmark. The message names option, value and remedy."""


class Drawn(NamedTuple):
    """A tensor that was drawn for a device: float32[n], and the positions int64[k] of its non-zeros."""

    device: TimedDevice
    values: NDArray[np.float32]
    positions: NDArray[np.int64]


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
    """Measure a tensor in every form, each with its index, after compiling all loops; yield the rows.

    Raises what `draw` raises, and NotExactError if an element is wrong.
    """
    drawn = draw(support, elements, density, seed, device)
    for form, index in ways:
        yield ours(drawn, form, index, cells_per_candidate)


def draw(support: Support, elements: int, density: float, seed: int, device: str) -> Drawn:
    """Return a tensor for a device, whose loops are compiled.

    Raises NoDeviceError, NotEnoughMemoryError, and CodecBenchError if the tensor has no non-zeros.
    """
    if support == "columns" and density > 0.5:
        raise CodecBenchError(
            f"--density: {density:g} is too dense, as half of the columns are zero; use at most 0.5"
        )
    require_memory(elements, density)
    values, positions = tensor(support, elements, density, seed)
    if not positions.size:
        raise CodecBenchError(f"--density: {elements:,} elements have no non-zeros; increase either")
    return Drawn(TimedDevice.of(device), values, positions)


def ours(drawn: Drawn, form: Form, index: str, cells_per_candidate: float) -> dict[str, Any]:
    """Measure one form; return its row."""
    settings = Settings(cells_per_candidate=cells_per_candidate)
    seen = Seen(tuple(occupied(drawn.positions).tolist()))
    choice = fewest_words(form, index, drawn.values.size, seen, settings)
    measured = fastest(lambda n: one_step(drawn.device, choice, drawn.values, settings, seed=n))
    rounds = None
    if choice.form == "sketch" and measured.candidates is not None:
        layout = SketchLayout.sized(measured.candidates.size, 0, cells_per_candidate)
        rounds = peel_sketch(layout, measured.candidates).rounds
    return row_of(drawn, form, choice.index.form if choice.index else "none", measured, rounds)


def fewest_words(form: Form, index: str, elements: int, seen: Seen, settings: Settings) -> Choice:
    """Return the choice for this form and index, with the parameters that need the fewest words."""
    found = (
        one
        for one in candidates(elements, seen, settings)
        if form == "auto" or (one.choice.form == form and one.choice.index and one.choice.index.form == index)
    )
    return min(found, key=lambda one: one.words).choice


def row_of(drawn: Drawn, form: str, index: str, measured: Measured, rounds: int | None) -> dict[str, Any]:
    """Return the row of a form; rounds: those of peeling, or None if nothing was peeled."""
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
