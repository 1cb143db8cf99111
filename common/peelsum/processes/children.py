"""Child processes that exchange JSON messages with their parent, one per line, and end with it.

A child prints a message when it is ready and one when it ends, and may print more in between. During long
operations it prints progress messages, {"working": TEXT}, which show that it is alive. It ends on SIGTERM, or
when its standard input closes because the parent has died. A foreign program does not read its standard
input; the kernel kills it when the parent dies.
"""

from __future__ import annotations

import ctypes
import json
import math
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
from typing import Any, Self

from peelsum.processes.user_errors import ProcessError, signals_deferred

#: Seconds that a child may take to clean up before it is killed.
GRACE_S = 10.0
#: Seconds that a starting child may print nothing.
STARTUP_TIMEOUT_S = 120.0
#: The number of a child's last lines in an exit report.
_OUTPUT_TAIL_LINES = 3
#: The environment variable from which `peelsum server run` takes the admission, which contains a secret: all
#: users of a machine can read the arguments of a command.
ADMISSION = "PEELSUM_ADMISSION"
#: The number of restarts in a row after which a process is not restarted again.
MAX_RESTARTS = 5
#: A process that has run for so many seconds resets the count of restarts.
RESET_AFTER_S = 60.0
_POLL_S, _GATHER_POLL_S = 0.02, 0.05
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Child:
    """A command in a child process, in a session of its own, so that the terminal's Ctrl-C does not reach it.

    on_progress: called, from a thread, with 'NAME: TEXT' for each of its progress messages.
    """

    on_progress: Callable[[str], None] = staticmethod(lambda text: None)

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        foreign: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the command.

        name: the child's name in messages. foreign: whether the command is another program than peelsum,
        which does not read its standard input. environment: variables in addition to this process's.
        """
        self.name = name
        #: When the child last printed something, by `time.monotonic`.
        self.last_output_at = time.monotonic()
        self._activity = ""
        self._plain_lines: deque[str] = deque(maxlen=_OUTPUT_TAIL_LINES)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `stop`)
        process = None
        try:
            with signals_deferred():
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    start_new_session=True,
                    preexec_fn=die_with_parent if foreign else None,
                    env={**os.environ, **(environment or {})},
                )
        except BaseException:
            self._errors.close()
            if process is not None:  # no other code knows it yet
                process.kill()
                process.communicate()
            raise
        self._process = process
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name=f"{name} output", daemon=True)
        self._reader.start()
        self._last_message: dict[str, Any] = {}

    @classmethod
    def peelsum(
        cls,
        name: str,
        *arguments: str,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Start a `peelsum` subcommand with this interpreter. `prefix` is put before the command line."""
        command = [*prefix, sys.executable, "-m", "peelsum.cli", *arguments]
        return cls(name, command, environment=environment)

    @classmethod
    def start_ready(cls, name: str, *arguments: str, **options: Any) -> tuple[Self, dict[str, Any]]:
        """Start a `peelsum` subcommand as a child, and wait until it is ready; return it and its message.

        options: as for `peelsum`. If it ends or is not ready in time, stop it and raise ProcessError.
        """
        child = cls.peelsum(name, *arguments, "--json", "--child", **options)
        try:
            return child, child.ready()
        except BaseException:
            child.stop()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, **values: object) -> None:
        """Send a message that `receive_from_parent` returns in the child; do nothing if it has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            # Not through its buffer: that keeps what an ended child did not take, so `stop` would fail.
            os.write(self._process.stdin.fileno(), json.dumps(values).encode() + b"\n")

    def has_message(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a message or the child's end; return whether there is one."""
        deadline = time.monotonic() + timeout_s
        while self._messages.empty():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def next_message(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the child's next message, or None if it has ended with status 0.

        Raises ProcessError with its last error line if it ended otherwise, or if it printed nothing at all,
        not even progress messages, for `timeout_s`.
        """
        started_at = time.monotonic()
        while True:
            # Every line that the child prints starts the time again.
            remaining_s = max(started_at, self.last_output_at) + timeout_s - time.monotonic()
            try:
                message = self._messages.get(timeout=max(0.0, remaining_s))
                break
            except queue.Empty:
                if time.monotonic() >= max(started_at, self.last_output_at) + timeout_s:
                    raise ProcessError(
                        f"{self.name}: no answer within {timeout_s:g} s{self.last_progress()}; check whether "
                        "it is stopped, or what else keeps this machine busy"
                    ) from None
        if message is None and self._process.wait(GRACE_S):
            lines = self._error_lines()
            reason = lines[-1].removeprefix("peelsum: ") if lines else self._exit_cause()
            raise ProcessError(f"{self.name}: {reason}")
        self._last_message = message or self._last_message
        return message

    def last_progress(self) -> str:
        """Return the child's last progress message as a part of an error message; empty if it has none."""
        return f", the last being {self._activity!r}" if self._activity else ""

    def ready(self, timeout_s: float = STARTUP_TIMEOUT_S) -> dict[str, Any]:
        """Wait for the child's first message, and return it.

        Raises ProcessError if the child ends before, or prints nothing for `timeout_s`.
        """
        message = self.next_message(timeout_s)
        if message is None:
            raise ProcessError(f"{self.name}: ended before it was ready")
        return message

    @property
    def running(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status, as in `subprocess`; None while the process runs."""
        return self._process.poll()

    def exit_report(self) -> str:
        """Return one line about a child that has ended by itself: its exit status and its last lines."""
        self._reader.join(GRACE_S)
        return f"{self.name}: {self._exit_cause()}{self.output_tail()}"

    def output_tail(self) -> str:
        """Return the child's last lines as a part of an error message; empty if there are none."""
        lines = self._error_lines()[-_OUTPUT_TAIL_LINES:] or list(self._plain_lines)
        return f"; it said: {' | '.join(lines)}" if lines else ""

    def stop(self) -> dict[str, Any]:
        """End the child, by SIGTERM and after GRACE_S by SIGKILL; return its last message, or {}."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)  # a stopped process handles no other signal
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(GRACE_S)
        while not self._messages.empty():
            self._last_message = self._messages.get() or self._last_message
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()
        return self._last_message

    def _read(self) -> None:
        """Sort the lines of the child's output into messages, progress messages and others; in a thread."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last_output_at = time.monotonic()
            if line.startswith(b'{"working": '):
                self._activity = json.loads(line)["working"]
                if self._activity:
                    self.on_progress(f"{self.name}: {self._activity}")
            elif line.startswith(b"{"):
                self._activity = ""
                self._messages.put(json.loads(line))
            elif line.strip():
                self._plain_lines.append(line.decode(errors="replace").strip())
        self._messages.put(None)

    def _error_lines(self) -> list[str]:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip().splitlines()

    def _exit_cause(self) -> str:
        status = self._process.wait(GRACE_S)
        return f"ended with status {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"


class RestartableProcess:
    """A child process that can be restarted.

    again: starts the child's successor, and waits until it is ready; None if the child cannot be restarted.
    """

    def __init__(
        self,
        child: Child,
        again: Callable[[], Child] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.child = child
        self.again = again
        self._clock = clock
        self._started_at = clock()
        self._restarts = 0

    @property
    def name(self) -> str:
        """The child's name in messages."""
        return self.child.name

    def restart(self) -> str:
        """Restart a child that has ended; return one line about it.

        Raises ProcessError with the exit report if the child cannot be restarted, or was restarted too often.
        """
        report = self.child.exit_report()
        if self.again is None:
            raise ProcessError(report)
        if self._clock() - self._started_at >= RESET_AFTER_S:
            self._restarts = 0
        if self._restarts == MAX_RESTARTS:
            raise ProcessError(f"{report}; not started again after {MAX_RESTARTS} restarts")
        self.child.stop()
        self._restarts += 1
        self.child = self.again()
        self._started_at = self._clock()
        return f"{report}; started again"

    def stop(self) -> None:
        """End the child."""
        self.child.stop()


def gather_reports(
    workers: Sequence[Child], check: Callable[[], None] = lambda: None, timeout_s: float = math.inf
) -> list[dict[str, Any]]:
    """Return the next report of every worker.

    check: called repeatedly until then, to raise an error if another process has failed.
    Raises ProcessError as soon as a worker fails. Raises it with the names of silent workers if no worker
    has printed anything for `timeout_s`: all workers wait while one of them compiles.
    """
    reports: dict[str, dict[str, Any]] = {}
    started = time.monotonic()
    while silent := [worker for worker in workers if worker.name not in reports]:
        check()
        last_output = max(started, *(worker.last_output_at for worker in workers))
        if time.monotonic() > last_output + timeout_s:
            names = ", ".join(worker.name + worker.last_progress() for worker in silent)
            raise ProcessError(
                f"{names}: no answer within {timeout_s:g} s; check whether it is stopped, or give this "
                "machine fewer --workers"
            )
        for worker in silent:
            if worker.has_message(_GATHER_POLL_S / len(silent)):
                report = worker.next_message(0)
                if report is None:
                    raise ProcessError(f"{worker.name}: ended early; run again, it may have been stopped")
                reports[worker.name] = report
    return [reports[worker.name] for worker in workers]


def print_message(**values: object) -> None:
    """Print a message for the parent process."""
    sys.stdout.write(json.dumps(values) + "\n")  # one write, because several threads may print
    sys.stdout.flush()


def receive_from_parent() -> dict[str, Any]:
    """Wait for the next message from the parent, and return it. Exit if the parent has ended."""
    with open(0, "rb", buffering=0, closefd=False) as lines:  # a buffer would keep later messages
        line = lines.readline()
    if not line:
        raise SystemExit
    return dict(json.loads(line))


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. It is for `preexec_fn`."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def terminate_with_parent(receive: Callable[[dict[str, Any]], None] = lambda message: None) -> None:
    """Start a thread that sends this process SIGTERM when its standard input closes: its parent has ended.

    receive: called in that thread with each of the parent's messages.
    """

    def watch() -> None:
        try:
            with open(0, "rb", closefd=False) as lines:
                for line in lines:
                    receive(json.loads(line))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


class SignalWaiter:
    """Replaces the handlers of some signals, which from then on only make `wait` return."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        for number in numbers:
            signal.signal(number, self._record)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a signal, for ever or up to `timeout_s`; return whether one came since the last call."""
        received = bool(select.select([self._read_end], [], [], timeout_s)[0])
        if received:
            os.read(self._read_end, 4096)
        return received

    def _record(self, *_: object) -> None:
        # threading.Event has a lock, which the interrupted code could hold; a pipe has none.
        with suppress(BlockingIOError):
            os.write(self._write_end, b"\0")
