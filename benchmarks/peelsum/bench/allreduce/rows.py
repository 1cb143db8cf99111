"""`peelsum bench allreduce`: measure time and bytes of exact allreduces over the softswitch.

Rows have nccl-tests' columns, and more. Switch, controller, server and every worker are separate processes,
connected by UDP over loopback.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from peelsum.allreduce import Form
from peelsum.allreduce.plan import FORMS
from peelsum.bench.allreduce.worker import Case, Measurement
from peelsum.topology import Child, Seat, Star
from peelsum.traces import read_folder
from peelsum.wire import COMPILED_LANES, MAX_WORKERS

_WORD_BYTES = 4
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
#: The largest tensor; every worker needs several times as much memory.
_LARGEST_BYTES = 16 * _UNITS["G"]
#: Seconds within which a worker must finish a case; otherwise the run fails.
_PATIENCE_S = 600.0


class BenchError(ValueError):
    """An invalid option of a benchmark. The message names option, value and remedy."""


@dataclass(frozen=True)
class Row:
    """One measurement over all workers."""

    size_bytes: int
    """Size of the dense float32 tensor."""
    elements: int
    """Its elements."""
    type: str
    """The dtype, as nccl-tests names it."""
    density: float
    """Share of elements that are non-zero on some worker; 1 for the dense tensor."""
    form: str
    """The form of the values: one of FORMS."""
    time_us: float
    """Microseconds per step, of the slowest worker."""
    algbw: float
    """GB/s of dense float32 that a step sums, whatever its form sends."""
    busbw: float
    """algbw * 2 (workers - 1) / workers: nccl-tests' figure for comparison with a ring."""
    wrong: int | None
    """Elements that differ from an independent sum, over all workers; None if not checked."""
    wire_bytes: int
    """Bytes that a worker sends per step, without retransmissions."""
    ratio_to_dense: float
    """`time_us` over that of the dense row."""
    encode_us: float
    """Microseconds of encoding per step, of the slowest worker."""
    network_us: float
    """Microseconds of waiting for sums per step, of the slowest worker."""
    decode_us: float
    """Microseconds of decoding per step, of the slowest worker."""
    workers: int
    """Workers that sum."""
    lanes: int
    """Words per packet of the pipeline."""


def bench_allreduce(
    *,
    begin: str = "1M",
    end: str = "16M",
    factor: float = 4,
    iterations: int = 5,
    warmups: int = 2,
    check: bool = True,
    workers: int = 4,
    densities: Sequence[float] = (0.01, 0.1),
    forms: Sequence[Form] = ("compact",),
    lanes: int = COMPILED_LANES[-1],
    planes: int = 1,
    rate_mbit: float | None = None,
    seed: int = 0,
    trace: Path | None = None,
) -> Generator[Row, None, None]:
    """Measure sizes from `begin` to `end` bytes of float32: dense first, then every density in every form.

    planes: switches, each with a server, that each worker is connected to. rate_mbit: the rate of every port
    of a switch; None is as fast as it can. seed: that of the tensors. trace: a trace's folder; its workers
    sum its last step, dense and in every form, instead of drawn tensors.
    Raises BenchError for an invalid option and TraceError for a trace that cannot be read, at once. Rows are
    measured as they are taken; this raises ProcessError if a process fails. Close the generator to stop the
    processes early.
    """
    cases = _cases(_sizes(begin, end, factor), densities, forms)
    if trace is not None:
        workers, cases = _traced(trace, forms)
    cases = [replace(one, seed=seed) for one in cases]
    _require_counts(iterations, warmups, workers)
    settings = {"iterations": iterations, "warmups": warmups, "check": check}
    return _rows(cases, Star(workers, planes=planes, lanes=lanes, rate_mbit=rate_mbit), lanes, settings)


def parse_size(text: str, option: str) -> int:
    """Parse a size such as 65536, 64K, 16M or 1G; return bytes. Raises BenchError, which names `option`."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or int(match[1]) == 0:
        raise BenchError(f"{option}: {text!r} is not a size in bytes; write it like 65536, 64K or 16M")
    return int(match[1]) * _UNITS[match[2].upper()]


def _sizes(begin: str, end: str, factor: float) -> list[int]:
    """Return the numbers of elements from `begin` to `end` bytes, each `factor` times its predecessor."""
    size, last = parse_size(begin, "--begin"), parse_size(end, "--end")
    if size > last:
        raise BenchError(f"--begin: {begin} is more than --end {end}; begin with the smaller size")
    if last > _LARGEST_BYTES:
        raise BenchError(f"--end: {end} is too large; use at most {_LARGEST_BYTES // _UNITS['G']}G")
    if not 1 < factor <= _LARGEST_BYTES:
        raise BenchError(f"--factor: sizes cannot grow by a factor of {factor:g}; use more than 1, e.g. 4")
    sizes = []
    while size <= last:
        sizes.append(max(size // _WORD_BYTES, 1))
        size = max(int(size * factor), size + 1)
    return sizes


def _cases(sizes: Sequence[int], densities: Sequence[float], forms: Sequence[Form]) -> list[Case]:
    """Return the cases: for each size the dense tensor, then the sparse ones, which are compared with it."""
    for density in densities:
        if not 0 <= density <= 1:
            raise BenchError(f"--density: {density:g} is not a share; use 0 to 1, e.g. 0.01 for 1 %")
    for form in forms:
        if form not in FORMS:
            raise BenchError(f"--form: {form!r} is unknown; use one of {', '.join(FORMS)}")
    return [
        case
        for elements in sizes
        for case in (
            Case(elements, 1.0, "dense"),
            *(Case(elements, density, form) for density in densities for form in forms),
        )
    ]


def _traced(folder: Path, forms: Sequence[Form]) -> tuple[int, list[Case]]:
    """Return the number of a trace's workers, and the cases of its last step."""
    traces = read_folder(folder)
    if not traces[0].steps:
        raise BenchError(f"--trace: {folder} has no steps; record at least one")
    elements = sum(traces[0].elements)
    union = np.zeros(elements, bool)
    for trace in traces:
        union |= trace.gradient(-1) != 0
    density = float(union.mean())
    at = str(folder.resolve())
    sparse = (Case(elements, density, form, trace=at) for form in forms)
    return len(traces), [Case(elements, 1.0, "dense", trace=at), *sparse]


def _require_counts(iterations: int, warmups: int, workers: int) -> None:
    if iterations < 1:
        raise BenchError(f"--iterations: {iterations} iterations measure nothing; use 1 or more")
    if warmups < 0:
        raise BenchError(f"--warmups: {warmups} warm-ups are impossible; use 0 or more")
    if not 2 <= workers <= MAX_WORKERS:
        raise BenchError(f"--workers: {workers} is out of range for one switch; use 2 to {MAX_WORKERS}")


def _rows(
    cases: Sequence[Case], network: Star, lanes: int, settings: dict[str, Any]
) -> Generator[Row, None, None]:
    with ExitStack() as stack:
        star = stack.enter_context(network)
        children = [_worker(seat, cases, settings) for seat in star.seats]
        for child in children:
            stack.callback(child.stop)
        for child in children:
            child.ready()
        dense_s = 0.0
        for case in cases:
            measured = [_measurement(child, star) for child in children]
            if case.density == 1 and case.form == "dense":
                dense_s = max(one.time_s for one in measured)
            yield _row(case, measured, dense_s, lanes)
        for child in children:
            child.next_line(_PATIENCE_S)  # all workers leave the job before the switch stops


def _worker(seat: Seat, cases: Sequence[Case], settings: dict[str, Any]) -> Child:
    arguments = {"seat": asdict(seat), "cases": [asdict(case) for case in cases], **settings}
    module = "peelsum.bench.allreduce.worker"
    return Child(f"worker {seat.worker_id}", [sys.executable, "-m", module, json.dumps(arguments)])


def _measurement(child: Child, star: Star) -> Measurement:
    line = child.next_line(_PATIENCE_S)
    star.check()
    if line is None:
        raise BenchError(f"{child.name}: ended before its last case; run again, it may have been stopped")
    return Measurement(**line)


def _row(case: Case, measured: Sequence[Measurement], dense_s: float, lanes: int) -> Row:
    time_s, workers = max(one.time_s for one in measured), len(measured)
    wrong = [one.wrong for one in measured if one.wrong is not None]
    algbw = _WORD_BYTES * case.elements / time_s / 1e9
    return Row(
        size_bytes=_WORD_BYTES * case.elements,
        elements=case.elements,
        type="float",
        density=case.density,
        form=case.form,
        time_us=round(time_s * 1e6, 1),
        algbw=round(algbw, 4),
        busbw=round(algbw * 2 * (workers - 1) / workers, 4),
        wrong=sum(wrong) if wrong else None,
        wire_bytes=max(one.wire_bytes for one in measured),
        ratio_to_dense=round(time_s / dense_s, 4),
        encode_us=round(max(one.encode_s for one in measured) * 1e6, 1),
        network_us=round(max(one.network_s for one in measured) * 1e6, 1),
        decode_us=round(max(one.decode_s for one in measured) * 1e6, 1),
        workers=workers,
        lanes=lanes,
    )
