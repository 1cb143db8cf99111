"""`peelsum bench allreduce`: time exact sums of worker processes over a star, beside dense sums.

This module is also the program of a worker. Its check of the sums shares no code with the codec.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Allreduce, AllreduceError, Form, Summation, TensorResult
from peelsum.allreduce.history_loops import warm_up
from peelsum.processes import Child, print_message, terminate_with_parent
from peelsum.processes.children import gather_reports
from peelsum.processes.progress import compile_progress_reporter
from peelsum.processes.user_errors import exit_on_errors
from peelsum.topology import Star
from peelsum.traces import SUFFIX, TraceError, read, read_folder
from peelsum.transport import TransportError
from peelsum.transport.seats import plug_in

_WORD_BYTES = 4
#: Probability that a worker has a non-zero at a position of the union that is not assigned to it.
_SHARED = 0.5
#: Seconds within which workers must finish a case; otherwise the run fails.
_TIMEOUT_S = 600.0


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


def measure_sums(
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
    """Time the sum of each tensor, dense and then in every density and form; yield the rows.

    Raises ProcessError and TraceError.
    """
    if trace:
        traces = read_folder(Path(trace))
        if not traces[0].steps:
            raise TraceError(f"--trace: {trace} has no steps; record at least one")
        union = np.zeros(sum(traces[0].elements), bool)
        for worker_trace in traces:
            union |= worker_trace.gradient(-1) != 0
        workers, elements_each, density_each = len(traces), (union.size,), (float(union.mean()),)
        trace = str(Path(trace).resolve())
    densities_and_forms: list[tuple[float, Form]] = [(1.0, "dense"), *product(density_each, form_each)]
    cases = [
        Case(elements, density, form, seed, trace)
        for elements in elements_each
        for density, form in densities_and_forms
    ]
    return measure_cases(
        cases, Star(workers, planes=planes, lanes=lanes), iterations=iterations, warmups=warmups
    )


def measure_cases(
    cases: Sequence[Case], network: Star, *, iterations: int, warmups: int
) -> Iterator[dict[str, Any]]:
    """Yield the row of each case once it is measured, compared with the dense case before it.

    Raises ProcessError if a process fails.
    """
    settings = {"cases": [asdict(case) for case in cases], "iterations": iterations, "warmups": warmups}
    with network as star, ExitStack() as stack:
        workers = []
        for seat in star.seats:
            arguments = json.dumps({"seat": asdict(seat), **settings})
            command = [sys.executable, "-m", "peelsum.bench.allreduce", arguments]
            workers.append(Child(f"worker {seat.worker_id}", command))
            stack.callback(workers[-1].stop)
        for worker in workers:
            worker.ready()
        dense_s = 0.0
        for case in cases:
            reports = gather_reports(workers, star.check, _TIMEOUT_S)
            if case.form == "dense":
                dense_s = max(report["time_s"] for report in reports)
            yield _row(case, reports, dense_s)
        for worker in workers:
            worker.next_message(_TIMEOUT_S)  # all workers leave the job before the switch stops


def _row(case: Case, reports: Sequence[dict[str, Any]], dense_s: float) -> dict[str, Any]:
    """Return a case's row: times of the slowest worker, and nccl-tests' rates in GB/s."""
    largest = {name: max(report[name] for report in reports) for name in reports[0]}
    workers, algbw = len(reports), _WORD_BYTES * case.elements / largest["time_s"] / 1e9
    times = {
        f"{name}_us": round(1e6 * largest[f"{name}_s"], 1) for name in ("time", "encode", "network", "decode")
    }
    return {
        "size_bytes": _WORD_BYTES * case.elements,
        "ranks": workers,
        "density": case.density,
        "form": case.form,
        "algbw": round(algbw, 4),
        "busbw": round(algbw * 2 * (workers - 1) / workers, 4),
        "wrong": sum(report["wrong"] for report in reports),
        "wire_bytes": largest["wire_bytes"],
        "ratio_to_dense": round(largest["time_s"] / dense_s, 4),
        **times,
    }


def worker_tensor(case: Case, worker_id: int, workers: int) -> NDArray[np.float32]:
    """Return the tensor float32[elements] of one worker, the same in every process. Raises TraceError."""
    if case.trace is not None:
        return read(Path(case.trace) / f"worker-{worker_id}{SUFFIX}").gradient(-1, seed=case.seed)
    if case.density >= 1:
        return _normal(case.elements, worker_id, case.seed)[0]
    rng = np.random.default_rng([case.seed, case.elements])
    union = np.flatnonzero(rng.random(case.elements, np.float32) < case.density)
    return shared_tensor(union, case.elements, worker_id, workers, case.seed)


def shared_tensor(
    union: NDArray[np.int64], elements: int, worker_id: int, workers: int, seed: int
) -> NDArray[np.float32]:
    """Return one worker's float32[elements], non-zero at more than half of the positions `union`, int64[k].

    Each position is assigned to one worker, which has a non-zero there.
    """
    values, rng = _normal(elements, worker_id, seed)
    nonzero = rng.random(union.size) < _SHARED
    nonzero[worker_id::workers] = True
    tensor = np.zeros(elements, np.float32)
    tensor[union[nonzero]] = values[union[nonzero]]
    return tensor


def _normal(elements: int, worker_id: int, seed: int) -> tuple[NDArray[np.float32], np.random.Generator]:
    """Return a worker's normally distributed float32[elements], and its generator."""
    rng = np.random.default_rng([seed, elements, 1 + worker_id])
    return rng.standard_normal(elements, np.float32), rng


def wrong_elements(result: TensorResult, tensors: Sequence[NDArray[np.float32]]) -> int:
    """Return how many elements of a result differ from the sum of all workers' float32[n], by NumPy.

    The sum is computed in 64 bits, of integers with the result's scales. An element that differs from the
    unrounded sum by more than its error bound is wrong, too.
    """
    scales = np.zeros(tensors[0].shape, np.int32) if result.scales is None else result.scales
    quantized = [np.rint(np.ldexp(tensor.astype(np.float64), scales)).astype(np.int64) for tensor in tensors]
    total, exact = np.sum(quantized, axis=0), np.sum(tensors, axis=0, dtype=np.float64)
    rounded = np.ldexp(total.astype(np.float64), -scales).astype(np.float32)
    out_of_bounds = np.abs(result.values - exact) > result.error_bounds
    return int(np.count_nonzero((result.total != total) | (result.values != rounded) | out_of_bounds))


def settings_of(form: Form) -> dict[str, Any]:
    """Return the arguments of an `Allreduce` that sends tensors in this form."""
    return {"forms": "dense"} if form == "dense" else {"forms": "sparse", "values": form}


def measure(summation: Summation, case: Case, *, iterations: int, warmups: int) -> dict[str, Any]:
    """Sum the case's tensor `iterations` times back to back, after `warmups` sums that align the workers.

    Return seconds per step, the bytes of the last step without retransmissions, and its wrong elements.
    """
    allreduce = Allreduce(summation, **settings_of(case.form), seed=case.seed)
    worker_id, workers = summation.worker_id, summation.workers
    tensors = {"gradient": worker_tensor(case, worker_id, workers)}
    for _ in range(warmups):
        allreduce.sum(tensors)
    times = np.zeros(3)
    started = time.perf_counter()
    for _ in range(iterations):
        step = allreduce.sum(tensors)
        times += (step.encode_s, step.network_s, step.decode_s)
    elapsed = time.perf_counter() - started
    encode_s, network_s, decode_s = (times / iterations).tolist()
    all_tensors = [worker_tensor(case, other, workers) for other in range(workers)]
    return {
        "time_s": elapsed / iterations,
        "encode_s": encode_s,
        "network_s": network_s,
        "decode_s": decode_s,
        "wire_bytes": step.wire_bytes,
        "wrong": wrong_elements(step["gradient"], all_tensors),
    }


if __name__ == "__main__":
    terminate_with_parent()
    compile_progress_reporter(child=True)
    warm_up()
    arguments = json.loads(sys.argv[1])
    seat, described_cases = arguments.pop("seat"), arguments.pop("cases")
    with exit_on_errors(AllreduceError, TraceError, TransportError), plug_in(seat) as worker_summation:
        print_message(ready=True)
        for described in described_cases:
            print_message(**measure(worker_summation, Case(**described), **arguments))
