"""Every way to send a tensor, with predicted bytes and time, the choice, and why.

The formulas are those by which an all-reduce chooses (`peelsum.allreduce.costs`). A check runs every way as
one worker on this machine, and puts what it took beside what was predicted.
"""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from peelsum.allreduce import BloomIndex, Choice, Index, Network, Settings, TwoLevelIndex
from peelsum.allreduce.costs import Candidate, candidates, expected
from peelsum.bench.codec import Device, Measured, Support, fastest, one_step, require_memory, seen, tensor
from peelsum.codec import SketchLayout, error_bound, scale_for

#: Exponent field of 1: sums are judged by values whose largest is 1 to 2.
_EXPONENT_FIELD = 127
#: Lanes of a chunk.
_LANES = 256
_WIDTHS = (7, 9, 13, 9, 9, 8, 9, 9, 13, 6, 9, 6)


@dataclass(frozen=True)
class Request:
    """What is asked about. density: share of elements that are not zero on some worker."""

    elements: int
    density: float
    gbps: float
    rtt: float
    workers: int
    support: Support
    predict: bool

    @property
    def network(self) -> Network:
        """The network that choices are for."""
        return Network(self.gbps, self.rtt)


@dataclass(frozen=True)
class Row:
    """One way, as predicted, and as measured if it was: otherwise None.

    bytes: words that a worker sends. exchanges: sums that wait for each other. words_ms: bytes at the rate;
    exchanges_ms: a round-trip time for each; codec_ms: encoding and decoding. Errors: predicted over
    measured, less 1.
    """

    form: str
    index: str
    layout: str
    bytes: int
    exchanges: int
    words_ms: float
    exchanges_ms: float
    codec_ms: float
    total_ms: float
    measured_bytes: int | None = None
    measured_codec_ms: float | None = None
    bytes_error: float | None = None
    codec_error: float | None = None


def show(request: Request, *, check: bool, json: bool) -> list[Row]:
    """Print the ways, fastest first, and why the first is chosen; with `json`, one object.

    Raises NotEnoughMemoryError or NotExactError if ways are to be run and cannot be.
    """
    found = sorted(_ways(request, _EXPONENT_FIELD), key=lambda one: one.seconds(request.network))
    rows = [_row(request, one) for one in found]
    if check:
        rows = [_checked(row, one) for row, one in zip(rows, _measured(request, found), strict=True)]
    why = explanation(request, rows)
    if json:
        shown = {"choice": asdict(rows[0]), "why": why, "candidates": [asdict(row) for row in rows]}
        print(json_format.dumps(shown, indent=2))
    else:
        print("\n".join([_header(check), *map(_line, rows), "", *why]))
    return rows


def _ways(request: Request, exponent_field: int) -> Iterator[Candidate]:
    expectation = seen(request.support, request.elements, request.density, exponent_field)
    return candidates(request.elements, expectation, Settings(), predict=request.predict)


def _row(request: Request, one: Candidate) -> Row:
    network, index = request.network, one.choice.index
    return Row(
        form=one.choice.form,
        index=index.form if index else "none",
        layout=_layout(request, one.choice),
        bytes=math.ceil(one.words) * 4,
        exchanges=one.exchanges,
        words_ms=round(network.seconds(one.words, 0) * 1e3, 4),
        exchanges_ms=round(network.seconds(0, one.exchanges) * 1e3, 4),
        codec_ms=round(one.codec_s * 1e3, 4),
        total_ms=round(one.seconds(network) * 1e3, 4),
    )


def _layout(request: Request, choice: Choice) -> str:
    """Block width, sub-tables and rows."""
    parts = [_index_layout(choice.index)] if choice.index else []
    if choice.form == "sketch" and choice.index:
        expectation = seen(request.support, request.elements, request.density)
        _, passed = expected(choice.index, request.elements, expectation)
        count = choice.prediction.candidates if choice.prediction else math.ceil(passed)
        layout = SketchLayout.sized(count, choice.lanes or _LANES, 0)
        parts.append(f"3 x {layout.rows} rows of {layout.lanes}")
    return ", ".join(filter(None, parts))


def _index_layout(index: Index) -> str:
    if isinstance(index, TwoLevelIndex):
        return f"blocks of {index.block}"
    if isinstance(index, BloomIndex):
        return f"{index.hashes} x {index.rows} words{', refined' if index.refined else ''}"
    return ""


def explanation(request: Request, rows: Sequence[Row]) -> list[str]:
    """Why the first of the rows is chosen: what it takes, and what the others would take more."""
    best = rows[0]
    lines = [
        f"{_name(best)}: {best.words_ms:.3g} ms for {best.bytes:,} bytes at {request.gbps:g} Gbit/s, "
        f"{best.exchanges_ms:.3g} ms for {_counted(best.exchanges)}, {best.codec_ms:.3g} ms in the codec."
    ]
    others = {row.form: row for row in reversed(rows[1:])}
    for row in sorted(others.values(), key=lambda row: row.total_ms):
        lines.append(
            f"{_name(row)} would take {row.total_ms - best.total_ms:.3g} ms more: bytes "
            f"{row.words_ms - best.words_ms:+.3g}, exchanges {row.exchanges_ms - best.exchanges_ms:+.3g}, "
            f"codec {row.codec_ms - best.codec_ms:+.3g}."
        )
    bound = error_bound(scale_for(_EXPONENT_FIELD, request.workers), request.workers)
    lines.append(
        f"{request.workers} workers: integers are summed exactly, to within 2**{math.log2(bound):.0f} "
        "of the floats' sum where the largest value is from 1 to 2."
    )
    return lines


def _name(row: Row) -> str:
    if row.index == "none":
        return row.form
    return f"{row.form} with {row.index}" + (f" ({row.layout})" if row.layout else "")


def _counted(exchanges: int) -> str:
    return "1 exchange" if exchanges == 1 else f"{exchanges} exchanges"


def _measured(request: Request, found: Sequence[Candidate]) -> list[Measured]:
    """Each way run by one worker, in the order given."""
    require_memory(request.elements, request.density)
    device = Device.of("cpu")
    values, _ = tensor(request.support, request.elements, request.density, 0)
    settings = Settings()
    # The same ways again, for the exponent that the tensor turned out to have.
    by_way = {
        (one.choice.form, one.choice.index): one.choice
        for one in _ways(request, device.ops.magnitude(values) >> 23)
    }

    def run(choice: Choice) -> Measured:
        return fastest(lambda n: one_step(device, choice, values, settings, _LANES, seed=n))

    return [run(by_way[one.choice.form, one.choice.index]) for one in found]


def _checked(row: Row, measured: Measured) -> Row:
    size, codec_ms = 4 * measured.words, 1e3 * measured.codec_s
    return Row(
        **{
            **asdict(row),
            "measured_bytes": size,
            "measured_codec_ms": round(codec_ms, 4),
            "bytes_error": round(row.bytes / size - 1, 4),
            "codec_error": round(row.codec_ms / codec_ms - 1, 4),
        }
    )


def _header(check: bool) -> str:
    headings = ("form", "index", "bytes", "exchanges", "words ms", "exch. ms", "codec ms", "total ms")
    return _columns([*headings, *(("measured", "error", "codec ms", "error") if check else ()), "layout"])


def _line(row: Row) -> str:
    times = (row.words_ms, row.exchanges_ms, row.codec_ms, row.total_ms)
    cells = [row.form, row.index, f"{row.bytes:,}", str(row.exchanges), *(f"{time:.3f}" for time in times)]
    if row.measured_bytes is not None:
        cells += [f"{row.measured_bytes:,}", f"{row.bytes_error:+.1%}"]
        cells += [f"{row.measured_codec_ms:.3f}", f"{row.codec_error:+.0%}"]
    return _columns([*cells, row.layout])


def _columns(cells: Sequence[str]) -> str:
    """The last one is not padded."""
    padded = (cell.rjust(width) for cell, width in zip(cells[:-1], _WIDTHS, strict=False))
    return " ".join((*padded, " " + cells[-1])).rstrip()
