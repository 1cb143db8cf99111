"""Turns generated source text into a callable: plain Python, or machine code by Numba, cached on disk."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from peelsum.compiling import compiler
from peelsum.softswitch.compiler.loading import RUNTIME, Generated
from peelsum.softswitch.errors import UnsupportedConstruct
from peelsum.softswitch.runtime import native, plain

_logger = logging.getLogger("peelsum.switch")

#: Most seconds that compiling a program may take, as `seconds_to_compile` estimates. Numba then needs less
#: than 1 GB of memory.
MOST_SECONDS = 10.0


def seconds_to_compile(source: str) -> float:
    """Return an estimate of the processor time that Numba needs for generated code; it ignores the machine.

    Numba analyses variables in every block, so its time grows with the product of both numbers. The factors
    were fitted to programs that take 1 to 45 s.
    """
    word_count = sum(1 for _ in re.finditer(r"\w+", source))
    block_count = source.count(":\n")
    return 0.5 + 1.4e-3 * word_count + 2.8e-6 * word_count * block_count


def machine_code(generated: Generated, name: str) -> Callable[..., tuple[int, int]] | None:
    """Return the generated function of program `name` as machine code.

    Return None, and log the reason, if Numba would take too long or fails.
    """
    seconds = seconds_to_compile(generated.source)
    if seconds > MOST_SECONDS:
        _logger.warning(
            "switch: interprets program %s, slowly: compiling it would take about %.1f s, more than %g s; "
            "make lanes fields of one header with a register each, which become loops",
            *(name, seconds, MOST_SECONDS),
        )
        return None
    try:
        return compiled_by_numba(generated.source, bool(generated.queue_words))
    except RecursionError:
        _logger.warning(
            "switch: interprets program %s, slowly: has too many branches in a row to compile; "
            "make tables of them",
            name,
        )
        return None


def interpreted(generated: Generated) -> Callable[..., tuple[int, int]]:
    """Return the generated function in plain Python. Raises UnsupportedConstruct if it is too deep."""
    names: dict[str, Any] = {name: getattr(plain, name) for name in RUNTIME}
    try:
        exec(compile(generated.source, "<generated>", "exec"), names)
    except (RecursionError, MemoryError):  # Python's parser raises MemoryError if nesting is too deep
        raise UnsupportedConstruct(
            "program: has too many branches in a row; use shorter header stacks, or fewer parser states and "
            "actions of a table"
        ) from None
    return plain.with_python_integers(names["run"])  # type: ignore[no-any-return]


@cache
def compiled_by_numba(source: str, is_multi_pass: bool) -> Callable[..., tuple[int, int]]:
    """Return the function `run` of generated source text as machine code.

    is_multi_pass: whether `MultiPassWriter` wrote it, so that it has more arguments.
    """
    names: dict[str, Any] = {name: getattr(native, name) for name in RUNTIME} | {"__name__": __name__}
    exec(compile(source, "<generated>", "exec"), names)
    signature = native.SIGNATURE_AGAIN if is_multi_pass else native.SIGNATURE
    return compiler(native.OPTIONS, signature)(names["run"])  # type: ignore[no-any-return]
