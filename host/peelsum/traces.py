"""Traces: gradients of a training run as they are summed, in files that are read without torch.

`docs/reference/traces.md` describes the files. A trace is a folder with a file for each worker: a ZIP of
NumPy arrays (`.npz`), compressed, with a JSON header, which is never unpickled. A support is the positions of
a gradient's non-zeros.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.reading import check_regular

VERSION = 2
SUFFIX = ".trace.npz"
_MOST_ELEMENTS = 1 << 32
#: A file may unpack to this many bytes, or to this multiple of its size, whichever is more. NumPy's
#: compression of zeros would permit 1,000 times its size.
_SMALL, _MOST_RATIO = 64 << 20, 100
_FORMAT = "peelsum trace"
_ARRAYS = {
    "bucket": (np.int32, 2),
    "ready_s": (np.float64, 2),
    "exponent": (np.uint8, 2),
    "count": (np.int64, 2),
    "supports": (np.uint8, 1),
}
_VALUES = (np.float32, 1)
#: What NumPy, zipfile and json raise for bytes that are not a trace file.
_UNREADABLE = (
    *(ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error, NotImplementedError),
    *(IndexError, OverflowError, MemoryError, SyntaxError, RecursionError, AttributeError),
)


class TraceError(ValueError):
    """A trace that cannot be read or written. The message names file, fault and remedy in one line."""


def encode(positions: NDArray[np.int64], elements: int) -> NDArray[np.uint8]:
    """Encode the positions of a tensor's non-zeros, int64[k], ascending, as bytes.

    The bytes are a bitmap or, where that is shorter, differences of uint32. There are none if no element or
    every element is non-zero.
    """
    if positions.size in (0, elements):
        return np.empty(0, np.uint8)
    if 32 * positions.size < elements:
        return np.diff(positions, prepend=0).astype("<u4").view(np.uint8)
    bits = np.zeros(elements, bool)
    bits[positions] = True
    return np.packbits(bits)


def decode(data: NDArray[np.uint8], count: int, elements: int) -> NDArray[np.int64]:
    """Return the positions that `encode` has encoded, int64[count]. Raises TraceError for wrong bytes."""
    if count in (0, elements):
        return np.arange(count)
    if 32 * count < elements:
        positions = np.cumsum(data.copy().view("<u4"), dtype=np.int64)
    else:
        positions = np.flatnonzero(np.unpackbits(data))
    if positions.size != count or not (np.diff(positions) > 0).all() or positions[-1] >= elements:
        raise _wrong_support(count, elements)
    return positions


def union_count(traces: Sequence[Trace], step: int, tensor: int) -> int:
    """Return how many elements of a tensor are non-zero on any worker in a step. Raises TraceError.

    It takes memory for the supports' bytes, not for the tensor's elements.
    """
    elements = traces[0].elements[tensor]
    counts = [int(trace.count[step, tensor]) for trace in traces]
    if elements in counts:
        return elements
    if 32 * max(counts) < elements:  # no bitmap among them
        return int(np.unique(np.concatenate([trace.positions(step, tensor) for trace in traces])).size)
    bits = np.zeros(-(-elements // 8), np.uint8)
    for trace, count in zip(traces, counts, strict=True):
        if 32 * count < elements:
            positions = trace.positions(step, tensor)
            np.bitwise_or.at(bits, positions // 8, (128 >> positions % 8).astype(np.uint8))
        else:
            bitmap = trace.support(step, tensor)
            if int(np.bitwise_count(bitmap).sum(dtype=np.int64)) != count:
                raise _wrong_support(count, elements)
            bits |= bitmap
    if bits[-1] & (0xFF >> (elements % 8 or 8)):
        raise _wrong_support(max(counts), elements)
    return int(np.bitwise_count(bits).sum(dtype=np.int64))


def _wrong_support(count: int, elements: int) -> TraceError:
    """Return the error for bytes that do not encode so many positions."""
    return TraceError(f"support: is not of {count} among {elements} elements; record the trace again")


@dataclass(frozen=True, eq=False)
class Trace:
    """The gradients that one worker summed in some steps.

    `steps`, `tensors` and `buckets` are the sizes of its arrays.
    """

    name: str
    """The name of the trained model or script."""
    worker: int
    """The worker's number."""
    workers: int
    """Number of workers of the run."""
    names: tuple[str, ...]
    """The tensors' names."""
    shapes: tuple[tuple[int, ...], ...]
    """The tensors' shapes."""
    bucket: NDArray[np.int32]
    """int32[steps, tensors]: the bucket in which a tensor was summed, counted in the order of the sums.

    -1 if the tensor was not summed in that step.
    """
    ready_s: NDArray[np.float64]
    """float64[steps, buckets]: seconds of computing before a bucket was ready, since the step's begin.

    A step begins when the sums of the previous one are complete. NaN where a step has fewer buckets.
    """
    exponent: NDArray[np.uint8]
    """uint8[steps, tensors]: the exponent field of the largest magnitude, as in a float32; 0 for zeros."""
    count: NDArray[np.int64]
    """int64[steps, tensors]: the non-zero elements."""
    supports: NDArray[np.uint8]
    """All supports' bytes, step by step, tensor by tensor; see `docs/reference/traces.md`."""
    values: NDArray[np.float32] | None
    """All non-zero values in the order of the supports; None if they were not recorded."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.bucket)

    @property
    def elements(self) -> list[int]:
        """The tensors' numbers of elements."""
        return [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """int64[steps, tensors]: bytes of the encoded supports."""
        elements = np.array(self.elements, np.int64)
        sizes = np.where(32 * self.count < elements, 4 * self.count, -(-elements // 8))
        return np.where(self.count == elements, 0, sizes)

    def positions(self, step: int, tensor: int) -> NDArray[np.int64]:
        """Return the non-zero elements of a tensor in a step, ascending, int64[k]. Raises TraceError."""
        count = int(self.count[step, tensor])
        return decode(self.support(step, tensor), count, self.elements[tensor])

    def support(self, step: int, tensor: int) -> NDArray[np.uint8]:
        """Return the bytes of a tensor's support in a step, as `encode` returns them."""
        begin = self._before(self.sizes, step, tensor)
        return self.supports[begin : begin + int(self.sizes[step, tensor])]

    def gradient(self, step: int, *, seed: int = 0) -> NDArray[np.float32]:
        """Return a step's gradient, all tensors one after the other, float32[sum of elements].

        Values that were not recorded are drawn: normally distributed, cut at four deviations, and scaled to
        the largest power of two below the tensor's recorded maximum; never zero. Raises TraceError.
        """
        parts = [np.empty(0, np.float32)]
        for tensor, elements in enumerate(self.elements):
            dense, at = np.zeros(elements, np.float32), self.positions(step, tensor)
            parts.append(dense)
            if self.values is not None:
                begin = self._before(self.count, step, tensor)
                dense[at] = self.values[begin : begin + at.size]
            elif at.size:
                random = np.random.default_rng([seed, self.worker, step % self.steps, tensor])
                drawn = np.clip(random.standard_normal(at.size, np.float32) / 4, -1, 1)
                drawn[drawn == 0] = 1
                drawn[0] = 1
                # As an int32, a float's bits are its exponent field and its fraction.
                largest = np.array([int(self.exponent[step, tensor]) << 23], np.int32).view(np.float32)[0]
                dense[at] = drawn * np.maximum(largest, np.float32(2.0**-100))
        return np.concatenate(parts)

    def _before(self, sizes: NDArray[np.int64], step: int, tensor: int) -> int:
        """Return the sum of the sizes of all tensors that are stored before this one."""
        return int(sizes[:step].sum() + sizes[step, :tensor].sum())


@dataclass
class _RecordedTensor:
    """A tensor's gradient in one step."""

    bucket: int
    exponent: int
    count: int
    support: NDArray[np.uint8]
    values: NDArray[np.float32]


class TraceRecorder:
    """Records a trace: `add` records a bucket, `end_step` ends a step, `trace` returns the trace so far.

    values: whether to record values, 4 bytes for each non-zero.
    """

    def __init__(self, name: str, worker: int, workers: int, *, values: bool = False) -> None:
        self._name, self._worker, self._workers, self._keep_values = name, worker, workers, values
        self._shapes: dict[str, tuple[int, ...]] = {}
        #: For each step, the times at which its buckets were ready, and its tensors by number. The last step
        #: has not ended.
        self._steps: list[tuple[list[float], dict[int, _RecordedTensor]]] = [([], {})]

    @property
    def steps(self) -> int:
        """Number of steps that have ended."""
        return len(self._steps) - 1

    def add(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        gradients: Sequence[NDArray[np.float32]],
        ready_s: float,
    ) -> None:
        """Record the next bucket of a step. ready_s: seconds from the step's begin until it was ready."""
        ready, tensors = self._steps[-1]
        for name, shape, gradient in zip(names, shapes, gradients, strict=True):
            self._shapes.setdefault(name, tuple(shape))
            number, flat = list(self._shapes).index(name), gradient.reshape(-1)
            positions = np.flatnonzero(flat)
            values = flat[positions]
            # As an int32, a float's bits are its exponent field and its fraction.
            exponent = int(np.abs(values).view(np.int32).max(initial=0)) >> 23
            tensors[number] = _RecordedTensor(
                len(ready),
                exponent,
                positions.size,
                encode(positions, flat.size),
                values if self._keep_values else values[:0],
            )
        ready.append(ready_s)

    def end_step(self) -> None:
        """End a step."""
        self._steps.append(([], {}))

    def trace(self) -> Trace:
        """Return the trace of all steps that have ended."""
        shape, steps = (self.steps, len(self._shapes)), self._steps[:-1]
        bucket, exponent = np.full(shape, -1, np.int32), np.zeros(shape, np.uint8)
        count = np.zeros(shape, np.int64)
        ready_s = np.full((shape[0], max((len(ready) for ready, _ in steps), default=0)), np.nan)
        recorded: list[_RecordedTensor] = []
        for step, (ready, tensors) in enumerate(steps):
            ready_s[step, : len(ready)] = ready
            for number, tensor in sorted(tensors.items()):
                at = step, number
                bucket[at], exponent[at], count[at] = tensor.bucket, tensor.exponent, tensor.count
                recorded.append(tensor)
        supports = np.concatenate([np.empty(0, np.uint8), *(tensor.support for tensor in recorded)])
        values = np.concatenate([np.empty(0, np.float32), *(tensor.values for tensor in recorded)])
        return Trace(
            name=self._name,
            worker=self._worker,
            workers=self._workers,
            names=tuple(self._shapes),
            shapes=tuple(self._shapes.values()),
            bucket=bucket,
            ready_s=ready_s,
            exponent=exponent,
            count=count,
            supports=supports,
            values=values if self._keep_values else None,
        )


def write(trace: Trace, path: Path) -> None:
    """Write a trace; the file appears complete, or not at all. Raises TraceError."""
    header = {
        "format": _FORMAT,
        "version": VERSION,
        "name": trace.name,
        "worker": trace.worker,
        "workers": trace.workers,
        "names": trace.names,
        "shapes": trace.shapes,
    }
    arrays = {name: getattr(trace, name) for name in _ARRAYS}
    if trace.values is not None:
        arrays["values"] = trace.values
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.savez_compressed(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TraceError(f"{path}: {error.strerror}; pass another folder") from None


def read(path: Path) -> Trace:
    """Read a worker's trace. Raises TraceError if the file is not a trace, or if its parts do not match."""
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as file:
            size = sum(entry.file_size for entry in file.infolist())
        if size > max(_SMALL, _MOST_RATIO * path.stat().st_size):
            raise TraceError(
                f"unpacks to {size:,} bytes, more than {_MOST_RATIO} times its size; pass another file"
            )
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes())
            arrays = {name: file[name] for name in file.files if name != "header"}
        trace = _checked(header, arrays)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}; pass a trace's file") from None
    except _UNREADABLE as error:
        reason = " ".join(str(error).split())[:100]
        raise TraceError(f"{path}: is not a trace ({type(error).__name__}: {reason}); pass another") from None
    return trace


def read_folder(folder: Path) -> list[Trace]:
    """Read the traces of all workers in a folder, in the order of the workers.

    Raises TraceError if a worker's trace is missing, or if traces are of different runs.
    """
    traces = sorted((read(path) for path in folder.glob(f"*{SUFFIX}")), key=lambda trace: trace.worker)
    if not traces:
        raise TraceError(f"{folder}: has no files *{SUFFIX}; pass a folder of `peelsum trace record`")
    first = traces[0]
    if [trace.worker for trace in traces] != list(range(first.workers)):
        workers = ", ".join(str(trace.worker) for trace in traces)
        raise TraceError(f"{folder}: has workers {workers} of {first.workers}; pass a complete folder")
    for trace in traces:
        if (trace.names, trace.shapes, trace.steps) != (first.names, first.shapes, first.steps):
            raise TraceError(f"{folder}: worker {trace.worker} has other tensors or steps than worker 0")
    return traces


def _checked(header: Any, arrays: dict[str, NDArray[Any]]) -> Trace:
    """Return the trace of a file's header and arrays.

    Raises TraceError for missing or wrong ones, and if they do not match each other. Supports are checked
    when they are decoded.
    """
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise TraceError("header: is not a trace's; pass another file")
    if header["version"] != VERSION:
        raise TraceError(f"version: {header['version']!r} is not {VERSION}; record the trace again")
    for name, (kind, dimensions) in {**_ARRAYS, "values": _VALUES}.items():
        array = arrays.get(name)
        if array is None and name == "values":
            continue
        if array is None or array.dtype != kind or array.ndim != dimensions:
            raise TraceError(f"{name}: is missing or of another type; record the trace again")
    worker, workers = int(header["worker"]), int(header["workers"])
    if not 0 <= worker < workers:
        raise TraceError(f"worker: {worker} is not one of {workers}; record the trace again")
    names = tuple(str(name) for name in header["names"])
    shapes = tuple(tuple(int(length) for length in shape) for shape in header["shapes"])
    values = arrays.get("values")
    trace = Trace(
        str(header["name"]), worker, workers, names, shapes, values=values, **{n: arrays[n] for n in _ARRAYS}
    )
    tensors = len(names)
    if len(trace.shapes) != tensors or len(set(trace.names)) != tensors:
        raise TraceError("names: do not fit the shapes; record the trace again")
    if any(length < 0 for shape in trace.shapes for length in shape):
        raise TraceError("shapes: have a negative length; record the trace again")
    if sum(trace.elements) > _MOST_ELEMENTS:
        raise TraceError(f"shapes: have more than {_MOST_ELEMENTS:,} elements; trace a smaller model")
    for name in ("bucket", "exponent", "count"):
        if getattr(trace, name).shape != (trace.steps, tensors):
            raise TraceError(f"{name}: is not of {trace.steps} steps and {tensors} tensors")
    if len(trace.ready_s) != trace.steps or trace.bucket.max(initial=-1) >= trace.ready_s.shape[1]:
        raise TraceError("ready_s: does not fit the buckets; record the trace again")
    if (trace.count < 0).any() or (trace.count > np.array(trace.elements, np.int64)).any():
        raise TraceError("count: is out of range; record the trace again")
    if trace.sizes.sum() != trace.supports.size:
        raise TraceError("supports: do not fit the counts; record the trace again")
    if trace.values is not None and trace.count.sum() != trace.values.size:
        raise TraceError("values: do not fit the counts; record the trace again")
    return trace
