"""Makes a callable of generated source text: plain Python, or machine code by Numba, cached on disk."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from peelsum.compiling import compiler
from peelsum.softswitch.compiler.codegen import RUNTIME, Generated
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.runtime import native, plain

_log = logging.getLogger("peelsum.switch")

#: Most seconds that Numba may take for a program, by `seconds_to_compile`. It then needs less than 1 GB.
MOST_SECONDS = 10.0


def seconds_to_compile(source: str) -> float:
    """Estimate the processor time that Numba takes to compile generated code, the same on every machine.

    Numba follows variables from block to block: its time grows with the product of both. The factors
    were fitted to programs that take 1 to 45 s.
    """
    words = sum(1 for _ in re.finditer(r"\w+", source))
    blocks = source.count(":\n")
    return 0.5 + 1.4e-3 * words + 2.8e-6 * words * blocks


def machine_code(generated: Generated, name: str) -> Callable[..., tuple[int, int]] | None:
    """Return the generated function of program `name` as `through_numba` does.

    Return None, and log why, if compiling it would take too long or Numba cannot.
    """
    seconds = seconds_to_compile(generated.source)
    if seconds > MOST_SECONDS:
        _log.warning(
            "switch: interprets program %s, slowly: compiling it would take about %.1f s, more than %g s; "
            "make lanes fields of one header with a register each, which become loops",
            *(name, seconds, MOST_SECONDS),
        )
        return None
    try:
        return through_numba(generated.source, bool(generated.again))
    except RecursionError:
        _log.warning(
            "switch: interprets program %s, slowly: has too many branches in a row to compile; "
            "make tables of them",
            name,
        )
        return None


def as_it_is(generated: Generated) -> Callable[..., tuple[int, int]]:
    """Return the generated function in plain Python. Raises UnsupportedConstruct if Python cannot load it."""
    names: dict[str, Any] = {name: getattr(plain, name) for name in RUNTIME}
    try:
        exec(compile(generated.source, "<generated>", "exec"), names)
    except (RecursionError, MemoryError):  # the latter if Python's parser ran out of levels
        raise UnsupportedConstruct(
            "program: has too many branches in a row; use shorter header stacks, or fewer parser states and "
            "actions of a table"
        ) from None
    return plain.main(names["run"])  # type: ignore[no-any-return]


@cache
def through_numba(source: str, again: bool) -> Callable[..., tuple[int, int]]:
    """Return the function `run` of generated source text as machine code.

    again: whether packets may go through the program more than once, which takes more arguments.
    """
    names: dict[str, Any] = {name: getattr(native, name) for name in RUNTIME} | {"__name__": __name__}
    exec(compile(source, "<generated>", "exec"), names)
    signature = native.SIGNATURE_AGAIN if again else native.SIGNATURE
    return compiler(native.OPTIONS, signature)(names["run"])  # type: ignore[no-any-return]
