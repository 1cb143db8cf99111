"""The record that `up` leaves for `exec` and `down`: its network, and the processes to end if it was killed.

A file of this user holds the record. Every process of a network has a marker in its environment.
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

#: How long `down` waits for `up` to clean up by itself, and for processes to end before they are killed.
GRACE_S = 15.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Process:
    """A process of this boot: its id and its start time in clock ticks, because ids are reused."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the process that has this id now, or None."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The command's name may contain anything, so count fields from its closing parenthesis.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def running(self) -> bool:
        """Whether this process still runs."""
        return Process.of(self.pid) == self


@dataclass(frozen=True)
class Place:
    """Where a command for one host or switch runs."""

    namespace_of: Process | None = None
    """A process in the command's network namespace; None for this machine's own."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the command gets in addition to `exec`'s."""


@dataclass(frozen=True)
class Record:
    """A network that is up, or starting."""

    network: str
    """The network's unique name."""

    up: Process
    """The process of its `peelsum up`."""

    places: Mapping[str, Place] = field(default_factory=dict)
    """Where commands run, by host or switch; empty until the network is up."""

    seats_file: str = ""
    """A file that exists while workers can take the seats of `places`; empty without a job."""

    @property
    def usable(self) -> bool:
        """Whether the network is up and its job, if any, is in a generation that workers can join."""
        return bool(self.places) and (not self.seats_file or Path(self.seats_file).exists())

    def write(self) -> None:
        """Write the record to its file, atomically."""
        new = folder() / "network.new"
        with _usable(new):
            new.write_text(json.dumps(asdict(self)), encoding="utf-8")
            new.rename(file())

    @classmethod
    def read(cls) -> Self | None:
        """Return this user's network that is up, or was when its `up` was killed; else None.

        Raises TopologyError if the file is damaged, or of another version.
        """
        from pydantic import TypeAdapter  # a slow import, and usually there is no record

        try:
            with _usable(file()):
                return TypeAdapter(cls).validate_json(file().read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise TopologyError(
                f"{file()}: is not a record that this version can read; end its `peelsum up`, and remove it"
            ) from None


def folder() -> Path:
    """Return this user's folder for runtime files. Raises TopologyError if another user owns it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime) / "peelsum" if runtime else Path(tempfile.gettempdir()) / f"peelsum-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        theirs = path.stat().st_uid != os.getuid() or path.is_symlink()
    except OSError as error:
        raise _no_place(path, error) from None
    if theirs:
        raise TopologyError(f"{path}: belongs to another user; set XDG_RUNTIME_DIR to a folder of yours")
    return path


def file() -> Path:
    """Return the path of the record of this user's network."""
    return folder() / "network.json"


def files_of(network: str) -> Path:
    """Return the path of the folder with a network's files."""
    return folder() / f"network-{network}"


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Turn OSError into TopologyError, except FileNotFoundError, which the caller handles."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _no_place(path, error) from None


def _no_place(path: Path, error: OSError) -> TopologyError:
    return TopologyError(f"{path}: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours")


@contextmanager
def only_one() -> Iterator[None]:
    """Hold the lock for a running network, which ends with this process however that ends.

    Raises TopologyError if another process of this user holds it.
    """
    path = folder() / "lock"
    with ExitStack() as held:
        with _usable(path):
            lock = held.enter_context(path.open("a"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TopologyError("up: another network is up; end it with `peelsum down`") from None
        yield


def end(record: Record) -> None:
    """End every process of the network except this one, and remove its files and the record.

    A running `up` gets SIGTERM first, to clean up by itself. Namespaces go with their processes.
    """
    if record.up.pid != os.getpid() and record.up.running:
        _signal(record.up, signal.SIGTERM)
        _await_end([record.up], GRACE_S)
        _signal(record.up, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = _members(record.network)
        for process in left:
            _signal(process, number)
        _await_end(left, GRACE_S)
    shutil.rmtree(files_of(record.network), ignore_errors=True)
    with _usable(file()):
        file().unlink(missing_ok=True)


def _members(network: str) -> list[Process]:
    """Return the other processes whose environment has the network's marker."""
    found, marker = [], f"{MARKER}={network}".encode()
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) != os.getpid():
            with suppress(OSError):
                if marker in (path / "environ").read_bytes().split(b"\0"):
                    process = Process.of(int(path.name))
                    found += [process] if process else []
    return found


def _signal(process: Process, number: int) -> None:
    if process.running:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _await_end(processes: list[Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(process.running for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
