"""Loads a BMv2 JSON file and checks that code can be generated for it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from peelsum.reading import parse_json, read_bytes
from peelsum.softswitch.compiler.codegen import generate
from peelsum.softswitch.errors import BadProgram, UnsupportedConstruct
from peelsum.softswitch.program.loader import read
from peelsum.softswitch.program.model import Program

#: Most bytes of a BMv2 JSON file.
MOST_PROGRAM_BYTES = 16 << 20


def load(path: str | PathLike[str]) -> Program:
    """Return the program in a BMv2 JSON file.

    Raises BadProgram if the file is not such a program, and UnsupportedConstruct if it uses something that
    the softswitch does not support. Both name the item and where it is.
    """
    try:
        document = parse_json(read_bytes(Path(path), MOST_PROGRAM_BYTES), MOST_PROGRAM_BYTES)
    except OSError as error:
        raise BadProgram(f"{path}: {error.strerror}; give the JSON file that p4c-bm2-ss wrote") from None
    except ValueError as error:
        raise BadProgram(f"{path}: not JSON ({error}); give the file that p4c-bm2-ss wrote") from None
    return parse(document, Path(path).stem)


def parse(document: Any, name: str) -> Program:
    """Return the program in a BMv2 JSON document. Raises as `load` does."""
    if not isinstance(document, dict) or "pipelines" not in document:
        raise BadProgram(
            f"{name}: has no pipelines, so it is not BMv2 JSON; compile the program with p4c-bm2-ss"
        )
    try:
        version = document.get("__meta__", {}).get("version", [2])
        if version[0] != 2:
            raise UnsupportedConstruct(f"{name}: BMv2 JSON version {version}; use version 2")
        program = read(document, name)
        generate(program, True, False)  # finds unsupported constructs; a switch gets the code from its cache
    except (KeyError, TypeError, IndexError, ValueError, OverflowError, AttributeError) as error:
        raise BadProgram(f"{name}: incomplete BMv2 JSON ({error!r}); compile the program again") from error
    except RecursionError:
        raise UnsupportedConstruct(
            f"{name}: branches or an expression nested too deeply; make tables or variables of parts"
        ) from None
    return program
