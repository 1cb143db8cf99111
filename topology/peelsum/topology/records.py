"""The record of a running network: `peelsum up` writes it for `exec` and `down`.

The record is a file of this user. All processes of a network have a marker in their environment, so that
`down` can end them if `up` was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from peelsum.topology.errors import TopologyError
from peelsum.transport.config import MARKER as MARKER

#: Seconds that `down` waits for the clean-up by `up`, and for processes to end before it kills them.
GRACE_S = 15.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Process:
    """A process, identified by its id and its start time in clock ticks, because ids are reused."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the running process with this id, or None."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The command's name may contain spaces, so fields are counted from its closing parenthesis.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def running(self) -> bool:
        """Whether the process is still running."""
        return Process.of(self.pid) == self


@dataclass(frozen=True)
class ExecContext:
    """The namespace and environment of commands that `exec` runs in a host or switch."""

    namespace_of: Process | None = None
    """A process in the network namespace of the host; None for the machine's own namespace."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to those of `exec`."""


@dataclass(frozen=True)
class Record:
    """A network that is running or starting."""

    network: str
    """The network's unique name."""
    up: Process
    """The process of `peelsum up`."""
    places: Mapping[str, ExecContext] = field(default_factory=dict)
    """The place of each host and switch; empty until the network is up."""
    seats_file: str = ""
    """The path of a file that exists while workers can join the job; empty without a job."""

    @property
    def usable(self) -> bool:
        """Whether the network is up, and workers can join its job, if it has one."""
        return bool(self.places) and (not self.seats_file or Path(self.seats_file).exists())

    def write(self) -> None:
        """Write the record to its file atomically. Raises TopologyError."""
        temporary = folder() / "network.new"
        with _errors_translated(temporary):
            temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
            temporary.rename(file())

    @classmethod
    def read(cls) -> Self | None:
        """Return the record of this user's network, or None if there is no record.

        If `up` was killed, its record remains. Raises TopologyError if the file cannot be read.
        """
        from pydantic import TypeAdapter  # imported here because it is slow and usually there is no record

        try:
            with _errors_translated(file()):
                return TypeAdapter(cls).validate_json(file().read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise TopologyError(
                f"{file()}: is not a record that this version can read; end its `peelsum up`, and remove it"
            ) from None


def folder() -> Path:
    """Return this user's folder for runtime files; create it if needed. Raises TopologyError."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime) / "peelsum" if runtime else Path(tempfile.gettempdir()) / f"peelsum-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_foreign = path.stat().st_uid != os.getuid() or path.is_symlink()
    except OSError as error:
        raise _folder_error(path, error) from None
    if is_foreign:
        raise TopologyError(f"{path}: belongs to another user; set XDG_RUNTIME_DIR to a folder of yours")
    return path


def file() -> Path:
    """Return the path of the record of this user's network."""
    return folder() / "network.json"


def files_of(network: str) -> Path:
    """Return the path of the folder for the files of a network, by the network's name."""
    return folder() / f"network-{network}"


@contextmanager
def _errors_translated(path: Path) -> Iterator[None]:
    """Translate OSError into TopologyError, except FileNotFoundError, which callers handle."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _folder_error(path, error) from None


def _folder_error(path: Path, error: OSError) -> TopologyError:
    return TopologyError(f"{path}: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours")


@contextmanager
def network_lock() -> Iterator[None]:
    """Hold this user's lock for a running network during the body. The kernel releases it with the process.

    Raises TopologyError if another process holds the lock.
    """
    path = folder() / "lock"
    with ExitStack() as held:
        with _errors_translated(path):
            lock = held.enter_context(path.open("a"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TopologyError("up: another network is up; end it with `peelsum down`") from None
        yield


def end(record: Record) -> None:
    """End all processes of a network except this one, and remove its files and the record.

    If `up` is running, it gets SIGTERM first, so that it can clean up. The kernel removes network namespaces
    when their processes have ended.
    """
    if record.up.pid != os.getpid() and record.up.running:
        _end_processes([record.up], signal.SIGTERM)
        _end_processes([record.up], signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGKILL):
        _end_processes(_members(record.network), number)
    shutil.rmtree(files_of(record.network), ignore_errors=True)
    with _errors_translated(file()):
        file().unlink(missing_ok=True)


def _members(network: str) -> list[Process]:
    """Return all processes except this one whose environment has the network's marker."""
    processes, marker = [], f"{MARKER}={network}".encode()
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) != os.getpid():
            with suppress(OSError):
                if marker in (path / "environ").read_bytes().split(b"\0"):
                    process = Process.of(int(path.name))
                    processes += [process] if process else []
    return processes


def _end_processes(processes: list[Process], number: int) -> None:
    """Send a signal to the processes that run, and wait until all have ended, up to GRACE_S."""
    for process in processes:
        if process.running:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)
    deadline = time.monotonic() + GRACE_S
    while any(process.running for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
