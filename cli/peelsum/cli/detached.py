"""Runs a `peelsum` command in the background, with its output in files of this user."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TextIO

from peelsum.topology import records

_POLL_S = 0.05


def start_detached(arguments: Sequence[str], ready: str) -> int:
    """Start `peelsum` with `arguments`; return 0 once it is ready, or its exit status if it ended.

    ready: the beginning of the line that reports readiness; a JSON object does, too. Until then, this process
    shows the command's output, and Ctrl-C ends both. All output is written to `up.out` and `up.err` in the
    folder of `records.folder`.
    """
    with ExitStack() as files:
        names = [records.folder() / name for name in ("up.out", "up.err")]
        written = [files.enter_context(name.open("a", encoding="utf-8")) for name in names]
        read = [files.enter_context(name.open(encoding="utf-8")) for name in names]
        for file in read:
            file.seek(0, 2)  # skip the output of earlier networks
        process = subprocess.Popen(
            [sys.executable, "-m", "peelsum.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=written[0],
            stderr=written[1],
            start_new_session=True,
        )
        try:
            return _until_ready(process, read[0], read[1], ready)
        except BaseException:
            process.terminate()
            process.wait()
            raise


def _until_ready(process: subprocess.Popen[bytes], out: TextIO, errors: TextIO, ready: str) -> int:
    said = ""
    while True:
        status = process.poll()
        new = out.read()
        said += new
        sys.stdout.write(new)
        sys.stderr.write(errors.read())
        sys.stdout.flush()
        complete = said.splitlines() if said.endswith("\n") else said.splitlines()[:-1]
        if any(line.startswith((ready, "{")) for line in complete):
            return 0
        if status is not None:
            return status
        time.sleep(_POLL_S)
