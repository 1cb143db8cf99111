"""Reads files and texts from users and other machines, within limits of bytes and depth."""

from __future__ import annotations

import errno
import json
import re
import tomllib
from pathlib import Path
from typing import Any

#: Most bytes of a file or text, unless the caller knows better.
MOST_BYTES = 1 << 20
#: Most parts of a dotted key. For each key, `tomllib` takes memory that grows with the square of its parts.
MOST_PARTS = 16
# A part of a dotted key, bare or quoted, and MOST_PARTS of them with their dots. Possessive, so that a search
# takes linear time.
_PART = r"""(?:(?<![\w-])[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?:{_PART}[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}")


class LimitError(ValueError):
    """A text is beyond a limit. The message does not name the text: callers put its name before it."""


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return a file's content. Raises OSError, also for more than `most` bytes."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"has more than {most:,} bytes", str(path))
    return content


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return a file's content, UTF-8. Raises OSError, as `read_bytes`, or UnicodeDecodeError."""
    return read_bytes(path, most).decode()


def parse_toml(text: str, most: int = MOST_BYTES) -> dict[str, Any]:
    """Return the table in a TOML text. Raises ValueError, or LimitError beyond `most` characters."""
    _check_length(text, most)
    if key := _LONG_KEY.search(text):
        line = text.count("\n", 0, key.start()) + 1
        raise LimitError(f"line {line}: has a key of more than {MOST_PARTS} parts; remove it")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _too_deep() from None


def parse_json(text: str | bytes, most: int = MOST_BYTES) -> Any:
    """Return the value in a JSON text. Raises ValueError, or LimitError beyond `most` characters or bytes."""
    _check_length(text, most)
    try:
        return json.loads(text)
    except RecursionError:
        raise _too_deep() from None


def _check_length(text: str | bytes, most: int) -> None:
    if len(text) > most:
        raise LimitError(
            f"is longer than {most:,} {'bytes' if isinstance(text, bytes) else 'characters'}; shorten it"
        )


def _too_deep() -> LimitError:
    return LimitError("has lists or tables nested too deeply; remove them")
