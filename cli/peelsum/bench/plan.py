"""Every way to send a tensor, with predicted bytes and time, the choice, and why.

The formulas are those by which an allreduce chooses (`peelsum.allreduce.costs`), and those of the collectives
(`peelsum.compress`). A check runs every way as one worker on this machine, and puts what it took beside what
was predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from peelsum.allreduce import BlockIndex, BloomIndex, Choice, Index, NetworkModel, Settings
from peelsum.allreduce.costs import Candidate, expected
from peelsum.allreduce.level_loops import MARGIN
from peelsum.bench.codec import Device, Measured, Support, fastest, one_step, require_memory, seen, tensor
from peelsum.bench.which_form import FormTime, Point, chosen, predictions, simulated, ways
from peelsum.codec import SketchLayout, scale_for
from peelsum.compress import AXES, DENSE, Crossover, LinkModel, Step, costs, crossovers

#: Exponent field of 1.0: error bounds are given for tensors whose largest value is from 1 to 2.
_EXPONENT_FIELD = 127
#: Sending everything is preferred while it takes at most this many times as long: it loses nothing.
_WORTH = 1.05


@dataclass(frozen=True)
class Request:
    """A tensor, and the network through which it is summed."""

    elements: int
    density: float
    """Share of elements that are non-zero on some worker."""
    gbps: float
    """Rate at which a worker sends words, in Gbit/s."""
    rtt: float
    """Seconds that the shortest exchange takes."""
    workers: int
    support: Support
    """Where the non-zeros lie."""
    ratio: float | None = None
    """Share of elements that each worker sends by a sparse method; None is `density`."""

    @property
    def step(self) -> Step | None:
        """The step by which methods are compared; None with one worker, which has nothing to sum."""
        ratio = self.density if self.ratio is None else self.ratio
        if self.workers < 2:
            return None
        return Step(self.elements, ratio, self.workers, LinkModel(self.rtt / 2, self.gbps))

    @property
    def point(self) -> Point:
        """The tensor and its links."""
        rest = max(self.workers, 2), self.support
        return Point(self.elements, self.density, self.gbps, self.rtt, *rest)

    @property
    def network(self) -> NetworkModel:
        """The network model by which ways are compared."""
        return NetworkModel(self.gbps, self.rtt)


@dataclass(frozen=True)
class Row:
    """One way to send the tensor, as predicted. Measurements are None unless the way was run."""

    form: str
    index: str
    """The index's form, or "none"."""
    layout: str
    """Segments, sub-tables and their cells, as text."""
    bytes: int
    """Bytes that a worker sends."""
    exchanges: int
    """Number of sums that wait for each other."""
    words_ms: float
    """Milliseconds to send the bytes at the rate."""
    exchanges_ms: float
    """Milliseconds of the exchanges' round trips."""
    codec_ms: float
    """Milliseconds of encoding and decoding."""
    total_ms: float
    measured_bytes: int | None = None
    measured_codec_ms: float | None = None
    bytes_error: float | None = None
    """`bytes` over `measured_bytes`, less 1."""
    codec_error: float | None = None
    """`codec_ms` over `measured_codec_ms`, less 1."""


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


@dataclass(frozen=True)
class Plan:
    """Every way to send a tensor, and the reasons for the choice."""

    choice: Row
    """The candidate that an allreduce takes: the fastest, but dense only if small, or a fifth is not zero."""
    why: list[str]
    """Sentences that compare the choice with every other form."""
    candidates: list[Row]
    """All ways through the switch, fastest first."""
    forms: list[FormTime]
    """Each form's step: predicted, and with a check as measured in the codec and simulated on links."""
    methods: list[MethodRow]
    """All methods, fastest first: dense and sparse, by every collective. Empty with one worker."""
    crossovers: list[Crossover]
    """For each axis, the values at which the fastest method changes."""
    advice: str
    """Which method to use, and what the next best would take."""


def plan(request: Request, *, check: bool = False) -> Plan:
    """Return the ways for a request; with `check`, run each as one worker on this machine.

    Raises NotEnoughMemoryError if a check does not fit this machine, and NotExactError if it decodes a wrong
    value.
    """
    possible = (one for one in _ways(request) if math.isfinite(one.words))
    found = sorted(possible, key=lambda one: one.seconds(request.network))
    rows = [_row(request, one) for one in found]
    if check:
        rows = [_checked(row, one) for row, one in zip(rows, _measured(request, found), strict=True)]
    methods = [] if request.step is None else method_rows(request.step)
    changes = [] if request.step is None else [one for axis in AXES for one in crossovers(request.step, axis)]
    point = request.point
    forms = simulated(point) if check else predictions(point)
    choice = rows[found.index(chosen(point))]
    return Plan(choice, explanation(request, choice, rows), rows, forms, methods, changes, advice(methods))


def _ways(request: Request) -> Iterator[Candidate]:
    return ways(request.elements, seen(request.support, request.elements, request.density))


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
        codec_ms=round((one.seconds(network) - network.seconds(one.words, one.exchanges)) * 1e3, 4),
        total_ms=round(one.seconds(network) * 1e3, 4),
    )


def _layout(request: Request, choice: Choice) -> str:
    """Return segments, sub-tables and their cells as text."""
    parts = [_index_layout(choice.index)] if choice.index else []
    if choice.form == "sketch" and choice.index:
        expectation = seen(request.support, request.elements, request.density)
        _, passed = expected(choice.index, request.elements, expectation)
        count = math.ceil(passed)
        layout = SketchLayout.sized(count, 0, Settings().cells(count))
        segments = f"{layout.segments} x " if layout.segments > 1 else ""
        parts.append(f"{segments}3 x {layout.width} cells")
    return ", ".join(filter(None, parts))


def _index_layout(index: Index) -> str:
    if isinstance(index, BlockIndex):
        return f"blocks of {index.block}{', refined' if index.refined else ''}"
    if isinstance(index, BloomIndex):
        return f"{index.hashes} x {index.rows} words{', refined' if index.refined else ''}"
    return ""


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


def explanation(request: Request, best: Row, rows: Sequence[Row]) -> list[str]:
    """Return sentences about the best row: what it takes, and how much more each other form would take."""
    lines = [
        f"{_name(best)}: {best.words_ms:.3g} ms for {best.bytes:,} bytes at {request.gbps:g} Gbit/s, "
        f"{best.exchanges_ms:.3g} ms for {_counted(best.exchanges)}, {best.codec_ms:.3g} ms in the codec."
    ]
    others = {row.form: row for row in reversed(rows) if row is not best}
    for row in sorted(others.values(), key=lambda row: row.total_ms):
        lines.append(
            f"{_name(row)} would take {row.total_ms - best.total_ms:+.3g} ms: bytes "
            f"{row.words_ms - best.words_ms:+.3g}, exchanges {row.exchanges_ms - best.exchanges_ms:+.3g}, "
            f"codec {row.codec_ms - best.codec_ms:+.3g}."
        )
    scale, when = scale_for(_EXPONENT_FIELD, request.workers), "is from 1 to 2"
    if best.exchanges == 1:
        scale, when = scale - MARGIN, "was from 1 to 2 in the step before"
    lines.append(
        f"{request.workers} workers: floats are rounded to multiples of 2**{-scale} where the largest "
        f"of their block {when}, and summed exactly."
    )
    return lines


def _name(row: Row) -> str:
    if row.index == "none":
        return row.form
    return f"{row.form} with {row.index}" + (f" ({row.layout})" if row.layout else "")


def _counted(exchanges: int) -> str:
    return "1 exchange" if exchanges == 1 else f"{exchanges} exchanges"


def _measured(request: Request, found: Sequence[Candidate]) -> list[Measured]:
    """Run each way as one worker; return the measurements in the same order."""
    require_memory(request.elements, request.density)
    device = Device.of("cpu")
    values, _ = tensor(request.support, request.elements, request.density, 0)
    settings = Settings()

    def run(one: Candidate) -> Measured:
        return fastest(lambda _: one_step(device, one.choice, values, settings, seed=0, ahead=one.ahead))

    return [run(one) for one in found]


def _checked(row: Row, measured: Measured) -> Row:
    size, codec_ms = 4 * measured.words, 1e3 * measured.codec_s
    return replace(
        row,
        measured_bytes=size,
        measured_codec_ms=round(codec_ms, 4),
        bytes_error=round(row.bytes / size - 1, 4),
        codec_error=round(row.codec_ms / codec_ms - 1, 4),
    )
