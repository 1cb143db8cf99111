"""One worker of `peelsum bench allreduce`: seeded tensors, a timed loop of sums, and a check.

`peelsum.bench.allreduce.rows` runs it as a separate process. It prints a line of JSON per case. The check
shares no code with the codec.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Allreduce, AllreduceError, Form, Summation, TensorResult
from peelsum.codec import warm_up
from peelsum.topology import end_with_parent, say
from peelsum.topology.telling import told_of_compiling
from peelsum.topology.user_errors import reported
from peelsum.traces import SUFFIX, TraceError, read
from peelsum.transport import TransportError

#: Share of the union's positions that a worker holds, besides those assigned to it.
_SHARED = 0.5
_INT32 = 2**31 - 1


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


@dataclass(frozen=True)
class Measurement:
    """One worker's measurement of a case; seconds are per step."""

    time_s: float
    encode_s: float
    network_s: float
    decode_s: float
    wire_bytes: int
    """Bytes that this worker sent in the last step, without retransmissions."""
    density: float
    """Share of elements that are non-zero on some worker, as measured."""
    wrong: int | None
    """Elements that differ from an independent sum; None if not checked."""


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


def expected(case: Case, workers: int, block: int = 2**62) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the exact sum of all workers' quantized tensors, and its floats, by plain NumPy in 64 bits.

    `block` is the number of elements that share a scale.
    """
    return exact_sum([tensor_of(case, worker_id, workers) for worker_id in range(workers)], block)


def exact_sum(
    tensors: Sequence[NDArray[np.float32]], block: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the sum of float32[n] of all workers, as `expected` does."""
    elements = tensors[0].size
    scales = _scales(tensors, min(block, max(elements, 1)))
    total = np.zeros(elements, np.int64)
    for tensor in tensors:
        total += np.rint(np.ldexp(tensor.astype(np.float64), scales)).astype(np.int64)
    return total.astype(np.int32), np.ldexp(total.astype(np.float64), -scales).astype(np.float32)


def _scales(tensors: Sequence[NDArray[np.float32]], block: int) -> NDArray[np.int64]:
    """Return each element's scale: the largest at which float32 of its block's exponent fit an int32 sum.

    Exponent fields are rounded up to odd ones. Drawn tensors hold no values so small that a block's exponent
    would not be told apart.
    """
    elements, workers = tensors[0].size, len(tensors)
    largest = np.zeros(-(-elements // block) * block, np.float32)
    for tensor in tensors:
        np.maximum(largest[:elements], np.abs(tensor), out=largest[:elements])
    by_block = largest.reshape(-1, block).max(axis=1)
    if not by_block.any():
        return np.zeros(elements, np.int64)
    # frexp's exponent is E + 1 for a float32 of exponent E, and is even where the field E + 127 is.
    exponents = np.where(by_block > 0, np.frexp(by_block)[1] | 1, 0)
    headroom = next(h for h in range(31, 0, -1) if workers * np.rint(2.0**h * (1 - 2.0**-24)) <= _INT32)
    return np.repeat(headroom - exponents.astype(np.int64), block)[:elements]


def settings_of(form: Form) -> dict[str, Any]:
    """Return the settings of an allreduce that sends tensors in this form."""
    return {"forms": "dense"} if form == "dense" else {"forms": "sparse", "values": form}


def measure(summation: Summation, case: Case, *, iterations: int, warmups: int, check: bool) -> Measurement:
    """Sum the case's tensor `iterations` times back to back, after `warmups` sums that align the workers."""
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
    encode_s, network_s, decode_s = (spent / iterations).tolist()
    last = step["gradient"]
    return Measurement(
        time_s=elapsed / iterations,
        encode_s=encode_s,
        network_s=network_s,
        decode_s=decode_s,
        wire_bytes=step.wire_bytes,
        density=last.density,
        wrong=_wrong(last, case, summation.workers) if check else None,
    )


def _wrong(result: TensorResult, case: Case, workers: int) -> int:
    fixed = result.fixed
    total, floats = expected(case, workers, fixed.block if fixed else 2**62)
    return int(np.count_nonzero((result.total != total) | (result.values != floats)))


def run(
    seat: Mapping[str, Any], cases: Iterable[Case], *, iterations: int, warmups: int, check: bool
) -> None:
    """Join the job of `seat`, measure the cases in order, and print each measurement."""
    from peelsum.transport.seats import plug_in

    with plug_in(seat) as summation:
        say(ready=True)
        for case in cases:
            say(**asdict(measure(summation, case, iterations=iterations, warmups=warmups, check=check)))


def main() -> None:
    """Run the process; its only argument is a JSON object of `run`'s arguments."""
    end_with_parent()
    arguments = json.loads(sys.argv[1])
    cases = [Case(**case) for case in arguments.pop("cases")]
    told_of_compiling(child=True)
    warm_up()
    with reported(AllreduceError, TraceError, TransportError):
        run(arguments.pop("seat"), cases, **arguments)


if __name__ == "__main__":
    main()
