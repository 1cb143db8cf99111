"""Programs of a launch that run at once, over memory as weak as a GPU's.

The interpreter runs them one after the other, and each sees at once what others wrote. Here each is a thread;
before every access to memory, it is drawn whether another goes on. A program has a cache as an SM has: it
keeps what plain loads have read, and is never invalidated. Loads that are volatile, or past that cache, read
memory. What a program stores, others see after its next atomic operation with release.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Semaphore, Thread, local
from typing import Any
from unittest.mock import patch

import numpy as np
from triton.runtime import interpreter

from peelsum.codec.gpu import launch as launching
from peelsum.codec.gpu.sketch import rounds_kernel

_Builder, _LINE, _MOST_ACCESSES = interpreter.InterpreterBuilder, 128, 2_000_000
_RELEASE = interpreter._ir.MEM_SEMANTIC.RELEASE, interpreter._ir.MEM_SEMANTIC.ACQUIRE_RELEASE
#: Whether the interpreter has the functions that are replaced, as that of Triton 3.9 has.
SUPPORTED = hasattr(_Builder, "get_cache_policy")
_load, _atomic = _Builder.create_masked_load, _Builder.create_atomic_rmw


class _Program:
    """What one program has read, and what it has stored but not released."""

    def __init__(self) -> None:
        self.turn = Semaphore(0)
        self.lines = {}
        self.stored = {}

    def release(self) -> None:
        """Write what was stored to memory."""
        for address, value in self.stored.items():
            ctypes.memmove(address, value.tobytes(), value.itemsize)
            self.lines.pop(address // _LINE, None)
        self.stored.clear()

    def read(self, address: int, value: Any, plain: bool) -> Any:
        """Return what the program sees at an address where memory has `value`."""
        if address in self.stored:
            return self.stored[address]
        if not plain:
            return value
        line, offset = divmod(address, _LINE)
        if line not in self.lines:
            self.lines[line] = ctypes.string_at(line * _LINE, _LINE)
        return np.frombuffer(self.lines[line], value.dtype, 1, offset)[0]


class Launch:
    """A launch of some programs. Which goes on is drawn from `seed`."""

    def __init__(self, programs: int, seed: int) -> None:
        self._rng, self._here, self.accesses = np.random.default_rng(seed), local(), 0
        self._programs = {number: _Program() for number in range(programs)}
        self._changing, self._error = self._rng.choice([0.02, 0.2, 0.6]), list[BaseException]()

    def run(self, kernel: Any, arguments: tuple[Any, ...]) -> None:
        """Run the kernel to its end; raise the first error of a program."""
        made = interpreter.GridExecutor(kernel.rewrite(), kernel.arg_names, (len(self._programs),))
        scope = interpreter._patch_lang(made.fn)
        given = {
            name: one if name in made.constexprs else interpreter._implicit_cvt(one)
            for name, one in inspect.getcallargs(made.fn, *arguments).items()
        }
        with ExitStack() as patches:
            patches.callback(scope.restore)
            for name in ("load", "store"):
                patches.enter_context(patch.object(_Builder, f"create_masked_{name}", getattr(self, name)))
            patches.enter_context(patch.object(_Builder, "create_atomic_rmw", self.atomic))
            patches.enter_context(patch.object(_Builder, "get_cache_policy", _modifier))
            interpreter.interpreter_builder.set_grid_dim(len(self._programs), 1, 1)
            threads = [Thread(target=self._program, args=(made.fn, given, one)) for one in self._programs]
            for thread in threads:
                thread.start()
            self._next()
            for thread in threads:
                thread.join()
        if self._error:
            raise self._error[0]

    def _program(self, fn: Any, given: Any, number: int) -> None:
        own = self._here.program = self._programs[number]
        try:
            self._wait(number)
            fn(**given)
        except BaseException as error:
            self._error.append(error)
        own.release()
        del self._programs[number]
        self._next()

    def _next(self) -> None:
        if self._programs:
            self._programs[self._rng.choice(list(self._programs))].turn.release()

    def _wait(self, number: int) -> None:
        self._programs[number].turn.acquire()
        interpreter.interpreter_builder.set_grid_idx(number, 0, 0)

    def _access(self) -> _Program:
        """Let another program go on, perhaps; return the one that accesses memory."""
        self.accesses += 1
        if self._error or self.accesses > _MOST_ACCESSES:
            raise RuntimeError("another program failed, or programs wait for each other")
        if self._rng.random() < self._changing:
            number = interpreter.interpreter_builder.grid_idx[0]
            self._next()
            self._wait(number)
        return self._here.program

    def load(self, pointers: Any, mask: Any, other: Any, modifier: Any, volatile: bool) -> Any:
        """Stand for `create_masked_load`."""
        own = self._access()
        found = _load(interpreter.interpreter_builder, pointers, mask, other, modifier, volatile)
        plain, data = not volatile and modifier == "none", found.data.copy()
        for at in zip(*np.nonzero(np.broadcast_to(mask.data, data.shape)), strict=True):
            address = int(np.broadcast_to(pointers.data, data.shape)[at])
            data[at] = own.read(address, data[at], plain)
        return interpreter.TensorHandle(data, found.dtype)

    def store(self, pointers: Any, values: Any, mask: Any, _: Any) -> None:
        """Stand for `create_masked_store`."""
        own = self._access()
        for address, value, inside in np.broadcast(pointers.data, values.data, mask.data):
            if inside:
                own.stored[int(address)] = values.data.dtype.type(value)

    def atomic(self, op: Any, pointers: Any, values: Any, mask: Any, sem: Any, scope: Any) -> Any:
        """Stand for `create_atomic_rmw`."""
        own = self._access()
        if sem in _RELEASE:
            own.release()
        return _atomic(interpreter.interpreter_builder, op, pointers, values, mask, sem, scope)


def _modifier(_: Any, modifier: str, eviction: str) -> str:
    return modifier


@contextmanager
def at_once(seed: int, chosen: Any = rounds_kernel) -> Iterator[list[Launch]]:
    """Run the programs of launches of the chosen kernel at once; yield the list of these launches."""
    run, launches = launching.run, list[Launch]()

    def launched(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
        if kernel is not chosen:
            run(kernel, programs, *arguments, **options)
            return
        launches.append(Launch(programs, seed))
        launches[-1].run(kernel, arguments)

    with patch.object(launching, "run", launched):
        yield launches
