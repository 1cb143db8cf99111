"""Exact allreduces of worker processes over a star, timed, checked, and compared with the dense one.

This module is also the program of a worker. The check shares no code with the codec.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Allreduce, AllreduceError, Form, Summation, TensorResult
from peelsum.allreduce.history_loops import warm_up
from peelsum.processes import Child, ProcessError, end_with_parent, say
from peelsum.processes.reports import told_of_compiling
from peelsum.processes.user_errors import reported
from peelsum.topology import Star
from peelsum.traces import SUFFIX, TraceError, read, read_folder
from peelsum.transport import TransportError
from peelsum.transport.seats import plug_in

_WORD_BYTES = 4
#: Share of the union's positions that a worker holds, besides those assigned to it.
_SHARED = 0.5
#: Seconds within which a worker must finish a case; otherwise the run fails.
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Case:
    """A tensor to sum."""

    elements: int
    density: float
    """Share of elements that are non-zero on some worker."""
    form: Form
    seed: int = 0
    trace: str | None = None
    """Folder of a trace, whose last step is the tensor; None draws one from `density` and `seed`."""


def traced(folder: Path) -> tuple[int, int, float]:
    """Return a trace's workers, and the elements and the density of its last step. Raises TraceError."""
    traces = read_folder(folder)
    if not traces[0].steps:
        raise TraceError(f"--trace: {folder} has no steps; record at least one")
    union = np.zeros(sum(traces[0].elements), bool)
    for trace in traces:
        union |= trace.gradient(-1) != 0
    return len(traces), union.size, float(union.mean())


def sums(
    seed: int,
    elements_each: tuple[int, ...],
    iterations: int,
    warmups: int,
    workers: int,
    density_each: tuple[float, ...],
    form_each: tuple[Form, ...],
    lanes: int,
    planes: int,
    trace: str | None,
) -> Iterator[dict[str, Any]]:
    """Sum tensors dense, then in every density and form. Raises ProcessError and TraceError."""
    if trace:
        workers, elements, density = traced(Path(trace))
        elements_each, density_each, trace = (elements,), (density,), str(Path(trace).resolve())
    ways: list[tuple[float, Form]] = [(1.0, "dense"), *product(density_each, form_each)]
    cases = [Case(elements, *way, seed, trace) for elements in elements_each for way in ways]
    return compared(cases, Star(workers, planes=planes, lanes=lanes), iterations=iterations, warmups=warmups)


def compared(
    cases: Sequence[Case], network: Star, *, iterations: int, warmups: int
) -> Iterator[dict[str, Any]]:
    """Yield the row of each case, as it is measured, compared with the dense one before it.

    Raises ProcessError if a process fails.
    """
    settings = {"cases": [asdict(case) for case in cases], "iterations": iterations, "warmups": warmups}
    with network as star, ExitStack() as stack:
        children = []
        for seat in star.seats:
            arguments = json.dumps({"seat": asdict(seat), **settings})
            command = [sys.executable, "-m", "peelsum.bench.allreduce", arguments]
            children.append(Child(f"worker {seat.worker_id}", command))
            stack.callback(children[-1].stop)
        for child in children:
            child.ready()
        dense_s = 0.0
        for case in cases:
            measured = [_line(child, star) for child in children]
            if case.form == "dense":
                dense_s = max(one["time_s"] for one in measured)
            yield _row(case, measured, dense_s)
        for child in children:
            child.next_line(_PATIENCE_S)  # all workers leave the job before the switch stops


def _line(child: Child, star: Star) -> dict[str, Any]:
    line = child.next_line(_PATIENCE_S)
    star.check()
    if line is None:
        raise ProcessError(f"{child.name}: ended before its last case; run again, it may have been stopped")
    return line


def _row(case: Case, measured: Sequence[dict[str, Any]], dense_s: float) -> dict[str, Any]:
    most = {name: max(one[name] for one in measured) for name in measured[0]}
    workers, algbw = len(measured), _WORD_BYTES * case.elements / most["time_s"] / 1e9
    times = {
        f"{name}_us": round(1e6 * most[f"{name}_s"], 1) for name in ("time", "encode", "network", "decode")
    }
    return {
        "size_bytes": _WORD_BYTES * case.elements,
        "ranks": workers,
        "density": case.density,
        "form": case.form,
        "algbw": round(algbw, 4),
        "busbw": round(algbw * 2 * (workers - 1) / workers, 4),
        "wrong": sum(one["wrong"] for one in measured),
        "wire_bytes": most["wire_bytes"],
        "ratio_to_dense": round(most["time_s"] / dense_s, 4),
        **times,
    }


def tensor_of(case: Case, worker_id: int, workers: int) -> NDArray[np.float32]:
    """Return worker `worker_id`'s tensor float32[elements]; every process computes the same one.

    Raises TraceError.
    """
    if case.trace is not None:
        return read(Path(case.trace) / f"worker-{worker_id}{SUFFIX}").gradient(-1, seed=case.seed)
    shared = np.random.default_rng([case.seed, case.elements])
    if case.density >= 1:
        return _drawn(case.elements, worker_id, case.seed)[0]
    union = np.flatnonzero(shared.random(case.elements, np.float32) < case.density)
    return shared_tensor(union, case.elements, worker_id, workers, case.seed)


def shared_tensor(
    union: NDArray[np.int64], elements: int, worker_id: int, workers: int, seed: int
) -> NDArray[np.float32]:
    """Return worker `worker_id`'s float32[elements], non-zero at half of the positions int64[k] in `union`.

    Each position is non-zero on at least one worker.
    """
    tensor, own = _drawn(elements, worker_id, seed)
    held = own.random(union.size) < _SHARED
    held[worker_id::workers] = True
    sparse = np.zeros(elements, np.float32)
    sparse[union[held]] = tensor[union[held]]
    return sparse


def _drawn(elements: int, worker_id: int, seed: int) -> tuple[NDArray[np.float32], np.random.Generator]:
    """Return random float32[elements] of a worker, and its generator."""
    own = np.random.default_rng([seed, elements, 1 + worker_id])
    return own.standard_normal(elements, np.float32), own


def wrong_elements(result: TensorResult, tensors: Sequence[NDArray[np.float32]]) -> int:
    """Return how many elements differ from the sum of all workers' float32[n], in 64 bits by NumPy.

    Scales are the result's. An element farther from the unrounded sum than its error bound is wrong, too.
    """
    scales = np.zeros(tensors[0].shape, np.int32) if result.scales is None else result.scales
    each = [np.rint(np.ldexp(tensor.astype(np.float64), scales)).astype(np.int64) for tensor in tensors]
    total, exact = np.sum(each, axis=0), np.sum(tensors, axis=0, dtype=np.float64)
    floats = np.ldexp(total.astype(np.float64), -scales).astype(np.float32)
    far = np.abs(result.values - exact) > result.error_bounds
    return int(np.count_nonzero((result.total != total) | (result.values != floats) | far))


def settings_of(form: Form) -> dict[str, Any]:
    """Return the settings of an allreduce that sends tensors in this form."""
    return {"forms": "dense"} if form == "dense" else {"forms": "sparse", "values": form}


def measure(summation: Summation, case: Case, *, iterations: int, warmups: int) -> dict[str, Any]:
    """Sum the case's tensor `iterations` times back to back, after `warmups` sums that align the workers.

    Return seconds per step, the bytes of the last one without retransmissions, and its wrong elements.
    """
    reduce = Allreduce(summation, **settings_of(case.form), seed=case.seed)
    tensors = {"gradient": tensor_of(case, summation.worker_id, summation.workers)}
    for _ in range(warmups):
        reduce.sum(tensors)
    spent = np.zeros(3)
    started = time.perf_counter()
    for _ in range(iterations):
        step = reduce.sum(tensors)
        spent += (step.encode_s, step.network_s, step.decode_s)
    elapsed = time.perf_counter() - started
    parts = dict(zip(("encode_s", "network_s", "decode_s"), (spent / iterations).tolist(), strict=True))
    workers = summation.workers
    wrong = wrong_elements(step["gradient"], [tensor_of(case, number, workers) for number in range(workers)])
    return {"time_s": elapsed / iterations, **parts, "wire_bytes": step.wire_bytes, "wrong": wrong}


def run(
    seat: Mapping[str, Any], cases: Iterable[Mapping[str, Any]], *, iterations: int, warmups: int
) -> None:
    """Join the job of `seat`, measure the cases in order, and print each measurement."""
    with plug_in(seat) as summation:
        say(ready=True)
        for case in cases:
            say(**measure(summation, Case(**case), iterations=iterations, warmups=warmups))


if __name__ == "__main__":
    end_with_parent()
    told_of_compiling(child=True)
    warm_up()
    with reported(AllreduceError, TraceError, TransportError):
        run(**json.loads(sys.argv[1]))
