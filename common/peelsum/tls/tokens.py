"""Tokens of jobs: a secret in a file, which a worker sends when it requests a seat."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from pathlib import Path

from peelsum.reading import read_text
from peelsum.tls.identity import TlsError

#: The length of the longest token, in characters.
MAX_TOKEN_LENGTH = 64
_TOKEN = re.compile(r"[\w-]{16,64}", re.ASCII)


def make_token(path: Path) -> None:
    """Write a random token of 256 bits to a new file that only its owner can read.

    Raises TlsError if the file exists.
    """
    write_new(path, secrets.token_urlsafe(32).encode() + b"\n", 0o600)


def read_token(path: Path) -> str:
    """Read the token in a file. Raises TlsError if the file is unreadable or has no valid token."""
    try:
        token = read_text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        raise TlsError(f"token: {path}: {reason}; make one: peelsum certificates token FILE") from None
    if not _TOKEN.fullmatch(token):
        raise TlsError(
            f"token: {path}: is not 16 to {MAX_TOKEN_LENGTH} letters, digits, - or _; "
            "make one: peelsum certificates token FILE"
        )
    return token


def tokens_equal(first: str, second: str) -> bool:
    """Compare two tokens in constant time, which does not reveal where they differ."""
    # JSON text may contain a lone surrogate, which cannot be encoded otherwise.
    return hmac.compare_digest(*(token.encode(errors="surrogatepass") for token in (first, second)))


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a new file with these permissions. Raises TlsError if it exists or cannot be written."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise TlsError(f"{path}: exists and is not overwritten; remove it, or choose another name") from None
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror}; choose another place") from None
