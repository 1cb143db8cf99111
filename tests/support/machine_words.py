"""Generated code on numbers of 64 bits that wrap, as Numba compiles it, but without waiting for Numba."""

import sys
from types import FunctionType

import numpy as np

from peelsum.softswitch.compiler.loading import RUNTIME
from peelsum.softswitch.runtime import hashes, meters, plain, queues

_ALL_ONES = (1 << 64) - 1


def word(value):
    return np.uint64(int(value) & _ALL_ONES)


class Words:
    """An array whose elements are read as words, and truncated to their width when they are written."""

    def __init__(self, array):
        self.array = array

    def __getitem__(self, index):
        return word(self.array[int(index)])

    def __setitem__(self, index, value):
        self.array[int(index)] = np.asarray(value, np.uint64).astype(self.array.dtype)


def _signed(value):
    return int(value) - (int(value) >> 63 << 64)


def _clamp(value, low, high):
    return sorted((value, low, high), key=_signed)[1]


def _copy(out, to, data, start, count):
    to, start, count = int(to), int(start), int(count)
    out.array[to : to + count] = data.array[start : start + count]


def _load(size):
    return lambda data, at: word(int.from_bytes(data.array[int(at) : int(at) + size].tobytes(), "big"))


def _store(size):
    def store(out, at, value):
        kept = int(value) & (1 << 8 * size) - 1
        out.array[int(at) : int(at) + size] = np.frombuffer(kept.to_bytes(size, "big"), np.uint8)

    return store


def _on_words(function):
    """Return a copy of a function of the runtime, in which its module's integer constants are words."""
    constants = {
        name: word(value) if type(value) is int else value
        for name, value in vars(sys.modules[function.__module__]).items()
    }
    return FunctionType(function.__code__, constants, function.__name__)


def on_words(generated):
    """Return a program's function for `Switch`, which computes as machine code does."""
    runtime = {
        name: value for module in (plain, hashes, meters, queues) for name, value in vars(module).items()
    }
    functions = {name: runtime[name] for name in RUNTIME if isinstance(runtime.get(name), FunctionType)}
    names = {name: _on_words(function) for name, function in functions.items() if not function.__closure__}
    names |= {"K": word, "number": word, "clamp": _clamp, "copy": _copy}
    names["shl"] = lambda value, count: value << count if count < 64 else word(0)
    names["shr"] = lambda value, count: value >> count if count < 64 else word(0)
    for size, kind in ((1, np.uint8), (2, np.uint16), (4, np.uint32), (8, np.uint64)):
        names[f"load{8 * size}"], names[f"store{8 * size}"] = _load(size), _store(size)
        names[f"array{8 * size}"] = lambda count, kind=kind: Words(np.zeros(int(count), kind))
    exec(generated.source, names)

    def run(*arguments):
        with np.errstate(over="ignore"):
            return names["run"](*(Words(x) if isinstance(x, np.ndarray) else word(x) for x in arguments))

    return run
