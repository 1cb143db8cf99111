"""A trace's file: a ZIP of NumPy arrays (`.npz`), compressed, with a JSON header. Never unpickled."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.traces.trace import Trace, TraceError

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
