"""Read files and texts from users and other machines, within limits of size and nesting depth."""

from __future__ import annotations

import errno
import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The default limit of a file or text, in bytes.
MOST_BYTES = 1 << 20
#: The most parts of a dotted key. `tomllib` takes memory that grows with the square of a key's parts.
MOST_PARTS = 16
# A part of a dotted key, bare or quoted, and MOST_PARTS of them with their dots. Possessive, so that a search
# takes linear time.
_PART = r"""(?:(?<![\w-])[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?:{_PART}[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}")


class LimitError(ValueError):
    """A text exceeds a limit. The message does not name the text; callers prepend the name."""


def check_regular(path: Path) -> None:
    """Raise OSError for a named pipe, a device or a socket, of which a read may wait or never end.

    `/dev/null` raises nothing, because it is empty. Nor does a pipe without a name, such as a shell's
    `<(command)`, because its command writes to it.
    """
    target = Path(os.path.realpath(path))  # of a pipe without a name, this path does not exist
    is_readable = target.is_file() or target.is_dir() or str(target) == os.devnull
    if target.exists() and not is_readable:
        raise OSError(errno.EINVAL, "is not a regular file", str(path))


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file. Raises OSError, as `check_regular` does or for more than `most` bytes."""
    check_regular(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"has more than {most:,} bytes", str(path))
    return content


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return the content of a UTF-8 file, without a byte-order mark.

    Raises OSError as `read_bytes` does, or UnicodeDecodeError.
    """
    return read_bytes(path, most).decode("utf-8-sig")


def parse_toml(text: str, most: int = MOST_BYTES) -> dict[str, Any]:
    """Parse a TOML text. Raises ValueError, or LimitError for more than `most` characters."""
    _check_size(text, most)
    if key := _LONG_KEY.search(text):
        line = text.count("\n", 0, key.start()) + 1
        raise LimitError(f"line {line}: has a key of more than {MOST_PARTS} parts; remove it")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _too_deep() from None


def parse_json(
    text: str | bytes,
    most: int = MOST_BYTES,
    make_object: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Parse a JSON text. Raises ValueError, or LimitError for more than `most` characters or bytes.

    make_object: returns an object with these members; without it, the last of several with one name counts.
    """
    _check_size(text, most)
    try:
        return json.loads(text, object_pairs_hook=make_object)
    except RecursionError:
        raise _too_deep() from None


def _check_size(text: str | bytes, most: int) -> None:
    if len(text) > most:
        raise LimitError(
            f"is longer than {most:,} {'bytes' if isinstance(text, bytes) else 'characters'}; shorten it"
        )


def _too_deep() -> LimitError:
    return LimitError("has lists or tables nested too deeply; remove them")
