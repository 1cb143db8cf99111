"""`peelsum bench codec` and `peelsum bench recovery`: the codec's size, speed and left-over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peelsum.cli.bench.output import aligned, measuring, print_json, printed
from peelsum.cli.options import Json, within

if TYPE_CHECKING:
    from peelsum.bench.codec.precision import PrecisionRow
    from peelsum.bench.codec.recovery import LeftOver, NotPeeled
    from peelsum.bench.codec.rivals import RivalRow
    from peelsum.bench.codec.rows import Point, Row
    from peelsum.bench.codec.sequences import SequenceRow
    from peelsum.bench.codec.small import SmallRow

_HEADINGS = ("elements", "density", "support", "form", "index", "bits/el.", "x bound", "peeled", "rounds")
_SPEEDS = ("enc Gb/s", "dec Gb/s", "ms", "cells/nz", "time/best", "size/best", "time/publ", "size/publ")
_SEQUENCE_HEADINGS = (
    "elements", "sequence", "network", "way", "density", "x bound", "worst", "exch.", "wrongly dense"
)  # fmt: skip
_SEQUENCE_WIDTHS = (10, 12, 8, 8, 8, 8, 8, 6, 14)
_SMALL_HEADINGS = ("tensors", "elements", "density", "network", "bound", "words", "CPU ms")
_SMALL_WIDTHS = (8, 10, 8, 8, 9, 9, 8)
_RIVAL_HEADINGS = (
    "elements", "density", "workers", "way", "sent b/el", "recv b/el", "enc ms", "comb. ms", "dec ms", "adds"
)  # fmt: skip
_RIVAL_WIDTHS = (10, 8, 7, 16, 9, 9, 9, 9, 9, 7)
_PRECISION_HEADINGS = ("model", "step", "way", "sums", "median err", "p99 err", "lost", "scales")
_PRECISION_WIDTHS = (6, 5, 10, 9, 10, 9, 8, 8)
_WIDTHS = (10, 8, 8, 13, 9, 9, 8, 8, 7, 9, 9, 9, 9, 9, 9, 9, 9)


def codec(
    elements: Annotated[
        list[int] | None, typer.Option(help="Elements; default: 2**20, 2**24 and 2**27.")
    ] = None,
    density: Annotated[
        list[float] | None, typer.Option(help="Shares of non-zeros; default: 0.1 to 20 %.")
    ] = None,
    support: Annotated[
        list[str] | None, typer.Option(help="uniform, rows or columns; default: all three.")
    ] = None,
    cells: Annotated[float, typer.Option(help="Cells of a sketch for each candidate.")] = 1.4,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quick: Annotated[
        bool, typer.Option(help="Measure 2**20 elements only; with --precision, steps 0 and 5.")
    ] = False,
    sequence: Annotated[
        bool, typer.Option("--sequence", help="Count words of 30 steps of changing density instead.")
    ] = False,
    small: Annotated[
        bool, typer.Option("--small", help="Measure a step of a hundred small tensors instead.")
    ] = False,
    rivals: Annotated[
        bool, typer.Option("--rivals", help="Compare with zstd, lz4 and torch.sparse_coo instead.")
    ] = False,
    precision: Annotated[
        bool, typer.Option(help="Measure errors of sums of real gradients instead; takes minutes.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Measure the sum of the last step of a trace instead of drawn tensors."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the non-zeros' positions and values.")] = 0,
    json: Json = False,
) -> None:
    """Measure size over the lower bound, and speed, of every form of the codec, beside LHC's layout.

    With --precision, train small models and measure how far sums of their gradients are from the exact ones.
    """
    if precision:
        _precision(quick=quick, json=json)
        return
    from peelsum.bench.codec import SUPPORTS, NoDeviceError, NotEnoughMemoryError, NotExactError
    from peelsum.bench.codec import rows as bench

    for count in elements or ():
        within("--elements", count, 1, 2**40)
    for share in density or ():
        within("--density", share, 1e-9, 1)
    within("--cells", cells, 0.1, 100)
    within("--seed", seed, 0, 2**63 - 1)
    if sequence:
        _sequences(elements, quick=quick, seed=seed, json=json)
        return
    if small:
        _small(seed=seed, json=json)
        return
    if trace is not None:
        _trace(trace, seed=seed, device=device, json=json)
        return
    if rivals:
        _rivals(elements, density, quick=quick, seed=seed, json=json)
        return
    chosen = [known for known in SUPPORTS if known in (support or SUPPORTS)]
    errors = (bench.CodecBenchError, NoDeviceError, NotEnoughMemoryError, NotExactError)
    with measuring(*errors, json=json):
        if unknown := set(support or ()) - set(SUPPORTS):
            raise bench.CodecBenchError(
                f"--support: {min(unknown)!r} is unknown; use one of {', '.join(SUPPORTS)}"
            )
        sizes = elements or (bench.QUICK_ELEMENTS if quick else bench.DEFAULT_ELEMENTS)
        points = bench.points_of(sizes, density or bench.DEFAULT_DENSITIES, chosen)
        measured = bench.bench_codec(points, cells_per_candidate=cells, seed=seed, device=device)
        with closing(measured):
            if json:
                _print_list(_with_progress(measured, points))
            else:
                print("#" + aligned((*_HEADINGS, *_SPEEDS), _WIDTHS)[1:], flush=True)
                list(printed(measured, _line, json=False))


def _sequences(elements: list[int] | None, *, quick: bool, seed: int, json: bool) -> None:
    from peelsum.bench.codec import NotExactError
    from peelsum.bench.codec import sequences as bench

    sizes = elements or (bench.QUICK_ELEMENTS if quick else bench.DEFAULT_ELEMENTS)
    with measuring(NotExactError, json=json):
        rows = bench.bench_sequences(sizes, seed=seed)
        if json:
            _print_list(rows)
        else:
            print("#" + aligned(_SEQUENCE_HEADINGS, _SEQUENCE_WIDTHS)[1:], flush=True)
            list(printed(rows, _sequence_line, json=False))


def _trace(folder: Path, *, seed: int, device: str, json: bool) -> None:
    from peelsum.bench.codec import NoDeviceError, NotExactError
    from peelsum.bench.codec import rows as bench
    from peelsum.traces import TraceError

    with measuring(bench.CodecBenchError, NoDeviceError, NotExactError, TraceError, json=json):
        rows = bench.bench_trace(folder, seed=seed, device=device)
        if json:
            _print_list(rows)
        else:
            print("#" + aligned((*_HEADINGS, *_SPEEDS), _WIDTHS)[1:], flush=True)
            list(printed(rows, _line, json=False))


def _rivals(
    elements: list[int] | None, density: list[float] | None, *, quick: bool, seed: int, json: bool
) -> None:
    from peelsum.bench.codec import NotEnoughMemoryError, NotExactError
    from peelsum.bench.codec import rivals as bench
    from peelsum.bench.codec.rows import QUICK_ELEMENTS

    sizes = elements or (QUICK_ELEMENTS if quick else bench.DEFAULT_ELEMENTS)
    with (
        measuring(bench.MissingRivalError, NotEnoughMemoryError, NotExactError, json=json),
        closing(bench.bench_rivals(sizes, density or (bench.DENSITY,), seed=seed)) as rows,
    ):
        if json:
            _print_list(_counted(rows))
        else:
            print("#" + aligned(_RIVAL_HEADINGS, _RIVAL_WIDTHS)[1:], flush=True)
            list(printed(rows, _rival_line, json=False))


def _counted(rows: Iterable[RivalRow]) -> Iterator[RivalRow]:
    """Yield the rows, and show the last one's name on stderr meanwhile."""
    from rich.console import Console

    with Console(stderr=True).status("measuring") as status:
        for row in rows:
            status.update(f"measured {row.way} of {row.elements:,} elements, {row.workers} workers")
            yield row


def _rival_line(row: RivalRow) -> str:
    cells = (
        str(row.elements),
        f"{row.density:.4g}",
        str(row.workers),
        row.way,
        f"{8 * row.bytes_sent / row.elements:.3f}",
        f"{8 * row.bytes_received / row.elements:.3f}",
        f"{row.encode_ms:.2f}",
        f"{row.combine_ms:.2f}",
        f"{row.decode_ms:.2f}",
        row.arithmetic,
    )
    return aligned(cells, _RIVAL_WIDTHS)


def _small(*, seed: int, json: bool) -> None:
    from peelsum.bench.codec import NotExactError
    from peelsum.bench.codec import small as bench

    with measuring(NotExactError, json=json):
        rows = bench.bench_small(seed=seed)
        if json:
            _print_list(rows)
        else:
            print("#" + aligned(_SMALL_HEADINGS, _SMALL_WIDTHS)[1:], flush=True)
            list(printed(rows, _small_line, json=False))


def _small_line(row: SmallRow) -> str:
    density = f"{row.density:.1%}"
    cells = (row.tensors, row.elements, density, row.network, row.lower_bound, row.words, row.cpu_ms)
    return aligned(tuple(map(str, cells)), _SMALL_WIDTHS)


def _sequence_line(row: SequenceRow) -> str:
    cells = (
        str(row.elements),
        row.sequence,
        row.network,
        row.way,
        f"{row.density:.3%}",
        f"{row.over_lower_bound:.3f}",
        f"{row.worst_step:.3f}",
        f"{row.exchanges:.2f}",
        str(row.wrongly_dense),
    )
    return aligned(cells, _SEQUENCE_WIDTHS)


def _precision(*, quick: bool, json: bool) -> None:
    """Print the errors of all tensors of each model together; with `json`, those of every tensor, too."""
    from peelsum.bench.codec import precision as bench

    with measuring(json=json) as tell:
        rows = bench.measure_precision(steps=bench.QUICK_STEPS if quick else bench.DEFAULT_STEPS, tell=tell)
        if json:
            _print_list(rows)
            return
        print("#" + aligned(_PRECISION_HEADINGS, _PRECISION_WIDTHS)[1:], flush=True)
        for row in rows:
            if row.tensor == "all":
                print(_precision_line(row), flush=True)


def _precision_line(row: PrecisionRow) -> str:
    cells = (
        row.model,
        str(row.step),
        row.way,
        str(row.sums),
        f"{row.median_error:.1e}",
        f"{row.p99_error:.1e}",
        f"{row.lost:.2%}",
        "-" if row.scale_words is None else f"{row.scale_words:.2%}",
    )
    return aligned(cells, _PRECISION_WIDTHS)


def _print_list(rows: Iterable[Row | SequenceRow | SmallRow | PrecisionRow | RivalRow]) -> None:
    """Print a list of objects; on Ctrl-C, that of the rows measured so far."""
    found: list[Row | SequenceRow | SmallRow | PrecisionRow | RivalRow] = []
    try:
        for row in rows:
            found.append(row)
    except KeyboardInterrupt:
        print_json(found)
        raise
    print_json(found)


def _with_progress(rows: Iterable[Row], points: Sequence[Point]) -> Iterator[Row]:
    """Yield the rows, and show a progress bar of the points on stderr meanwhile."""
    from rich.console import Console
    from rich.progress import Progress

    numbers: dict[tuple[object, ...], int] = {point: number for number, point in enumerate(points)}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(points))
        for row in rows:
            progress.update(task, completed=numbers[row.elements, row.density, row.support])
            yield row


def _line(row: Row) -> str:
    ratios = (
        row.time_ratio_to_best, row.size_ratio_to_best,
        row.time_ratio_to_published, row.size_ratio_to_published,
    )  # fmt: skip
    cells = (
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
        f"{row.codec_ms:.3f}",
        "-" if row.cells_per_non_zero is None else f"{row.cells_per_non_zero:.2f}",
        *("-" if ratio is None else f"{ratio:.3f}" for ratio in ratios),
    )
    return aligned(cells, _WIDTHS)


def recovery(
    seeds: Annotated[int, typer.Option(help="Sketches of each size in the table and the curves.")] = 5,
    json: Json = False,
) -> None:
    """Measure what peeling leaves over, by layout, support and size of the sketch, as Markdown tables."""
    from peelsum.bench.codec.recovery import measure_recovery

    within("--seeds", seeds, 1, 1000)
    with measuring(json=json):
        rows = list(measure_recovery(seeds))
        if json:
            print_json(rows)
        else:
            print("\n".join(_markdown(rows)))


def _markdown(rows: Sequence[LeftOver | NotPeeled]) -> Iterator[str]:
    """Yield the lines of the tables of docs/reference/codec.md; the curves are left to the plot."""
    yield "| support | L | cells per non-zero | lane kept (LHC) | rotated | rounds |"
    yield "|---|---|---|---|---|---|"
    aim: dict[float, list[str]] = {}
    supports: dict[str, None] = {}
    for row in rows:
        if row.part == "table":
            kept, rotated = (f"{share:.2%}" if share else "0" for share in (row.kept, row.rotated))
            cells = f"{row.cells_per_candidate:.2f} | {kept} | {rotated} | {row.rotated_rounds:.0f}"
            yield f"| {row.support} | {row.lanes} | {cells} |"
        elif row.part == "aim":
            supports[row.support] = None
            aim.setdefault(row.density, []).append(f"{row.failed} of {row.seeds}")
    yield f"\n| density | {' | '.join(supports)} |\n|---|---|---|---|"
    for density, counts in aim.items():
        yield f"| {density:.1%} | {' | '.join(counts)} |"
