"""Compute a digest of everything that the machine code of a function depends on.

Compiled code contains the functions that it calls and the constants of their modules. Numba's cache notices
only changes of the file that defines the function.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.types import ExternalFunction, Type

_VERSIONS = (platform.python_version(), numba.__version__, llvmlite.__version__, np.__version__)
#: Packages that do not change without a new version, so their content is not hashed.
_VERSIONED = {"numba", "llvmlite", "numpy"} | sys.stdlib_module_names
_Constants = int | float | complex | str | bytes | bool | None | np.generic


def fingerprint(loop: Any) -> str:
    """Return 32 hexadecimal digits that identify the code of a Numba dispatcher and every value it uses.

    Raises TypeError if the function uses a value whose `repr` shows an address in place of its content.
    """
    uses = _UsedValues()
    uses.add(loop, ())
    return uses.digest()


class _UsedValues:
    """Hashes a function and, recursively, all values that it refers to, each of them once."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(repr(_VERSIONS).encode())
        self._seen: dict[int, tuple[int, Any]] = {}  # it refers to the value, so that its id is not reused

    def digest(self) -> str:
        """Return the digest of the values added so far."""
        return self._hash.hexdigest()[:32]

    def add(self, value: Any, names: Iterable[str]) -> None:
        """Hash a value; of a module or a class, only the attributes that are among `names`."""
        if value is None or isinstance(value, _Constants):
            self._hash_texts("constant", type(value).__qualname__, repr(value))
        elif isinstance(value, type | ModuleType):
            qualname = getattr(value, "__qualname__", value.__name__)
            self._hash_texts("namespace", getattr(value, "__module__", ""), qualname)
            if not _is_versioned(getattr(value, "__module__", value.__name__)):
                self._hash_texts(*map(str, getattr(value, "_fields", ())))
                for name in names:
                    if hasattr(value, name) and not hasattr(tuple, name):
                        self._hash_texts(name)
                        self.add(getattr(value, name), names)
        elif id(value) in self._seen:
            self._hash_texts("again", str(self._seen[id(value)][0]))
        else:
            self._seen[id(value)] = len(self._seen), value
            self._add_new(value)

    def _hash_texts(self, *parts: str) -> None:
        for part in parts:
            content = part.encode()
            self._hash.update(b"%d:%b" % (len(content), content))

    def _add_new(self, value: Any) -> None:
        """Hash a new value, by its type. Raises TypeError if its `repr` is an address."""
        self._hash_texts(type(value).__qualname__)
        match value:
            case Dispatcher():
                self._hash_texts(repr(sorted(value.targetoptions.items())))
                self._add_function(value.py_func)
            case FunctionType():
                self._add_function(value)
            case partial():
                self._add_all((value.func, value.args, value.keywords))
            case CodeType():
                self._hash_texts(value.co_code.hex(), *value.co_names, *value.co_varnames)
                self._add_all(value.co_consts)
            case np.ndarray():
                self._hash_texts(value.dtype.str, repr(value.shape), value.tobytes().hex())
            case tuple() | list():
                self._add_all(value)
            case dict():
                self._add_all(value.items())
            case ExternalFunction():
                self._hash_texts(value.symbol, str(value.sig))
            case Type() | Enum() | BuiltinFunctionType() | np.ufunc():
                self._hash_texts(repr(value))
            case frozenset():
                self._hash_texts(*sorted(map(repr, value)))
            case _ if hasattr(value, "_defn"):  # an intrinsic of Numba
                self._add_function(value._defn)
            case _ if " at 0x" in repr(value):
                raise TypeError(
                    f"{value!r}: is used by a compiled function, and its content is unknown; pass it as an "
                    "argument"
                )
            case _:
                self._hash_texts(repr(value))

    def _add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value, ())

    def _add_function(self, function: Any) -> None:
        """Hash a function: its code, default arguments, closure, and the globals that it uses."""
        if _is_versioned(function.__module__):
            self._hash_texts(function.__module__, function.__qualname__)
            return
        names = sorted(_names(function.__code__))
        self.add(function.__code__, ())
        self.add(function.__defaults__, ())
        for cell in function.__closure__ or ():
            self.add(cell.cell_contents, names)
        for name in names:
            if name in function.__globals__:
                self._hash_texts(name)
                self.add(function.__globals__[name], names)


def _is_versioned(module: str) -> bool:
    return module.partition(".")[0] in _VERSIONED


def _names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that code and its inner functions use."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)
