"""`peelsum bench codec`: size and speed of the codec, by elements, density, support and form.

Every decoded tensor is compared with NumPy's arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Choice, PlanSettings
from peelsum.allreduce.costs import cost_estimates, lower_bound_bits
from peelsum.allreduce.indexes import UnionCounts
from peelsum.bench.codec.timing import Measured, TimedDevice, fastest, measure_step, require_memory, tensor
from peelsum.bench.point import Support
from peelsum.codec import MIN_CELLS_PER_CANDIDATE, SUB_TABLES, SketchLayout, occupied
from peelsum.codec.reference.sketch import places

#: Candidates whose cells are computed at once, because NumPy needs a few hundred bytes for each.
_BATCH = 2**20
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


class RandomTensor(NamedTuple):
    """A random tensor, and the device on which it is measured."""

    device: TimedDevice
    values: NDArray[np.float32]
    """float32[n], in the host's memory."""
    positions: NDArray[np.int64]
    """int64[k]: the positions of its non-zeros."""


def bench_codec(
    support: Support,
    elements: int,
    density: float,
    *,
    ways: Sequence[tuple[Form, str]] = WAYS,
    cells_per_candidate: float = MIN_CELLS_PER_CANDIDATE,
    seed: int = 0,
    device: str = "cpu",
) -> Iterator[dict[str, Any]]:
    """Measure a random tensor in each form and index of `ways`, after compiling all loops; yield the rows.

    Raises what `random_tensor` raises, and NotExactError if an element is wrong.
    """
    drawn = random_tensor(support, elements, density, seed, device)
    for form, index in ways:
        yield measure_form(drawn, form, index, cells_per_candidate)


def random_tensor(support: Support, elements: int, density: float, seed: int, device: str) -> RandomTensor:
    """Return a random tensor, and a device whose loops are compiled.

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
    return RandomTensor(TimedDevice.of(device), values, positions)


def measure_form(drawn: RandomTensor, form: Form, index: str, cells_per_candidate: float) -> dict[str, Any]:
    """Measure one form; return its row."""
    settings = PlanSettings(cells_per_candidate=cells_per_candidate)
    statistics = UnionCounts(tuple(occupied((drawn.values != 0).astype(np.int32)).tolist()))
    choice = fewest_words(form, index, drawn.values.size, statistics, settings)
    measured = fastest(lambda n: measure_step(drawn.device, choice, drawn.values, settings, seed=n))
    rounds = None
    if choice.form == "sketch" and measured.candidates is not None:
        layout = SketchLayout.sized(measured.candidates.size, 0, cells_per_candidate)
        rounds = peel_sketch(layout, measured.candidates).rounds
    return codec_row(drawn, form, choice.index.form if choice.index else "none", measured, rounds)


def fewest_words(form: Form, index: str, elements: int, seen: UnionCounts, settings: PlanSettings) -> Choice:
    """Return the choice for this form and index, with the parameters that need the fewest words."""

    def matches(choice: Choice) -> bool:
        return form == "auto" or bool(choice.form == form and choice.index and choice.index.form == index)

    matching = (way for way in cost_estimates(elements, seen, settings) if matches(way.choice))
    return min(matching, key=lambda way: way.words).choice


def codec_row(
    drawn: RandomTensor, form: str, index: str, measured: Measured, rounds: int | None
) -> dict[str, Any]:
    """Return the row of a measured form. rounds: of peeling; None if nothing was peeled."""
    elements, count = drawn.values.size, drawn.positions.size
    candidates = count if measured.candidates is None else measured.candidates.size
    return {
        "form": form,
        "index": index,
        "bits_per_element": round(32 * measured.words / elements, 4),
        "over_lower_bound": round(32 * measured.words / lower_bound_bits(elements, count), 4),
        "recovered_by_peeling": None if rounds is None else 1 - measured.left_over / candidates,
        "rounds": rounds,
        "encode_gbps": round(32 * elements / measured.encode_s / 1e9, 3),
        "decode_gbps": round(32 * elements / measured.decode_s / 1e9, 3),
        "codec_ms": round(1e3 * measured.codec_s, 4),
    }


class Peeled(NamedTuple):
    """The result of peeling."""

    left_over: int
    """Number of left-over candidates."""
    rounds: int
    """Number of rounds that recovered a candidate."""


def peel(places: NDArray[np.int64], cells: int) -> Peeled:
    """Peel k candidates in parallel rounds; `places`, int64[k, 3], has the cells of each, 0 to `cells` - 1.

    There are no values, and no code is shared with the codec's peeling, which may use another order.
    """
    load, rounds = np.bincount(places.reshape(-1), minlength=cells), 0
    while (pure := (load[places] == 1).any(axis=1)).any():
        load -= np.bincount(places[pure].reshape(-1), minlength=cells)
        places, rounds = places[~pure], rounds + 1
    return Peeled(len(places), rounds)


def peel_sketch(layout: SketchLayout, positions: NDArray[np.int64]) -> Peeled:
    """Run `peel` on the candidates at `positions`, int64[k], of one of the codec's sketches."""
    cells = np.empty((positions.size, SUB_TABLES), np.int64)
    for start in range(0, positions.size, _BATCH):
        part = slice(start, start + _BATCH)
        cells[part], _ = places(layout, positions[part])
    return peel(cells, layout.cells)
