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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self, TextIO

from peelsum.topology.errors import TopologyError

#: In the environment of every process of a network: the network's name, unique for all time.
MARKER = "PEELSUM_NETWORK"
#: How long `down` waits for `up` to clean up by itself, and for processes to end before they are killed.
GRACE_S = 15.0
_POLL_S = 0.02


class UnreadableRecordError(TopologyError):
    """What stands where a record should: damaged, or of another version."""


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
    """One network: its name, the process that holds it up, and the places in it.

    places: empty until the network is up. seats_file: a file that is there while workers can take the seats
    of `places`; empty without a job.
    """

    network: str
    up: Process
    places: Mapping[str, Place] = field(default_factory=dict)
    seats_file: str = ""

    @property
    def usable(self) -> bool:
        """Whether the network is up, and its job, if any, in a generation that workers can join."""
        return bool(self.places) and (not self.seats_file or Path(self.seats_file).exists())

    def write(self) -> None:
        """Put the record in the place of the one before."""
        new = folder() / "network.new"
        with _usable(new):
            new.write_text(json.dumps(asdict(self)), encoding="utf-8")
            new.rename(file())

    @classmethod
    def read(cls) -> Self | None:
        """The network of this user that is up, or was when its `up` was killed; None without any.

        Raises UnreadableRecordError for a file that says neither.
        """
        from pydantic import TypeAdapter  # takes longer than all the rest, and mostly there is no record

        try:
            with _usable(file()):
                return TypeAdapter(cls).validate_json(file().read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise UnreadableRecordError(
                f"{file()}: is no record of a network that this version can read; run `peelsum down`"
            ) from None


def folder() -> Path:
    """This user's folder for what runs now; nobody else's. Raises TopologyError where it is not."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime) / "peelsum" if runtime else Path(tempfile.gettempdir()) / f"peelsum-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        theirs = path.stat().st_uid != os.getuid() or path.is_symlink()
    except OSError as error:
        raise _no_place(path, error) from None
    if theirs:
        raise TopologyError(f"{path}: belongs to somebody else; set XDG_RUNTIME_DIR to a folder of yours")
    return path


def file() -> Path:
    """Where the record of this user's network is."""
    return folder() / "network.json"


@contextmanager
def _usable(path: Path) -> Iterator[None]:
    """Say in one line what keeps a file of ours from being used; that it is not there is the caller's."""
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
    """Hold the right to have a network up, which ends with this process however it ends.

    Raises TopologyError where another process of this user has it.
    """
    path = folder() / "lock"
    with ExitStack() as held:
        with _usable(path):
            lock = held.enter_context(path.open("a"))  # not "w": the holder's line is in it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TopologyError("up: another network is up; end it with `peelsum down`") from None
        with _usable(path):
            _sign(lock)
        yield


def _sign(lock: TextIO) -> None:
    """Leave in the lock who has it, for a `down` that cannot read the record."""
    myself = Process.of(os.getpid())
    assert myself is not None
    lock.truncate(0)
    lock.write(f"{myself.pid} {myself.started}")
    lock.flush()


def _holder() -> Process | None:
    """The process that has a network up by what it left in the lock."""
    try:
        pid, started = map(int, (folder() / "lock").read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return None
    return Process(pid, started)


def end(record: Record) -> None:
    """End every process of the network but this one, and forget the network. Namespaces go with them.

    A running `up` is asked first, and cleans up by itself if it can.
    """
    _end(record.up, record.network)


def end_unreadable() -> None:
    """As `end`, where the record cannot be read: whatever has a marker and the same folder as this process.

    A folder has one network at a time, so that is the one.
    """
    _end(_holder(), None)


def _end(up: Process | None, network: str | None) -> None:
    """End `up` and the members of the network, None for this folder's; remove the record."""
    if up is not None and up.pid != os.getpid() and up.running:
        _signal(up, signal.SIGTERM)
        _await_end([up], GRACE_S)
        _signal(up, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = _members(network)
        for process in left:
            _signal(process, number)
        _await_end(left, GRACE_S)
    with _usable(file()):
        file().unlink(missing_ok=True)


def _members(network: str | None) -> list[Process]:
    """The processes whose environment has the network's marker, this one excepted.

    None: any marker, where the environment names the folder that this process has.
    """
    wanted = None if network is None else network.encode()
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() or int(path.name) == os.getpid():
            continue
        with suppress(OSError):
            entries = (path / "environ").read_bytes().split(b"\0")
            environment = dict(entry.partition(b"=")[::2] for entry in entries)
            marker = environment.get(MARKER.encode())
            if wanted is None:
                belongs = marker is not None and _folder_from(environment) == _folder_from(os.environb)
            else:
                belongs = marker == wanted
            if belongs:
                process = Process.of(int(path.name))
                found += [process] if process else []
    return found


def _folder_from(environment: Mapping[bytes, bytes]) -> tuple[bytes | None, bytes | None]:
    """What of an environment decides where `folder` is."""
    runtime = environment.get(b"XDG_RUNTIME_DIR") or None
    return runtime, None if runtime else environment.get(b"TMPDIR")


def _signal(process: Process, number: int) -> None:
    if process.running:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _await_end(processes: list[Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(process.running for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
