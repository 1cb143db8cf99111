"""Tokens of jobs: a secret in a file, which a worker sends to get a seat."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from pathlib import Path

from peelsum.reading import read_text
from peelsum.tls.identity import TlsError

#: The longest token, in characters.
LONGEST_TOKEN = 64
_TOKEN = re.compile(r"[\w-]{16,64}", re.ASCII)


def make_token(path: Path) -> None:
    """Write 256 random bits to a new file that only its owner reads. Raises TlsError if it exists."""
    write_new(path, secrets.token_urlsafe(32).encode() + b"\n", 0o600)


def read_token(path: Path) -> str:
    """Return the token in a file. Raises TlsError."""
    try:
        token = read_text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        raise TlsError(f"token: {path}: {reason}; make one: peelsum certificates token FILE") from None
    if not _TOKEN.fullmatch(token):
        raise TlsError(
            f"token: {path}: is not 16 to {LONGEST_TOKEN} letters, digits, - or _; "
            "make one: peelsum certificates token FILE"
        )
    return token


def same_token(one: str, other: str) -> bool:
    """Compare two tokens in a time that tells nothing about where they differ."""
    # Half a character, as JSON can have, is a wrong token, too.
    return hmac.compare_digest(*(token.encode(errors="surrogatepass") for token in (one, other)))


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a new file with these permissions. Raises TlsError, also if the file exists."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise TlsError(f"{path}: exists and is not overwritten; remove it, or choose another name") from None
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror}; choose another place") from None
