"""Child processes that print JSON lines, and that end with their parent.

A child prints one object when it is ready and one when it ends, and may print more in between. During long
operations it prints `working`, which only shows that it is alive. It ends on SIGTERM, and when its standard
input closes, however its parent dies. A foreign program does not read its input; the kernel kills it then.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, Self

from peelsum.processes.errors import ProcessError
from peelsum.processes.interrupts import uninterrupted

#: How long a child may take to clean up before it is killed, in seconds.
GRACE_S = 10.0
#: How long a starting child may print nothing, in seconds.
START_S = 120.0
#: How many of a child's last lines an exit report has.
_LAST_LINES = 3
#: The variable from which `peelsum server run` takes the admission: all users can read a command's arguments.
ADMISSION = "PEELSUM_ADMISSION"
_POLL_S = 0.02
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Child:
    """A command in a process of its own, which the terminal's Ctrl-C does not reach.

    on_work: called from a thread with the child's name and its last report of `working`.
    """

    on_work: Callable[[str], None] = staticmethod(lambda text: None)

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        foreign: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the command.

        foreign: whether it may leave its input unread, as programs other than peelsum do.
        environment: variables in addition to this process's.
        """
        self.name = name
        #: When the child last printed something, by `time.monotonic`.
        self.heard_at = time.monotonic()
        self._work = ""
        self._other_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `stop`)
        self._process = _started(
            command,
            die_with_parent if foreign else None,
            {**os.environ, **(environment or {})},
            self._errors,
        )
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name=f"{name} output", daemon=True)
        self._reader.start()
        self._last: dict[str, Any] = {}

    @classmethod
    def peelsum(
        cls,
        name: str,
        *arguments: str,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Start a `peelsum` subcommand under this interpreter; `prefix` is put before the command."""
        command = [*prefix, sys.executable, "-m", "peelsum.cli", *arguments]
        return cls(name, command, environment=environment)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def tell(self, **values: object) -> None:
        """Send the child one object, which its `hear` returns. Does nothing if the child has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(values).encode() + b"\n")
            self._process.stdin.flush()

    def has_line(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s`; return whether `next_line` would return or raise at once."""
        deadline = time.monotonic() + timeout_s
        while self._lines.empty():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def next_line(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next object that the child prints, or None once it has ended with status 0.

        Raises ProcessError with its last error line if it ended otherwise, or if it printed nothing for
        `timeout_s`.
        """
        line = self._next_within(timeout_s)
        if line is None and self._process.wait(GRACE_S):
            raise ProcessError(f"{self.name}: {self._last_error()}")
        self._last = line or self._last
        return line

    def _next_within(self, timeout_s: float) -> dict[str, Any] | None:
        asked_at = time.monotonic()
        while True:
            left = self._patience_ends(asked_at, timeout_s) - time.monotonic()
            with suppress(queue.Empty):
                return self._lines.get(timeout=max(0.0, left))
            if time.monotonic() >= self._patience_ends(asked_at, timeout_s):
                raise ProcessError(
                    f"{self.name}: no answer within {timeout_s:g} s{self.busy_with()}; check whether it is "
                    "stopped, or what else keeps this machine busy"
                )

    def _patience_ends(self, asked_at: float, timeout_s: float) -> float:
        return max(asked_at, self.heard_at) + timeout_s

    def busy_with(self) -> str:
        """Return the child's last report of `working`, to append to an error message."""
        return f", the last being {self._work!r}" if self._work else ""

    def ready(self, timeout_s: float = START_S) -> dict[str, Any]:
        """Return the child's first object. Raises ProcessError if it ended or printed nothing in time."""
        line = self.next_line(timeout_s)
        if line is None:
            raise ProcessError(f"{self.name}: ended before it was ready")
        return line

    @property
    def running(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status, as in `subprocess`; None while the process runs."""
        return self._process.poll()

    def exit_report(self) -> str:
        """Return how a child that ended by itself ended, and its last lines."""
        self._reader.join(GRACE_S)
        return f"{self.name}: {self._fate()}{self.last_words()}"

    def last_words(self) -> str:
        """Return the child's last lines, to append to an error message; empty if there are none."""
        said = self._error_lines()[-_LAST_LINES:] or list(self._other_lines)
        return f"; it said: {' | '.join(said)}" if said else ""

    def stop(self) -> dict[str, Any]:
        """End the child; return the last object that it printed, or {}."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)  # a stopped process handles no other signal
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(GRACE_S)
        while not self._lines.empty():
            self._last = self._lines.get() or self._last
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()
        return self._last

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.heard_at = time.monotonic()
            if line.startswith(b'{"working": '):
                self._work = json.loads(line)["working"]
                if self._work:
                    self.on_work(f"{self.name}: {self._work}")
            elif line.startswith(b"{"):
                self._work = ""
                self._lines.put(json.loads(line))
            elif line.strip():
                self._other_lines.append(line.decode(errors="replace").strip())
        self._lines.put(None)

    def _last_error(self) -> str:
        lines = self._error_lines()
        return lines[-1].removeprefix("peelsum: ") if lines else self._fate()

    def _error_lines(self) -> list[str]:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip().splitlines()

    def _fate(self) -> str:
        status = self._process.wait(GRACE_S)
        return f"ended with status {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"


def _started(
    command: Sequence[str],
    prepare: Callable[[], None] | None,
    environment: Mapping[str, str],
    errors: IO[bytes],
) -> subprocess.Popen[bytes]:
    """Start a child. An interrupt meanwhile ends the child: no other code knows its process yet."""
    process = None
    try:
        with uninterrupted():
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                preexec_fn=prepare,
                env=environment,
            )
    except KeyboardInterrupt:
        if process is not None:
            process.kill()
            process.communicate()
        raise
    return process


def say(**values: object) -> None:
    """Print one object for the parent process."""
    sys.stdout.write(json.dumps(values) + "\n")  # one write, because several threads may print
    sys.stdout.flush()


def hear() -> dict[str, Any]:
    """Return the next object that the parent sent. Ends this process if the parent is gone."""
    line = sys.stdin.buffer.readline()
    if not line:
        raise SystemExit
    return dict(json.loads(line))


def die_with_parent() -> None:
    """Make the kernel kill this process when the thread that started it ends; for `preexec_fn`."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_parent() -> None:
    """Send this process SIGTERM when its standard input closes, i.e. when its parent is gone."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


class Signalled:
    """A wait for signals: from now on, signals of these numbers only make `wait` return."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._come, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        for number in numbers:
            signal.signal(number, self._note)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait up to `timeout_s` (None: without limit); return whether a signal came since the last call."""
        come = bool(select.select([self._come], [], [], timeout_s)[0])
        if come:
            os.read(self._come, 4096)
        return come

    def _note(self, *_: object) -> None:
        # No locks here, as in threading.Event: the interrupted code could hold them.
        with suppress(BlockingIOError):
            os.write(self._tell, b"\0")
