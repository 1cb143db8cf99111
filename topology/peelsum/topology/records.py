"""What `up` leaves for `exec` and `down`: which network is up, and what to end when its `up` was killed.

Owns the state file of this user and the marker in the environment of every process of a network. Refuses to
know what the processes are.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from peelsum.topology.errors import TopologyError

#: In the environment of every process of a network: the network's name, unique for all time.
MARKER = "PEELSUM_NETWORK"
#: How long `down` waits for `up` to clean up by itself, and for processes to end before they are killed.
GRACE_S = 15.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Process:
    """A process of this boot: its number, and when it started (clock ticks), as numbers are used again."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that has this number now; None where none has."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The command's name may hold anything, so count from its closing parenthesis.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def running(self) -> bool:
        """Whether it still is this process."""
        return Process.of(self.pid) == self


@dataclass(frozen=True)
class Place:
    """Where a command for one host or switch runs.

    namespace_of: a process in the network namespace; None for this machine's own.
    environment: what the command gets besides `exec`'s own environment.
    """

    namespace_of: Process | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """One network: its name, the process that holds it up, and the places in it."""

    network: str
    up: Process
    places: Mapping[str, Place] = field(default_factory=dict)

    def write(self) -> None:
        """Put the record in the place of the one before."""
        new = folder() / "network.new"
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        new.rename(_file())

    @classmethod
    def read(cls) -> Self | None:
        """The network of this user that is up, or was when its `up` was killed; None without any."""
        try:
            values = json.loads(_file().read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        places = {name: _place(place) for name, place in values["places"].items()}
        return cls(values["network"], Process(**values["up"]), places)


def _place(values: dict[str, Any]) -> Place:
    holder = values["namespace_of"]
    return Place(Process(**holder) if holder else None, values["environment"])


def folder() -> Path:
    """This user's folder for what runs now; nobody else's. Raises TopologyError where it is not."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime) / "peelsum" if runtime else Path(tempfile.gettempdir()) / f"peelsum-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid() or path.is_symlink():
        raise TopologyError(f"{path}: belongs to somebody else; set XDG_RUNTIME_DIR to a folder of yours")
    return path


def _file() -> Path:
    return folder() / "network.json"


@contextmanager
def only_one() -> Iterator[None]:
    """Hold the right to have a network up, which ends with this process however it ends.

    Raises TopologyError where another process of this user has it.
    """
    with (folder() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TopologyError("up: another network is up; end it with `peelsum down`") from None
        yield


def end(record: Record) -> None:
    """End every process of the network but this one, and forget the network. Namespaces go with them.

    A running `up` is asked first, and cleans up by itself if it can.
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
    _file().unlink(missing_ok=True)


def _members(network: str) -> list[Process]:
    """The processes whose environment has the network's marker, this one excepted."""
    wanted = f"{MARKER}={network}".encode()
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() or int(path.name) == os.getpid():
            continue
        with suppress(OSError):
            if wanted in (path / "environ").read_bytes().split(b"\0"):
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
